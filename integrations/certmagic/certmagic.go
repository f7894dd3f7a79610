// Package certmagic gives the locks of a storage of github.com/caddyserver/certmagic, and so of Caddy,
// to Fencelock: certificates stay in the storage, and one of many servers obtains each.
package certmagic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/fencelock/fencelock"
)

// A Storage is a certmagic.Storage with the locks of Fencelock. It implements certmagic.TryLocker and
// certmagic.LockLeaseRenewer too.
//
// certmagic takes no ctx that ends with a lock: after a loss, the attempt that is under way goes on,
// beside another server's, and the next one is made under a new lease or not at all (RenewLockLease).
// Where two obtained a certificate, both are valid, and the storage keeps what was stored last.
type Storage struct {
	certmagic.Storage
	mutex func(name string) fencelock.Mutex
	holds sync.Map // by name: *hold
}

// A hold lasts from Lock to Unlock, also when its lease is lost: certmagic knows it by its name, so
// that the Unlock of the first would end a second one of this process.
type hold struct {
	lease  atomic.Pointer[fencelock.Lease] // nil while Lock waits
	ended  chan struct{}
	outage error // that Lock has waited out in vain; set before ended is closed
}

// New returns s with its locks in locks, named prefix and certmagic's name, with opts.
func New(s certmagic.Storage, locks *fencelock.Locker, prefix string, opts ...fencelock.Option) *Storage {
	mutex := func(name string) fencelock.Mutex { return locks.Mutex(prefix+name, opts...) }
	return &Storage{Storage: s, mutex: mutex}
}

// Lock waits until the lock is held; it is renewed until Unlock. Errors: as fencelock.Mutex.Lock, so
// ErrUnavailable after an outage of more than 5 s, and that of ctx if it ended first.
func (s *Storage) Lock(ctx context.Context, name string) error {
	for {
		other, err := s.take(ctx, name, true)
		if other == nil {
			return err
		}
		select {
		case <-other.ended:
			if other.outage != nil { // those who wait would do it one after the other
				return other.outage
			}
		case <-ctx.Done():
			err := ctx.Err()
			if cause := context.Cause(ctx); !errors.Is(err, cause) {
				err = fmt.Errorf("%w: %w", err, cause)
			}
			return fmt.Errorf("%w (%w)", err, fencelock.ErrLocked)
		}
	}
}

// TryLock reports whether it took the lock. That another has it is no error.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	other, err := s.take(ctx, name, false)
	if other != nil || errors.Is(err, fencelock.ErrLocked) {
		return false, nil
	}
	return err == nil, err
}

// take locks, unless this process has a hold already, which it returns then.
func (s *Storage) take(ctx context.Context, name string, wait bool) (*hold, error) {
	h := &hold{ended: make(chan struct{})}
	if other, loaded := s.holds.LoadOrStore(name, h); loaded {
		return other.(*hold), nil
	}
	defer func() { // also where an Observer panics or ends the goroutine
		if h.lease.Load() == nil {
			s.holds.Delete(name)
			close(h.ended)
		}
	}()
	lock := s.mutex(name).TryLock
	if wait {
		lock = s.mutex(name).Lock
	}
	lease, err := lock(ctx)
	h.lease.Store(lease)
	if wait && ctx.Err() == nil && errors.Is(err, fencelock.ErrUnavailable) {
		h.outage = err
	}
	return nil, err
}

// held returns what this process has locked.
func (s *Storage) held(name string) (*hold, *fencelock.Lease, error) {
	other, _ := s.holds.Load(name)
	h, ok := other.(*hold)
	if !ok || h.lease.Load() == nil {
		return nil, nil, fencelock.ErrReleased
	}
	return h, h.lease.Load(), nil
}

// RenewLockLease asks no server while the lease is held, which is renewed until Unlock: the duration is not used.
// After a loss it takes the lock again if it is free. On an error, fencelock.ErrLocked or
// ErrUnavailable, certmagic puts its attempt off.
func (s *Storage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	h, lease, err := s.held(name)
	if err != nil || lease.Err() == nil {
		return err
	}
	if lease, err = s.mutex(name).TryLock(ctx); err != nil {
		return err
	}
	h.lease.Store(lease)
	if now, ok := s.holds.Load(name); !ok || now != any(h) { // Unlock came meanwhile, and may have missed it
		return errors.Join(fencelock.ErrReleased, lease.Unlock(ctx))
	}
	return nil
}

// Unlock releases the lock, also when ctx is done. certmagic logs its error: fencelock.ErrLost if the
// work may have overlapped with another server's; ErrUnavailable if the store is out, and other
// servers get the lock after the TTL only.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	h, _, err := s.held(name)
	if err != nil || !s.holds.CompareAndDelete(name, h) {
		return fencelock.ErrReleased
	}
	defer close(h.ended)
	return h.lease.Load().Unlock(ctx) // RenewLockLease may have changed it since held
}
