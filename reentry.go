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

// Context returns a context that ends when parent ends, when the returned function is called, and
// when the lease ends: then its Err is context.Canceled and its cause the lease's Err(). Of a lease
// that has ended, also by Close, it has ended already. It carries the lease for LeaseFrom and for
// re-entry (see WithoutLease), and costs no goroutine. Like Err it looks at the clock first.
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

// LeaseFrom returns the innermost lease that ctx carries (see Lease.Context), live or not; false
// without one, also below WithoutLease.
func LeaseFrom(ctx context.Context) (*Lease, bool) {
	c, ok := ctx.Value(leaseKey{}).(*leaseCtx)
	if !ok {
		return nil, false
	}
	return c.lease, true
}

// WithoutLease returns a ctx that carries no lease, for work that is started under a lease and is
// not part of it: its Lock of the same name waits its turn, where it would get ErrDeadlock, or
// share the hold with WithReentrancy. It still ends when ctx does, and so with the lease: a job
// that outlives the lease takes context.WithoutCancel of it. A holder that waits for such a Lock
// waits for ever.
func WithoutLease(ctx context.Context) context.Context {
	return context.WithValue(ctx, leaseKey{}, nil)
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

// unlocked waits until no Unlock of h is with the store, or for the end of ctx, and reports whether
// h has ended, or ctx. That may be a context of h, which is never asked with h.mu held.
func (h *hold) unlocked(ctx context.Context) bool {
	for ctx.Err() == nil {
		h.mu.Lock()
		if !h.claimed || h.err != nil {
			defer h.mu.Unlock()
			return h.err != nil
		}
		free := h.unclaimedLocked()
		h.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
		}
	}
	return true
}
