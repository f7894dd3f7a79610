package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// hostileStores are rules K5: the store refuses, hangs, is full, is demoted, vanishes, and comes back.
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
	{
		Name: "K48",
		What: "the store's server stands still and goes on: nothing is lost, " +
			"Unlock works later, nothing is left",
		Why:   "A server that pauses for a backup or a full disk answers nobody, and then everybody at once.",
		Needs: Needs{Server: true, Store: true}, Alone: true, Check: serverStandsStill,
	},
}

// hiccup is how long the outages of these rules last: less than a waiter's patience, and than any lease.
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
		c := must(e.contended(ctx, a))
		err := e.hiccup(ctx, c, func() error { kind.fail(link); return nil }, func() error {
			link.Set(passAll)
			return nil
		})
		if err != nil {
			return fmt.Errorf("the store %s for %v: %w", kind.what, hiccup, err)
		}
	}
	return nil
}

func serverStandsStill(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	c := must(e.contended(ctx, a))
	return e.hiccup(ctx, c, e.h.Server.Pause, e.h.Server.Resume)
}

// hiccup makes the store fail for a while under much work of a, and checks what has become of it.
func (e *Env) hiccup(ctx context.Context, c *contended, fail, mend func() error) error {
	const n = 10
	extra := make([]*fencelock.Lease, n)
	for i := range extra {
		var err error
		if extra[i], err = try(ctx, c.a, e.Name(), "a free lock"); err != nil {
			return err
		}
	}
	tried := make([]string, 3*n)
	for i := range tried {
		tried[i] = e.Name()
	}
	if err := fail(); err != nil {
		return err
	}
	began := time.Now()
	results := make([]error, n)
	var work sync.WaitGroup
	for i, le := range extra {
		work.Go(func() {
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			results[i] = le.Unlock(short)
		})
	}
	for _, name := range tried {
		work.Go(func() {
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			if le, err := c.a.Mutex(name).TryLock(short); err == nil {
				_ = le.Unlock(ctx)
			}
		})
	}
	err := sleep(ctx, hiccup-time.Since(began))
	if err := errors.Join(err, mend()); err != nil {
		return err
	}
	work.Wait()
	for i, le := range extra {
		if results[i] == nil {
			continue
		}
		if err := want(results[i], fencelock.ErrUnavailable, "Unlock meanwhile"); err != nil {
			return err
		}
		if err := unlock(ctx, le, "a second Unlock, once the store is back"); err != nil {
			return err
		}
	}
	if err := c.whole(ctx, e, "once the store is back"); err != nil {
		return err
	}
	for _, name := range tried {
		if err := until(ctx, 5*time.Second+e.Slack(), "what was tried meanwhile is free",
			freeFor(ctx, c.b, name)); err != nil {
			return err
		}
	}
	return e.emptyWithin(ctx, 15*time.Second)
}
