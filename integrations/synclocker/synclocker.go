// Package synclocker makes a sync.Locker of a fencelock.Mutex, for code that takes nothing else.
package synclocker

import (
	"context"
	"errors"
	"sync"

	"github.com/fencelock/fencelock"
)

// New returns a sync.Locker whose Lock waits for m, and whose Unlock frees it. Its methods have no
// errors, so fail is called with each: of Lock, such as fencelock.ErrUnavailable while the store is
// out, and of Unlock, fencelock.ErrLost if the work may have overlapped with another holder's. If
// fail returns, Lock tries again, and panics with what trying again cannot mend, such as
// fencelock.ErrClosed. A nil fail panics with every error. Lock ends with nothing but the lock, fail
// or a panic.
//
// The holder is not told when the lock is lost before Unlock: use m itself where the work can be
// stopped, or where a resource checks the token. Options that end a hold by themselves, such as
// fencelock.WithMaxHold, make that likelier.
//
// As of a sync.Mutex, one goroutine may lock and another unlock, and Unlock panics if it is not
// locked. The Locker that made m frees the lock in its Close; fail then gets fencelock.ErrReleased
// from Unlock.
func New(m fencelock.Mutex, fail func(error)) sync.Locker {
	if fail == nil {
		fail = func(err error) { panic(err) }
	}
	return &locker{m: m, fail: fail, turn: make(chan struct{}, 1)}
}

type locker struct {
	m    fencelock.Mutex
	fail func(error)

	turn chan struct{} // full from Lock to Unlock: an Unlock after a loss must not free the next one's lease

	mu    sync.Mutex
	lease *fencelock.Lease // nil while it is not locked
}

func (l *locker) Lock() {
	l.turn <- struct{}{}
	locked := false
	defer func() {
		if !locked { // fail panicked, or ended the goroutine
			<-l.turn
		}
	}()
	for {
		lease, err := l.m.Lock(context.Background())
		if err == nil {
			l.mu.Lock()
			l.lease = lease
			l.mu.Unlock()
			locked = true
			return
		}
		l.fail(err)
		if !errors.Is(err, fencelock.ErrUnavailable) {
			panic(err)
		}
	}
}

func (l *locker) Unlock() {
	l.mu.Lock()
	lease := l.lease
	l.lease = nil
	l.mu.Unlock()
	if lease == nil {
		panic("synclocker: Unlock of " + l.m.Name() + ", which is not locked")
	}
	defer func() { <-l.turn }()
	if err := lease.Unlock(context.Background()); err != nil {
		l.fail(err)
	}
}
