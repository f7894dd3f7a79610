// Package tusd locks the uploads of github.com/tus/tusd/v2 among several servers, which share a store
// of uploads: a client that resumes an upload at another server interrupts the request that still has
// it at the first one.
package tusd

import (
	"context"
	"errors"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/fencelock/fencelock"
)

// A Locker is a handler.Locker.
type Locker struct {
	mutex func(id string) fencelock.Mutex
}

// New returns a Locker whose locks are named prefix and the upload's id, with opts. While a request has
// an upload, the store is asked each second who waits for it (fencelock.Lease.Wanted); where a backend
// cannot tell that (Info.Waiters is -1), a waiting request gets handler.ErrLockTimeout instead, unless
// the first one ends in time.
func New(locks *fencelock.Locker, prefix string, opts ...fencelock.Option) Locker {
	return Locker{func(id string) fencelock.Mutex { return locks.Mutex(prefix+id, opts...) }}
}

// UseIn makes composer use the locker.
func (l Locker) UseIn(composer *handler.StoreComposer) { composer.UseLocker(l) }

// NewLock implements handler.Locker. Its error is nil: Lock reports a bad id.
func (l Locker) NewLock(id string) (handler.Lock, error) { return &lock{mutex: l.mutex(id)}, nil }

type lock struct {
	mutex   fencelock.Mutex
	lease   *fencelock.Lease
	stop    context.CancelFunc
	watched chan struct{}
}

// Lock waits until the lock is held. It calls requestUnlock when another waits for it, and also when it
// is lost: then the request must stop as well. tusd 2.9 misses a call that comes before or between its
// reads of the body: such a request goes on until the client ends it, or the NetworkTimeout of tusd.
//
// If ctx ends first, the error is handler.ErrLockTimeout; otherwise as fencelock.Mutex.Lock, so
// ErrUnavailable after an outage of more than 5 s.
func (k *lock) Lock(ctx context.Context, requestUnlock func()) error {
	lease, err := k.mutex.Lock(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return handler.ErrLockTimeout
	case err != nil:
		return err
	}
	held, stop := lease.Context(context.WithoutCancel(ctx))
	k.lease, k.stop, k.watched = lease, stop, make(chan struct{})
	go func() {
		defer close(k.watched)
		select {
		case <-lease.Wanted():
			requestUnlock()
		case <-held.Done():
			if errors.Is(context.Cause(held), fencelock.ErrLost) {
				requestUnlock()
			}
		}
	}()
	return nil
}

// Unlock releases the lock, for which it takes up to 5 s. tusd drops its error, which an Observer of the
// fencelock.Locker sees: fencelock.ErrLost if the upload may have been written by two, and
// ErrUnavailable if the store is out, and the lock is free after the TTL only.
func (k *lock) Unlock() error {
	k.stop()
	<-k.watched
	return k.lease.Unlock(context.Background())
}
