// Package core calls stores for the engine: it waits, sends again, sends together, judges gates, and
// knows what went unanswered, once for every [backend.Driver].
//
// A claim's way to the store, where nobody else is under way:
//
//	Client.Acquire → ask (gates) → send (again, doubt) → lane.send (alone or together) → Driver.Ask
//
// It is a package of its own and not part of the engine's because package migrate, which locks in two
// stores, needs all of it too.
package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Client is the Caller of one store: one program's side of it.
type Client struct {
	driver  backend.Driver
	calls   backend.Calls
	asks    *lane
	leaves  *lane                   // asks, where the two go together
	gates   atomic.Pointer[gateSet] // those that the store has shown last
	outages sync.Map                // by name: why the last look of a waiter failed
	flying  Group                   // calls that outlived their callers
	hedges  Group                   // second sends of renewals
}

// Of returns the Caller of a driver, a [Gater] of a backend.Mover: the driver itself, if it is one, or
// what its [Composite] has. Its Close closes the driver.
func Of(d backend.Driver) Caller {
	switch d := d.(type) {
	case Composite:
		return d.Caller
	case Caller:
		return d
	case backend.Mover:
		return &Mover{newClient(d), d}
	}
	return newClient(d)
}

func newClient(d backend.Driver) *Client {
	c := &Client{driver: d, calls: d.Calls()}
	c.gates.Store(&gateSet{})
	c.calls.Abreast = max(c.calls.Abreast, 1)
	c.asks = newLane(c.calls, d.Ask, &c.flying)
	c.leaves = c.asks
	if !c.calls.Mixed {
		c.leaves = newLane(c.calls, d.Leave, &c.flying)
	}
	return c
}

// Traits implements Caller.
func (d *Client) Traits() backend.Traits { return d.driver.Traits() }

// Tells implements Caller.
func (d *Client) Tells() bool { return d.calls.Tells }

// Acquire implements Caller.
func (d *Client) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	c, began := d.claimOf(r), time.Now()
	err := d.acquire(ctx, c)
	switch {
	case err == nil:
		return c.Grant, nil
	case ctx.Err() != nil && time.Since(began) >= promptMost && !backend.Final(err) &&
		!errors.Is(err, backend.ErrLocked) && !errors.Is(err, backend.ErrUnavailable):
		// It had time for an answer, so ctx was not merely too short.
		err = fmt.Errorf("%w (%w)", err, backend.Unavailable(fmt.Errorf("no answer within %v", promptMost)))
	}
	return backend.Grant{}, err
}

// Outage implements Caller.
func (d *Client) Outage(name string) error {
	err, _ := d.outages.Load(name)
	outage, _ := err.(error)
	return outage
}

func (d *Client) acquire(ctx context.Context, c *claim) error {
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
		limited, cancel = context.WithTimeout(ctx, 2*promptMost) // in the queue, and under way
	}
	outage := d.ask(limited, c, 1)
	cancel()
	queued := false
	switch {
	case outage == nil:
		return nil
	case errors.Is(outage, backend.ErrLocked):
		queued, c.locked, outage = c.Queued, true, nil
	case backend.Final(outage):
		return outage
	}
	if outage != nil && ctx.Err() == nil {
		d.outages.Store(c.Name, outage)
	}
	defer d.outages.Delete(c.Name)
	look := func(ctx context.Context) (bool, time.Duration, error) {
		if !queued {
			err := c.land(ctx)
			if err == nil {
				err = d.driver.Enter(ctx, &c.Claim)
			}
			if err != nil {
				silence, told := backend.Silence(0), outage != nil && outage != context.DeadlineExceeded
				if told && !backend.Final(err) && !errors.As(err, &silence) && !errors.As(outage, &silence) {
					err = outage // says more than that there was no answer
				}
				return false, 0, err
			}
			if err := d.ask(ctx, c, 2); !errors.Is(err, backend.ErrLocked) {
				outage = err
				return err == nil, 0, err
			}
			c.locked = true
		}
		queued, outage = false, nil
		return false, cmp.Or(c.Next, Patience), nil
	}
	err := Wait(ctx, c.Nonce, c.wakes(), func(ctx context.Context) (bool, time.Duration, error) {
		done, next, err := look(ctx)
		if err == nil {
			d.outages.Delete(c.Name)
		} else {
			d.outages.Store(c.Name, err)
		}
		return done, next, err
	})
	if c.locked && ctx.Err() != nil && err != nil && !errors.Is(err, backend.ErrLocked) {
		err = fmt.Errorf("%w (%w)", err, backend.ErrLocked) // ctx has ended before a second answer
	}
	return err
}

// Renew implements Caller.
func (d *Client) Renew(ctx context.Context, hs []*Hold) []error {
	return d.keep(ctx, hs, true)
}

// Check implements Caller.
func (d *Client) Check(ctx context.Context, hs []*Hold) []error {
	return d.keep(ctx, hs, false)
}

func (d *Client) keep(ctx context.Context, hs []*Hold, extend bool) []error {
	cs := make([]*backend.Claim, len(hs))
	for i, h := range hs {
		cs[i] = &d.held(h).Claim
	}
	if end, ok := ctx.Deadline(); ok && extend {
		return d.keepTwice(ctx, time.Until(end)/2, cs)
	}
	return d.keepAgain(ctx, cs, extend)
}

// keepAgain asks, and once more about the claims that it has no answer for.
func (d *Client) keepAgain(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	errs := d.driver.Keep(ctx, cs, extend)
	var again []*backend.Claim
	var at []int
	for i, err := range errs {
		if unanswered(err) {
			again, at = append(again, cs[i]), append(at, i)
		}
	}
	if len(again) > 0 && ctx.Err() == nil {
		for n, err := range d.driver.Keep(ctx, again, extend) {
			errs[at[n]] = err
		}
	}
	return errs
}

func unanswered(err error) bool { return err != nil && !backend.Final(err) }

// keepTwice renews, and after half of the time does so once more beside that: a request may have been
// swallowed, and on a slow way its answer may come yet. The first answer counts.
func (d *Client) keepTwice(ctx context.Context, half time.Duration, cs []*backend.Claim) []error {
	first, answered := context.WithCancel(ctx)
	defer answered()
	second, cancel := context.WithCancel(ctx)
	defer cancel()
	late := make(chan []error, 1)
	d.hedges.Add()
	timer := time.AfterFunc(half, func() {
		defer d.hedges.Done()
		errs := d.driver.Keep(second, cs, true)
		late <- errs
		if !slices.ContainsFunc(errs, unanswered) {
			answered()
		}
	})
	errs := d.keepAgain(first, cs, true)
	if timer.Stop() {
		d.hedges.Done()
	}
	select {
	case others := <-late:
		for i, err := range others {
			if unanswered(errs[i]) {
				errs[i] = err
			}
		}
	default:
	}
	return errs
}

// Release implements Caller.
func (d *Client) Release(ctx context.Context, h *Hold) error {
	c := d.known(h.Request)
	if c == nil {
		c = d.claimOf(h.Request)
		c.Grant = h.Grant
	}
	return d.leave(ctx, c, true)
}

// Abandon implements Caller.
func (d *Client) Abandon(ctx context.Context, r *backend.Request) error {
	sent := d.known(r) != nil
	c := d.claimOf(r)
	c.unsure = c.unsure || !sent // an earlier client may have sent it and had no answer
	if err := d.leave(ctx, c, false); !errors.Is(err, backend.ErrLost) {
		return err
	}
	return nil
}

// leave gives up a claim; held: as a release.
func (d *Client) leave(ctx context.Context, c *claim, held bool) error {
	if err := c.land(ctx); err != nil {
		return err
	}
	c.Leaving, c.Held = true, held
	return d.send(ctx, c, d.leaves, sends)
}

// Inspect implements Caller.
func (d *Client) Inspect(ctx context.Context, name string) (backend.Info, error) {
	return again(ctx, func() (i backend.Info, err error) {
		for i, err = range d.driver.Look(ctx, backend.Range{Name: name}) {
			break
		}
		return i, err
	})
}

// List implements Caller.
func (d *Client) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return d.driver.Look(ctx, backend.Range{Prefix: prefix})
}

// Break implements Caller. It is sent once: a second copy could free the next holder's
// lock.
func (d *Client) Break(ctx context.Context, name string) error { return d.driver.Break(ctx, name) }

// again does what is safe to do twice, if it had no answer.
func again[T any](ctx context.Context, do func() (T, error)) (T, error) {
	res, err := do()
	if err != nil && !backend.Final(err) && ctx.Err() == nil {
		res, err = do()
	}
	return res, err
}

// Close implements Caller.
func (d *Client) Close() error {
	d.Settle()
	return d.driver.Close() // ends the calls that outlived their callers
}

// Settle implements Caller.
func (d *Client) Settle() { d.hedges.Wait() }

// Land implements Caller.
func (d *Client) Land() { d.flying.Wait() }
