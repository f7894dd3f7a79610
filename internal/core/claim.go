package core

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// claim is a backend.Claim with what only the engine needs.
type claim struct {
	backend.Claim
	d      *Client
	alone  [1]*backend.Claim // itself, for calls that are about nothing else
	unsure bool              // Claim.Unsure from the next send on
	locked bool              // the store has answered ErrLocked to a waiter, which may stand in its queue
	first  [2]Deadline       // of its first Ask and its first Leave
	most   time.Duration     // how long its next call may take
	turn   chan bool         // while it stands in a lane: true, it leads; false, it was sent
	flight chan bool         // gets a value when the call that outlived its caller is over

	mu    sync.Mutex
	woken chan struct{} // of size 1; nil while nobody waits
	due   bool          // Wake came before that
	timer *time.Timer
}

// claimOf returns the claim that d has made of a request. A copy of a request is another one, and
// so is the same request to another driver.
func (d *Client) claimOf(r *backend.Request) *claim {
	c := d.known(r)
	if c == nil {
		c = &claim{d: d}
		c.Request, c.Waker, c.alone[0] = r, c, &c.Claim
		r.Claim = c
	}
	return c
}

// Stands reports whether a store may have something of a request, for all that its answers say.
func Stands(r *backend.Request) bool {
	c, ok := r.Claim.(*claim)
	return ok && (c.Held || c.locked || c.unsure)
}

func (d *Client) known(r *backend.Request) *claim {
	if c, ok := r.Claim.(*claim); ok && c.Request == r && c.d == d {
		return c
	}
	return nil
}

// held returns the claim of a hold. It changes nothing: a release may be under way.
func (d *Client) held(h *Hold) *claim {
	c := d.known(h.Request)
	if c == nil {
		c = &claim{d: d}
		c.Request, c.Grant, c.Held, c.Waker = h.Request, h.Grant, true, c
	}
	return c
}

// Wake implements backend.Waker.
func (c *claim) Wake(in time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	if in > 0 {
		c.timer = time.AfterFunc(in, func() { c.Wake(0) })
		return
	}
	c.due = true
	if c.woken != nil {
		select {
		case c.woken <- struct{}{}:
		default:
		}
	}
}

// wakes begins a wait, and returns what tells it to look.
func (c *claim) wakes() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.woken = make(chan struct{}, 1)
	if c.due {
		c.woken <- struct{}{}
	}
	return c.woken
}

// land waits for a call that outlived its caller: of one claim there is one call at a time.
func (c *claim) land(ctx context.Context) error {
	if c.flight == nil {
		return nil
	}
	select {
	case <-c.flight:
		c.flight = nil
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
