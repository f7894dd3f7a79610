package fencelock

import (
	"context"

	"github.com/fencelock/fencelock/backend"
)

// RWMutex is a named lock that many may hold for reading, or one alone. Like Mutex it holds no state. Its
// exclusive side is the Mutex of that name: the same lock and the same queue.
//
// First come, first served, among readers and writers together: a writer that waits keeps later readers
// out, so neither starves. Readers that hold at once have the same Token, which is the same for all
// since the last writer: a guard refuses none of them, and refuses a writer that they have overtaken. A
// reader must not write: its token would pass.
//
// A lease for reading cannot become one for writing: Lock with a ctx that carries it is ErrDeadlock at
// once, also WithReentrancy, which lets RLock join a hold of either side. Without that ctx two readers
// that want to write wait for each other. Readers of one process that ask within 3 ms share a hold at the
// store, each with a lease of its own.
//
// Errors and options are as of Mutex, and ErrUnsupported for reading without Traits.Readers.
type RWMutex interface {
	Mutex // alone
	// RLock waits until the lock is held for reading, as Mutex.Lock.
	RLock(ctx context.Context) (*Lease, error)
	// TryRLock takes it for reading if no writer holds it and nobody waits; otherwise ErrLocked.
	TryRLock(ctx context.Context) (*Lease, error)
	// RLocker returns the reading side as a Mutex, for functions that take one, such as LockAll.
	RLocker() Mutex
}

// Semaphore is a named set of permits. Each is leased, renewed, lost and fenced by itself: see Lease.Slot.
//
// The store keeps no number of permits: each caller brings its own, and no permit is granted beyond the
// least number of the holders and its own. So a fleet may go from 3 to 5, or back, while it runs. A Mutex
// of the same name is alone, and a permit waits for it.
//
// Errors and options are as of Mutex, and ErrUnsupported for more than Traits.Permits.
type Semaphore interface {
	// Name returns the name that Locker.Semaphore was given.
	Name() string
	// Acquire waits for a permit, as Mutex.Lock: first come, first served where Traits.FIFO. Unlock gives
	// it back.
	Acquire(ctx context.Context) (*Lease, error)
	// TryAcquire takes a permit if one is free and nobody waits; otherwise ErrLocked.
	TryAcquire(ctx context.Context) (*Lease, error)
}

// RWMutex returns the lock of this name for reading and writing, with opts over the Locker's own. It asks no
// server and never fails, as Locker.Mutex.
func (l *Locker) RWMutex(name string, opts ...Option) RWMutex {
	return &rwMutex{l.mutex(name, opts), l.shared(name, Reader, 0, opts)}
}

// Semaphore returns the n permits of this name, with opts over the Locker's own. n is from 1, which is
// Mutex, to 1024, else Acquire returns ErrInvalid. It asks no server and never fails, as Locker.Mutex.
func (l *Locker) Semaphore(name string, n int, opts ...Option) Semaphore {
	if n == 1 {
		return semaphore{l.mutex(name, opts)}
	}
	return semaphore{l.shared(name, Permit, n, opts)}
}

type rwMutex struct {
	*mutex
	read *mutex
}

func (m *rwMutex) RLock(ctx context.Context) (*Lease, error)    { return m.read.Lock(ctx) }
func (m *rwMutex) TryRLock(ctx context.Context) (*Lease, error) { return m.read.TryLock(ctx) }
func (m *rwMutex) RLocker() Mutex                               { return m.read }

type semaphore struct{ m *mutex }

func (s semaphore) Name() string                                   { return s.m.name }
func (s semaphore) Acquire(ctx context.Context) (*Lease, error)    { return s.m.Lock(ctx) }
func (s semaphore) TryAcquire(ctx context.Context) (*Lease, error) { return s.m.TryLock(ctx) }

// shared is mutex for a mode that several may have at once.
func (l *Locker) shared(name string, mode Mode, limit int, opts []Option) *mutex {
	return l.mutex(name, append(opts[:len(opts):len(opts)], func(s *settings) error {
		if mode == Permit && (limit < 1 || limit > backend.MostPermits) {
			return backend.Invalid("a Semaphore of %d permits: want 1 to %d", limit, backend.MostPermits)
		}
		s.mode, s.limit = mode, limit
		return nil
	}))
}

// shares reports whether somebody with these settings shares a hold by re-entry.
func (s *settings) shares(h *hold) bool {
	above := s.floor == 0 || s.floor < h.Token // a store may have no tokens
	return s.reentrant && above && (s.mode == h.Mode || s.mode == Reader && h.Mode == Exclusive)
}
