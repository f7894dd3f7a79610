package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// hostileStores are rules K5: the store refuses or hangs, and comes back.
var hostileStores = []Rule{
	{
		Name: "K5",
		What: "the store refuses, or hangs, and comes back: nothing is lost, " +
			"Unlock works later, nothing is left",
		Why: "Stores fail in the middle of much work; a lock that is lost or left behind then " +
			"turns a hiccup into an incident.",
		// Alone: when the store is back, all connect to it at once, and others would wait for their turn.
		Needs: Needs{Link: true, Store: true}, Alone: true, Check: storeOutOfReach,
	},
}

// hiccup is how long the outages of this rule last: less than a waiter's patience, and than any lease.
const hiccup = 2 * time.Second

func storeOutOfReach(ctx context.Context, e *Env) error {
	for _, kind := range []struct {
		what string
		fail func(Link)
	}{
		{"refuses", down},
		{"hangs", func(l Link) { l.Set(blackHole) }},
	} {
		if e.traits.LeasePerConn && kind.what == "refuses" {
			continue // a cut ends such leases: C5 has that
		}
		a, link := must2(e.OpenThrough(ctx))
		c := e.contended(ctx, a)
		part(fmt.Sprintf("the store %s for %v", kind.what, hiccup), func() error {
			return e.hiccup(ctx, c, func() { kind.fail(link) }, func() { link.Set(passAll) })
		})
	}
	return nil
}

// hiccup makes the store fail for a while under much work of a, and checks the outcome of that work.
func (e *Env) hiccup(ctx context.Context, c *contended, fail, mend func()) error {
	const n = 10
	extra := make([]*fencelock.Lease, n)
	for i := range extra {
		extra[i] = must(try(ctx, c.a, e.Name(), "a free lock"))
	}
	tried := make([]string, 3*n)
	for i := range tried {
		tried[i] = e.Name()
	}
	fail()
	began := time.Now()
	results, tries := make([]error, n), make([]error, len(tried))
	var seen error
	var work sync.WaitGroup
	work.Go(func() { seen = c.seen(ctx) })
	for i, le := range extra {
		work.Go(func() {
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			results[i] = le.Unlock(short)
		})
	}
	for i, name := range tried {
		work.Go(func() {
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			le, err := c.a.Mutex(name).TryLock(short)
			if tries[i] = err; err == nil {
				_ = le.Unlock(ctx)
			}
		})
	}
	err := sleep(ctx, hiccup-time.Since(began))
	mend()
	check(err)
	work.Wait()
	check(seen)
	for _, err := range tries {
		if errors.Is(err, fencelock.ErrLocked) {
			return fmt.Errorf("TryLock of a free lock meanwhile: got %w, and nobody has it", err)
		}
	}
	for i, le := range extra {
		if results[i] == nil {
			continue
		}
		check(want(results[i], fencelock.ErrUnavailable, "Unlock meanwhile"))
		check(unlock(ctx, le, "a second Unlock, once the store is back"))
	}
	check(c.whole(ctx, e, "once the store is back"))
	for _, name := range tried {
		check(until(ctx, 5*time.Second+e.Slack(), "what was tried meanwhile is free", freeFor(ctx, c.b, name)))
	}
	return e.emptyWithin(ctx, 15*time.Second)
}

// seen returns an error if a lock that is held is said to be free, by a client that may not reach the store.
func (c *contended) seen(ctx context.Context) error {
	name := c.ours.Name()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if info, err := c.a.Inspect(short, name); err == nil && !info.Held {
		return fmt.Errorf("Inspect meanwhile of what is held: got %+v", info)
	}
	short, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	for info, err := range c.a.List(short, name) {
		if err != nil || info.Name == name {
			return nil
		}
	}
	return errors.New("List meanwhile: got neither what is held nor an error")
}
