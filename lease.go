package fencelock

import (
	"context"
	"time"
)

// Lease is one hold of a lock, until Unlock or until it is lost. Its methods
// may be called from many goroutines. None but Renew, Unlock and Wanted asks the store.
//
// Done, Err, Context, Renew and Unlock look at the clock first: a process that was stopped, or (on
// Linux) a machine that slept, sees the loss on its first look. After Close of its Locker a lease
// has ended, and its methods tell that: Err, Renew and Unlock return ErrReleased or a *LostError.
type Lease struct {
	h *hold

	// Guarded by h.mu.
	place    int                                   // in h.leases
	released bool                                  // this handle was unlocked
	counted  bool                                  // Unlock was called, and h.refs counts it no more
	ctxs     map[*leaseCtx]context.CancelCauseFunc // the contexts made of this handle
	own      context.Context                       // the one that Done is of, for a reader
}

// Name returns the lock's name.
func (le *Lease) Name() string { return le.h.Name }

// Owner returns the readable identity of the holder: WithOwner, by default host:pid.
func (le *Lease) Owner() string { return le.h.Owner }

// Token returns the fencing token. It is fixed for the whole lease, also after
// its end: renewals and re-entry do not change it.
func (le *Lease) Token() Token { return le.h.Token }

// Mode returns how the lease holds its name.
func (le *Lease) Mode() Mode { return le.h.Mode }

// Slot returns the number of a permit, from 0 and below the n of its Semaphore, fixed for the lease. No
// other live permit of the name has it, and a later permit with it has a greater token: so a resource
// that is divided by slot can be guarded by slot (see fence.Slot). It is 0 in other modes.
func (le *Lease) Slot() int { return le.h.Slot }

// Handle returns the driver's own handle of this hold, for functions of the
// driver's package. It is nil if the driver has none, or if Unlock has left the lock to another lease
// of this process.
//
// The program may refer to the hold in the store by the handle, so a lock whose handle was asked for is
// not passed on inside the process.
func (le *Lease) Handle() any {
	h := le.h
	h.mu.Lock() // it may be passing the lock on at this moment
	left := h.next != nil || le.released && h.err == nil
	first := !left && !h.handled.Swap(true)
	h.mu.Unlock()
	switch {
	case left:
		return nil
	case first:
		h.l.disinherit(h)
		h.l.schedule.soon(h)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil && h.err != ErrReleased { // a write through it comes too late
		h.undo(h.err)
	}
	return h.inner()
}

// Deadline returns until when this process may trust the lease: the moment before the last granted
// request was sent, plus the TTL, less a margin of 2 % of the TTL and at least 20 ms
// (Traits.Margin, if that is more). It is sooner where WithMaxHold ends the hold, or where the
// store vouches for less. Renewals move it; the end of the lease does not. The monotonic reading is
// kept. It does not foresee that the machine sleeps: Err does account for sleep.
func (le *Lease) Deadline() time.Time {
	h := le.h
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked.Add(h.span).Time()
}

// Done returns a channel that is closed when the lease ends, lost or released. It is closed at the
// Deadline by a local timer, whatever the network does, and within half a second after a machine
// that slept beyond it wakes up (on Linux). Leases of one hold (WithReentrancy) share it: it is
// closed when the last of them is unlocked. Readers do not share it.
func (le *Lease) Done() <-chan struct{} {
	h := le.h
	h.look()
	if h.Mode != Reader { // readers that share a hold have nothing else to do with each other
		return h.ending()
	}
	h.mu.Lock()
	ctx := le.own
	h.mu.Unlock()
	if ctx == nil {
		ctx, _ = le.Context(context.Background())
		h.mu.Lock()
		le.own = ctx
		h.mu.Unlock()
	}
	return ctx.Done()
}

// Err returns nil while the lease is held; after that a *LostError, which matches ErrLost, or
// ErrReleased. It never changes again, but for a lease that Close releases: that is ErrReleased from the
// start, and lost if the store does not confirm.
func (le *Lease) Err() error {
	h := le.h
	h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	return le.errLocked()
}

// errLocked is Err; h.mu is held.
func (le *Lease) errLocked() error {
	if le.released || le.h.closing && le.h.err == nil {
		return ErrReleased
	}
	return le.h.err
}

// Renew makes the lease last for the full TTL again, counted from the moment before the request is
// sent, but no longer than WithMaxHold. It never brings a lost lease back. Errors: ErrLost or
// ErrReleased when the lease has ended, and ErrReleased also once Unlock was called, whatever came
// of that; ErrUnavailable when the store did not answer within 5 s, or in time for another try of
// the background renewal, and the error of ctx if that ended first; ErrClosed while the Locker is
// being closed. After the last three the lease stands as before, until its Deadline.
func (le *Lease) Renew(ctx context.Context) error {
	h := le.h
	return h.l.wrap("renew", h.Name, h.renew(ctx, le))
}

// Unlock frees the lock. If the process has several leases on the same hold (by WithReentrancy, or of
// readers that share one), it ends this lease, and the last one frees the lock. It works when ctx is
// done already: it takes up to a second then, and never more than 5 s. With WithMinHold the lease ends
// at once, and the lock is freed when that time is over.
//
// It returns nil only if the lease was surely held until now, as long as the store kept its data.
// ErrLost: the lease ended before, so the work done under it may have overlapped with another holder's.
// ErrReleased: it was unlocked before. ErrUnavailable: the store did not answer; the lease is not
// renewed any more, and Unlock may be called again until its Deadline. If ctx ended meanwhile, the error
// matches that too, but not the loss or release of another lease that ended ctx.
//
// Writes through the lock's own transaction (Traits.Transactional) are committed if Unlock returns nil,
// and rolled back if it returns ErrLost or an *UndoneError. An *UndoneError says that the lock was held
// until now and is free. A Deadline that passes while the commit is under way changes neither: Unlock
// returns what became of it, and after ErrUnavailable it may be called again later too.
//
// Stop the work that the lock guards before calling it: Done is closed once the
// store has confirmed. During Close it waits for that, and returns what Close made of the lease.
func (le *Lease) Unlock(ctx context.Context) error {
	h := le.h
	began, begun := time.Now(), false
	defer func() {
		if !begun { // the observer has panicked
			le.discard(ErrReleased)
		}
	}()
	e := h.event(Unlocking)
	e.At = began
	ctx = h.l.begin(ctx, e)
	begun = true
	return h.unlock(ctx, le, began)
}

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

// look looks at the clock, for the leases further out too: the machine may have slept past their Deadlines alone.
func (c *leaseCtx) look() {
	for o := c; o != nil; o = o.outer {
		o.lease.h.look()
	}
}

// Done looks at the clock first.
func (c *leaseCtx) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

// Err looks at the clock first. If the lease has just ended, it waits for the
// goroutine that is cancelling its contexts.
func (c *leaseCtx) Err() error {
	c.look()
	if c.lease.Err() != nil {
		<-c.Context.Done()
	}
	return c.Context.Err()
}

// Context returns a context that ends when parent ends, when the returned function is called, and
// when the lease ends: then its Err is context.Canceled and its cause the lease's Err() of that moment. Of a lease
// that has ended, also by Close, it has ended already. It carries the lease for LeaseFrom and for
// re-entry (see WithoutLease), and costs no goroutine. Like Err it looks at the clock first.
func (le *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancelCause(parent)
	outer, _ := parent.Value(leaseKey{}).(*leaseCtx)
	c := &leaseCtx{inner, le, outer}
	stop := func() bool { return true }
	if parent.Done() != nil {
		stop = context.AfterFunc(parent, c.drop)
	}
	c.endWith(func(err error) { stop(); cancel(err) })
	select {
	case <-parent.Done(): // drop may have come too early
		c.drop()
	default:
	}
	return c, func() { stop(); c.drop(); cancel(context.Canceled) }
}

// endWith has cancel called when the lease ends.
func (c *leaseCtx) endWith(cancel context.CancelCauseFunc) {
	le, h := c.lease, c.lease.h
	h.look()
	h.mu.Lock()
	err := le.errLocked()
	if err == nil {
		if le.ctxs == nil {
			le.ctxs = map[*leaseCtx]context.CancelCauseFunc{}
		}
		le.ctxs[c] = cancel
	}
	h.mu.Unlock() // package context is never called with it held: it may look at this lease
	if err != nil {
		cancel(err)
	}
}

// drop undoes endWith.
func (c *leaseCtx) drop() {
	h := c.lease.h
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(c.lease.ctxs, c)
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
		if !h.unlocking.taken || h.state == finished {
			defer h.mu.Unlock()
			return h.state == finished
		}
		free := h.unlocking.freeLocked()
		h.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
		}
	}
	return true
}
