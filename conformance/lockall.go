package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
)

// severalNames is rule S20.
func severalNames(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 4)
	for range e.count(2, 5, 20) {
		check(noCircle(ctx, e, ls))
	}
	check(allOrNone(ctx, e, ls))
	return lossOfOne(ctx, e, ls)
}

// three returns three fresh names, each with the one before it in the order of LockAll.
func (e *Env) three() [3]string {
	name := e.Name()
	return [3]string{name + "a", name + "b", name + "c"}
}

// noCircle: three clients that each begin with another name wait in one order, and get all in turn.
func noCircle(ctx context.Context, e *Env, ls []*fencelock.Locker) error {
	names := e.three()
	var held []*fencelock.Lease
	for _, name := range names {
		held = append(held, must(try(ctx, ls[3], name, "a free lock")))
	}
	var inside atomic.Int64
	ctx, cancel := context.WithTimeout(ctx, limit/4)
	defer cancel()
	done := running(func() error {
		return together(3, func(i int) error {
			all, err := ls[i].LockAll(ctx, names[i], names[(i+1)%3], names[(i+2)%3])
			check(want(err, nil, "LockAll of three, which three clients name in three orders"))
			if inside.Add(1) > 1 {
				return errors.New("LockAll: two clients have the same names")
			}
			_ = sleep(ctx, time.Millisecond)
			inside.Add(-1)
			return want(all.Unlock(ctx), nil, "unlock of all")
		})
	})
	err := waiting(ctx, ls[3], names[0], 3) // none of them waits for another one
	for _, le := range held {
		err = errors.Join(err, unlock(ctx, le, "the holder of all three"))
	}
	return errors.Join(err, <-done)
}

// allOrNone: where one cannot be had, none is held, and the error has its name.
func allOrNone(ctx context.Context, e *Env, ls []*fencelock.Locker) error {
	names := e.three()
	le := must(try(ctx, ls[1], names[1], "a free lock"))
	waits, cancel := context.WithCancel(ctx)
	defer cancel()
	done := running(func() error {
		_, err := ls[0].LockAll(waits, names[:]...)
		return err
	})
	check(until(ctx, ample/2, "LockAll has the first name", func() (bool, error) {
		info, err := ls[2].Inspect(ctx, names[0])
		return info.Held, err
	}))
	check(waiting(ctx, ls[1], names[1], 1))
	check(held(ctx, ls[2], names[0], "while LockAll waits for the name behind it"))
	check(e.free(ctx, ls[2], names[2])) // the name behind the one that it waits for
	cancel()
	select {
	case err := <-done:
		check(want(err, context.Canceled, "LockAll, cancelled"))
		var op *fencelock.OpError
		if !errors.As(err, &op) || op.Name != names[1] {
			return fmt.Errorf("LockAll, cancelled: got %w, want an *OpError of %q", err, names[1])
		}
	case <-time.After(e.soon()):
		return errors.New("LockAll waits yet although it was cancelled")
	}
	check(e.free(ctx, ls[2], names[0]))
	check(e.free(ctx, ls[2], names[2]))
	return unlock(ctx, le, "the holder of the second name")
}

// lossOfOne: with one of them all are over, and the others free.
func lossOfOne(ctx context.Context, e *Env, ls []*fencelock.Locker) error {
	names := e.three()
	all, err := ls[0].LockAll(ctx, names[:]...)
	if err != nil {
		return fmt.Errorf("LockAll: %w", err)
	}
	for _, name := range names {
		check(held(ctx, ls[1], name, "after LockAll"))
	}
	check(want(ls[2].Break(ctx, names[1]), nil, "Break"))
	select {
	case <-all.Done():
	case <-time.After(cmp.Or(e.traits.Revoked, ample) + e.Slack()):
		return errors.New("the Leases of LockAll are not told that one was broken")
	}
	err = all.Err()
	check(want(err, fencelock.ErrLost, "Err of Leases of which one was broken"))
	var op *fencelock.OpError
	if !errors.As(err, &op) || op.Name != names[1] {
		return fmt.Errorf("the error of Leases of which one was broken: got %w, want an *OpError of %q", err, names[1])
	}
	for _, name := range names {
		check(e.free(ctx, ls[2], name))
	}
	return want(all.Unlock(ctx), fencelock.ErrLost, "Unlock of Leases of which one was broken")
}
