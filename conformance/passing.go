package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

// hostilePassing are rules K9: a hold that was passed on, broken, and handed out elsewhere, in each order.
var hostilePassing = []Rule{
	{
		Name: "K9",
		What: "a hold that is passed on in its process, broken, and handed out elsewhere, in each order",
		Why: "A holder that was broken and passes the lock on makes a second holder, with a " +
			"number from before the Break.",
		Trait: noTokens, Check: passedOnAndBroken,
	},
}

// passing is one process with a holder and a Lock behind it, and another process.
type passing struct {
	*Env
	here, there *fencelock.Locker
	name        string
	le          *fencelock.Lease
	next        <-chan result // of a Lock here
}

func passedOnAndBroken(ctx context.Context, e *Env) error {
	here, there := must2(e.Two(ctx))
	orders := map[string]func(context.Context, *passing) error{
		"broken by another client, handed out, unlocked": func(ctx context.Context, p *passing) error {
			return p.broken(ctx, there, true)
		},
		"broken by the same client, handed out, unlocked": func(ctx context.Context, p *passing) error {
			return p.broken(ctx, here, true)
		},
		"broken while another client waits": func(ctx context.Context, p *passing) error {
			return p.broken(ctx, there, false)
		},
		"passed on, broken by another, handed out": func(ctx context.Context, p *passing) error {
			return p.passed(ctx, there)
		},
		"passed on, broken by the same, handed out": func(ctx context.Context, p *passing) error {
			return p.passed(ctx, here)
		},
	}
	for how, order := range orders {
		for i := range e.count(3, 10, 30) {
			p := &passing{Env: e, here: here, there: there, name: e.Name()}
			part(fmt.Sprintf("%s, round %d", how, i+1), func() error {
				p.begin(ctx)
				return order(ctx, p)
			})
		}
	}
	return nil
}

// begin makes a holder that the store knew to have others behind it, as the engine reserves numbers for those.
func (p *passing) begin(ctx context.Context) {
	first, line := p.lined(ctx, p.here, p.name, p.here)
	p.le, p.next = passed(ctx, first, line[0]), locking(ctx, p.here, p.name)
	// It is in line a moment later, and the lock is passed on to it only for a few milliseconds from now.
	check(sleep(ctx, 300*time.Microsecond))
}

// broken breaks the holder before it can pass the lock on. late: the other client asks only then.
func (p *passing) broken(ctx context.Context, by *fencelock.Locker, late bool) error {
	var got []result
	var theirs <-chan result
	if !late {
		theirs = locking(ctx, p.there, p.name)
	}
	check(want(by.Break(ctx, p.name), nil, "Break"))
	if late { // a try is refused where the Lock here stands in the store's queue
		r := <-calling(ctx, p.there.Mutex(p.name).TryLock)
		switch {
		case r.err == nil:
			got, theirs = append(got, r), nil
		case errors.Is(r.err, fencelock.ErrLocked):
			theirs = locking(ctx, p.there, p.name)
		default:
			return fmt.Errorf("TryLock after Break: got %w, want a lease or ErrLocked", r.err)
		}
	}
	check(want(p.le.Unlock(ctx), fencelock.ErrLost, "Unlock of a lease that was broken before"))
	return p.follow(ctx, got, p.next, theirs)
}

// passed breaks the lock after it was passed on.
func (p *passing) passed(ctx context.Context, by *fencelock.Locker) error {
	check(unlock(ctx, p.le, "the holder"))
	r := must(granted(ctx, p.next, 10*time.Second, "the next one here"))
	if r.lease.Token() <= p.le.Token() {
		return fmt.Errorf("passed on: got token %d after %d", r.lease.Token(), p.le.Token())
	}
	check(want(by.Break(ctx, p.name), nil, "Break"))
	theirs := locking(ctx, p.there, p.name)
	check(p.learns(ctx, r.lease))
	check(want(r.lease.Unlock(ctx), fencelock.ErrLost, "Unlock of a lease that was broken before"))
	p.le = r.lease
	return p.follow(ctx, nil, theirs, locking(ctx, p.here, p.name))
}

// follow checks that the leases of got, which are held, and the leases that come on waiting are granted one after
// the other, each with a higher token than the one before it.
func (p *passing) follow(ctx context.Context, got []result, waiting ...<-chan result) error {
	var left []<-chan result
	for _, ch := range waiting {
		if ch != nil {
			left = append(left, ch)
		}
	}
	rest := merged(left...)
	last := p.le.Token()
	for n := len(got) + len(left); n > 0; n-- {
		if len(got) == 0 {
			got = append(got, must(granted(ctx, rest, 10*time.Second, "a waiter")))
		}
		le := got[0].lease
		select {
		case r := <-rest:
			switch {
			case r.err != nil:
				return fmt.Errorf("a waiter: Lock: got %w, want a lease", r.err)
			case le.Err() == nil && r.lease.Err() == nil:
				return errors.New("two hold the lock")
			}
			got = append(got, r)
		case <-time.After(5 * time.Millisecond):
		}
		if le.Token() <= last {
			return fmt.Errorf("got token %d after %d", le.Token(), last)
		}
		last, got = le.Token(), got[1:]
		check(unlock(ctx, le, "one after the Break"))
	}
	return nil
}
