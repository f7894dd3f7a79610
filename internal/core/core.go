// Package core makes a [backend.Driver] of a [backend.Store]: it waits, sends again, sends
// together, judges gates, and knows what went unanswered, once for every store.
//
// A claim's way to the store, where nobody else is under way:
//
//	Driver.Acquire → ask (gates) → send (again, doubt) → lane.send (alone or together) → Store.Ask
//
// [backend.Driver] is how the engine calls stores that have all that for themselves yet.
package core

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Driver is a backend.Driver and backend.Checker over a Store.
type Driver struct {
	store  backend.Store
	calls  backend.Calls
	asks   lane
	leaves *lane                   // asks, where the two go together
	gates  atomic.Pointer[gateSet] // those that the store has shown last
	flying sync.WaitGroup          // calls that outlived their callers
}

// New returns the driver of a store, which it closes.
func New(s backend.Store) *Driver {
	d := &Driver{store: s, calls: s.Calls()}
	d.asks = lane{calls: d.calls, call: s.Ask}
	d.leaves = &d.asks
	if !d.calls.Mixed {
		d.leaves = &lane{calls: d.calls, call: s.Leave}
	}
	return d
}

// Traits implements backend.Driver.
func (d *Driver) Traits() backend.Traits { return d.store.Traits() }

// Tells reports whether the store tells of losses by itself, so that Check is of no use.
func (d *Driver) Tells() bool { return d.calls.Tells }

// Acquire implements backend.Driver.
func (d *Driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	c := d.claimOf(r)
	err := d.acquire(ctx, c)
	if err != nil {
		return backend.Grant{}, err
	}
	return c.Grant, nil
}

func (d *Driver) acquire(ctx context.Context, c *claim) error {
	if !c.Wait {
		err := d.ask(ctx, c, sends)
		if errors.Is(err, backend.ErrLocked) && c.unsure { // a copy of it may find the lock free yet
			if err := d.leave(ctx, c, false); err != nil {
				return err
			}
		}
		return err
	}
	limited, cancel := ctx, func() {}
	if d.calls.Aside { // its client may heed no deadline, and the wait has a patience of its own
		limited, cancel = context.WithTimeout(ctx, promptMost)
	}
	outage := d.ask(limited, c, 1)
	cancel()
	queued, locked := false, false
	switch {
	case outage == nil:
		return nil
	case errors.Is(outage, backend.ErrLocked):
		queued, locked, outage = c.Queued, true, nil
	case backend.Final(outage):
		return outage
	}
	defer c.hush()
	err := backend.Wait(ctx, c.wakes(), func(ctx context.Context) (bool, time.Duration, error) {
		if !queued {
			err := c.land(ctx)
			if err == nil {
				err = d.store.Enter(ctx, &c.Claim)
			}
			if err != nil {
				silence := backend.Silence(0)
				if outage != nil && !errors.As(err, &silence) {
					err = outage // says more than that there was no answer
				}
				return false, 0, err
			}
			if err := d.ask(ctx, c, 2); !errors.Is(err, backend.ErrLocked) {
				outage = err
				return err == nil, 0, err
			}
		}
		queued, outage = false, nil
		if c.Next == 0 {
			return false, backend.Patience, nil
		}
		return false, c.Next, nil
	})
	if locked && ctx.Err() != nil && err != nil && !errors.Is(err, backend.ErrLocked) {
		err = fmt.Errorf("%w (%w)", err, backend.ErrLocked) // ctx has ended before a second answer
	}
	return err
}

// Renew implements backend.Driver.
func (d *Driver) Renew(ctx context.Context, hs []*backend.Hold) []error {
	return d.keep(ctx, hs, true)
}

// Check implements backend.Checker.
func (d *Driver) Check(ctx context.Context, hs []*backend.Hold) []error {
	return d.keep(ctx, hs, false)
}

// keep asks about holds, and once more about those that it has no answer for.
func (d *Driver) keep(ctx context.Context, hs []*backend.Hold, extend bool) []error {
	cs := make([]*backend.Claim, len(hs))
	for i, h := range hs {
		cs[i] = &d.held(h).Claim
	}
	errs := d.store.Keep(ctx, cs, extend)
	var again []*backend.Claim
	var at []int
	for i, err := range errs {
		if err != nil && !backend.Final(err) {
			again, at = append(again, cs[i]), append(at, i)
		}
	}
	if len(again) > 0 && ctx.Err() == nil {
		for n, err := range d.store.Keep(ctx, again, extend) {
			errs[at[n]] = err
		}
	}
	return errs
}

// Release implements backend.Driver.
func (d *Driver) Release(ctx context.Context, h *backend.Hold) error {
	c := d.known(h.Request)
	if c == nil {
		c = d.claimOf(h.Request)
		c.Grant = h.Grant
	}
	return d.leave(ctx, c, true)
}

// Abandon implements backend.Driver.
func (d *Driver) Abandon(ctx context.Context, r *backend.Request) error {
	sent := d.known(r) != nil
	c := d.claimOf(r)
	c.unsure = c.unsure || !sent // by whoever had it before, who may have had no answer
	if err := d.leave(ctx, c, false); !errors.Is(err, backend.ErrLost) {
		return err
	}
	return nil
}

// leave gives up a claim; held: as a release.
func (d *Driver) leave(ctx context.Context, c *claim, held bool) error {
	if err := c.land(ctx); err != nil {
		return err
	}
	c.Leaving, c.Held = true, held
	return d.send(ctx, c, d.leaves, sends)
}

// Inspect implements backend.Driver.
func (d *Driver) Inspect(ctx context.Context, name string) (backend.Info, error) {
	return again(ctx, func() (i backend.Info, err error) {
		for i, err = range d.store.Look(ctx, backend.Range{Name: name}) {
			break
		}
		return i, err
	})
}

// List implements backend.Driver.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return d.store.Look(ctx, backend.Range{Prefix: prefix})
}

// Break implements backend.Driver. It is sent once: a second copy could free the next holder's
// lock.
func (d *Driver) Break(ctx context.Context, name string) error { return d.store.Break(ctx, name) }

// again does what is safe to do twice, if it had no answer.
func again[T any](ctx context.Context, do func() (T, error)) (T, error) {
	res, err := do()
	if err != nil && !backend.Final(err) && ctx.Err() == nil {
		res, err = do()
	}
	return res, err
}

// Close implements backend.Driver.
func (d *Driver) Close() error {
	err := d.store.Close() // ends the calls that outlived their callers
	d.flying.Wait()
	return err
}
