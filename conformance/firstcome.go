package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

func firstCome(ctx context.Context, e *Env) error {
	const n = 6
	holder, stranger := must2(e.Two(ctx))
	newcomer := must(e.Open(ctx)) // another client than those that try: a process that waits sends no try
	name := e.Name()
	le, line := lined(ctx, holder, name, e.several(ctx, n)...)
	var late []<-chan result // Locks of newcomers, each called just when the lock is freed for others
	for i, ch := range line {
		pushed := e.push(ctx, name, holder, stranger)
		late = append(late, locking(ctx, newcomer, name))
		if err := unlock(ctx, le, fmt.Sprintf("holder %d", i)); err != nil {
			return errors.Join(err, pushed())
		}
		r, err := granted(ctx, ch, 2*time.Second+e.Slack(), fmt.Sprintf("waiter %d of %d, in its turn", i+1, n))
		check(errors.Join(pushed(), err))
		check(held(ctx, holder, name, "a newcomer's try while others wait"))
		le = r.lease
	}
	check(unlock(ctx, le, "the last"))
	for rest := merged(late...); len(late) > 0; late = late[1:] {
		r := must(granted(
			ctx, rest, 2*time.Second+e.Slack(), "a newcomer, after all who waited before it",
		))
		check(unlock(ctx, r.lease, "a newcomer"))
	}
	return firstComeInside(ctx, e, holder, stranger)
}

// firstComeInside is the same for a Lock that waits in the holder's own process.
func firstComeInside(ctx context.Context, e *Env, holder, stranger *fencelock.Locker) error {
	name := e.Name()
	le := must(try(ctx, holder, name, "a free lock"))
	for range 6 {
		ch := locking(ctx, holder, name)
		check(waiting(ctx, stranger, name, 1))
		pushed := e.push(ctx, name, holder, stranger)
		if err := unlock(ctx, le, "the holder"); err != nil {
			return errors.Join(err, pushed())
		}
		r, err := granted(ctx, ch, 2*time.Second+e.Slack(), "a waiter of the holder's process")
		check(errors.Join(pushed(), err))
		le = r.lease
	}
	return unlock(ctx, le, "the last of the holder's process")
}

// push tries a lock for which somebody is known to wait, again and again and with each of ls, until
// the function that it returns is called: that returns an error if a try got the lock.
func (e *Env) push(ctx context.Context, name string, ls ...*fencelock.Locker) (pushed func() error) {
	began := time.Now()
	ctx, stop := context.WithCancel(ctx)
	errs := make(chan error, len(ls))
	for _, l := range ls {
		go func() {
			for i := 1; ctx.Err() == nil; i++ {
				le, err := l.Mutex(name).TryLock(ctx)
				switch {
				case err == nil:
					took := time.Since(began)
					_ = le.Unlock(ctx)
					// After longer than that the waiter may have been taken for dead.
					if dead := e.traits.DeadWaiter; dead == 0 || took < dead/2 {
						errs <- fmt.Errorf("try %d of a newcomer while others "+
							"wait got the lock (token %d)", i, le.Token())
						return
					}
				case !errors.Is(err, fencelock.ErrLocked) && ctx.Err() == nil:
					errs <- fmt.Errorf("a newcomer's try while others wait: got %w, want %w", err, fencelock.ErrLocked)
					return
				}
				if i%10 == 0 {
					_ = sleep(ctx, 100*time.Microsecond)
				}
			}
			errs <- nil
		}()
	}
	return func() error {
		stop()
		var all []error
		for range ls {
			all = append(all, <-errs)
		}
		return errors.Join(all...)
	}
}
