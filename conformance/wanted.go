package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

// wanted is rule S21.
func wanted(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 3)
	check(wantedByWaiter(ctx, e, ls, ls[0].Mutex(e.Name()).Lock))
	if e.traits.Readers {
		check(wantedByWaiter(ctx, e, ls, ls[0].RWMutex(e.Name()).RLock))
	}
	return wantedHere(ctx, e, ls[0])
}

// wantedByWaiter: a holder is told of a waiter elsewhere, and of no try.
func wantedByWaiter(ctx context.Context, e *Env, ls []*fencelock.Locker, lock locks) error {
	le := must(take(ctx, lock, "a free lock"))
	what := fmt.Sprintf("Wanted of %v", le.Mode())
	wanted := le.Wanted()
	check(held(ctx, ls[1], le.Name(), "a try"))
	select {
	case <-wanted:
		return errors.New(what + ": it is closed, and nobody waits")
	case <-time.After(2200 * time.Millisecond): // two looks at the store
	}
	waits, cancel := context.WithCancel(ctx)
	defer cancel()
	waiter := locking(waits, ls[2], le.Name())
	check(waiting(ctx, ls[1], le.Name(), 1))
	began := time.Now()
	select {
	case <-wanted:
		e.Notef("%s: closed %v after the store knew of a waiter", what, time.Since(began).Round(time.Millisecond))
	case <-time.After(e.soon()):
		return fmt.Errorf("%s: not closed within %v, and somebody waits", what, e.soon())
	}
	cancel()
	<-waiter
	select {
	case <-le.Wanted():
	default:
		return errors.New(what + ": it does not stay closed")
	}
	return unlock(ctx, le, "the holder")
}

// wantedHere: the holder is told of a waiter in its own process without a look at the store.
func wantedHere(ctx context.Context, e *Env, l *fencelock.Locker) error {
	le := must(try(ctx, l, e.Name(), "a free lock"))
	wanted := le.Wanted()
	waiter := locking(ctx, l, le.Name())
	select {
	case <-wanted:
	case <-time.After(e.soon()):
		return errors.New("the channel of Wanted is open, and somebody of this process waits")
	}
	check(unlock(ctx, le, "the holder"))
	r := must(granted(ctx, waiter, e.soon(), "the waiter"))
	return unlock(ctx, r.lease, "the waiter")
}
