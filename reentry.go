package fencelock

import "context"

// leaseKey is the key under which a leaseCtx finds itself.
type leaseKey struct{}

// leaseCtx is a context that ends with a lease and carries it. Its Done channel
// is that of the cancelCtx inside, so that contexts derived from it cost no goroutine.
type leaseCtx struct {
	context.Context
	lease *Lease
	outer *leaseCtx // the next one outwards
}

// Value finds the context itself for leaseKey.
func (c *leaseCtx) Value(key any) any {
	if key == (leaseKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Done looks at the clock first.
func (c *leaseCtx) Done() <-chan struct{} {
	c.lease.h.look()
	return c.Context.Done()
}

// Err looks at the clock first. If the lease has just ended, it waits for the
// goroutine that is cancelling its contexts.
func (c *leaseCtx) Err() error {
	if c.lease.Err() != nil {
		<-c.Context.Done()
	}
	return c.Context.Err()
}

// Context returns a context that ends when parent ends, when the returned
// function is called, and when the lease ends: then with the cause Err(). It carries the
// lease for LeaseFrom and for re-entry, and costs no goroutine. Like Err it looks
// at the clock first.
func (le *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancelCause(parent)
	outer, _ := parent.Value(leaseKey{}).(*leaseCtx)
	c := &leaseCtx{inner, le, outer}
	h := le.h
	drop := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(le.ctxs, c)
	}
	stop := func() bool { return true }
	if parent.Done() != nil {
		stop = context.AfterFunc(parent, drop)
	}
	// Package context is never called with h.mu held: it may look at this lease.
	h.look()
	h.mu.Lock()
	err := le.errLocked()
	if err == nil {
		if le.ctxs == nil {
			le.ctxs = map[*leaseCtx]context.CancelCauseFunc{}
		}
		le.ctxs[c] = func(err error) { stop(); cancel(err) }
	}
	h.mu.Unlock()
	if err != nil {
		stop()
		cancel(err)
	}
	return c, func() { stop(); drop(); cancel(context.Canceled) }
}

// cancelsLocked returns what ends the contexts of a handle that has ended with
// err, to be called without h.mu.
func (le *Lease) cancelsLocked(err error) []func() {
	cancels := make([]func(), 0, len(le.ctxs))
	for _, cancel := range le.ctxs {
		cancels = append(cancels, func() { cancel(err) })
	}
	le.ctxs = nil
	return cancels
}

// LeaseFrom returns the innermost lease that ctx carries (see Lease.Context),
// live or not.
func LeaseFrom(ctx context.Context) (*Lease, bool) {
	c, ok := ctx.Value(leaseKey{}).(*leaseCtx)
	if !ok {
		return nil, false
	}
	return c.lease, true
}

// carried returns the live hold of this name and Locker that ctx carries, or nil.
func (l *Locker) carried(ctx context.Context, name string) *hold {
	c, _ := ctx.Value(leaseKey{}).(*leaseCtx)
	for ; c != nil; c = c.outer {
		h := c.lease.h
		if h.l != l || h.Name != name {
			continue
		}
		if c.lease.Err() == nil {
			return h
		}
	}
	return nil
}
