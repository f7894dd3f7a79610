package simulation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// driver is the Caller of a client. Sound but for the flaw, and it holds the engine to what core.Caller
// says of overlaps.
type driver struct {
	c      *client
	w      *world
	flying map[string]flight // the call in flight by nonce; w.mu guards it
	live   int
	closed bool
	lost   atomic.Bool          // a lock was lost to it, for a flaw
	gone   map[string]time.Time // when nonces were released
}

// flight is a call in flight.
type flight struct {
	op    string
	since time.Time
}

func newDriver(c *client) *driver {
	return &driver{c: c, w: c.w, flying: map[string]flight{}, gone: map[string]time.Time{}}
}

// Tells: it tells of losses, so that only who is to look does.
func (d *driver) Tells() bool { return !d.w.plan.checks }

func (d *driver) Traits() backend.Traits {
	return backend.Traits{
		Name: "simulated", Fencing: backend.Anchored, FIFO: true, Grace: true, DeadWaiter: deadFor,
		MinTTL: 100 * time.Millisecond, Resolution: time.Millisecond, Revoked: revoked,
		Readers: true, Permits: backend.MostPermits,
	}
}

// begin takes a call in, and end takes it out; both know what may overlap.
func (d *driver) begin(op string, as ...*acq) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.closed {
		d.w.violation("%s by %s after Close of its driver", op, d.c.id)
	}
	d.live++
	for _, a := range as {
		was := d.flying[a.nonce]
		upkeep := func(op string) bool { return op == "renew" || op == "check" }
		// What the engine sends at the same instant meets in either order.
		overtakes := upkeep(was.op) && !upkeep(op) || upkeep(op) && !upkeep(was.op) && !was.since.Before(time.Now())
		if d.w.bare() { // Keep comes beside a Leave, and after it
			if was.op != "" && !upkeep(was.op) && !upkeep(op) {
				d.w.violation("%s of %s while its %s is in flight", op, a.id, was.op)
			}
			if !upkeep(op) {
				d.flying[a.nonce] = flight{op, time.Now()}
			}
			continue
		}
		if was.op != "" && !overtakes {
			d.w.violation("%s of %s while its %s is in flight", op, a.id, was.op)
		}
		if at, ok := d.gone[a.nonce]; ok && upkeep(op) && at.Before(time.Now()) {
			d.w.violation("%s of %s after its release was confirmed", op, a.id)
		}
		if op == "renew" && a.unlocking && a.unlockAt.Before(time.Now()) {
			d.w.violation("%s is renewed after its Unlock was called", a.id)
		}
		d.flying[a.nonce] = flight{op, time.Now()}
	}
}

func (d *driver) end(op string, as ...*acq) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.live--
	for _, a := range as {
		if d.flying[a.nonce].op == op {
			delete(d.flying, a.nonce)
		}
	}
}

// id names the next message of one kind about an acquisition.
func (d *driver) id(a *acq, op string) string {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	a.counts[op]++
	return fmt.Sprintf("%s %s%d", a.id, op, a.counts[op])
}

// acq finds or makes what is known of a request.
func (d *driver) acq(r *backend.Request) *acq {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	a := d.w.acqs[r.Nonce]
	if a == nil {
		a = &acq{
			c: d.c, r: r, name: r.Name, nonce: r.Nonce, owner: r.Owner,
			wake: make(chan struct{}, 1), counts: map[string]int{},
		}
		_, a.shared = d.c.bursts[r.Owner]
		a.id = fmt.Sprintf("%s#%d", r.Owner, len(d.w.byOwner[r.Owner]))
		d.w.acqs[r.Nonce] = a
		d.w.byOwner[r.Owner] = append(d.w.byOwner[r.Owner], a)
		if a.name == common {
			d.c.common = append(d.c.common, a)
		}
	}
	return a
}

func (d *driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	a := d.acq(r)
	d.begin("acquire", a)
	defer d.end("acquire", a)
	if d.w.flaw != "" {
		if g, err, done := d.acquireBadly(ctx, a); done {
			return g, err
		}
	}
	g, err := d.acquire(ctx, a)
	if d.w.flaw == nilOnCancel && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return backend.Grant{}, nil
	}
	return g, err
}

func (d *driver) acquire(ctx context.Context, a *acq) (g backend.Grant, err error) {
	context.AfterFunc(ctx, func() { // at the end of Lock at the latest
		d.w.mu.Lock()
		defer d.w.mu.Unlock()
		a.waitEnd = true
	})
	d.hears(a, a.r.Wait)
	defer d.hears(a, false)
	look := func(ctx context.Context) (bool, time.Duration, error) {
		rep, asked, err := d.c.callAbout(ctx, a, d.id(a, "acquire"), func() reply {
			rep := d.w.store.acquire(a)
			d.w.refusal(a, rep)
			return rep
		})
		if err == nil || backend.Final(err) {
			d.hears(a, a.r.Wait)
		}
		switch {
		case err == nil:
			if d.w.flaw == askedLate {
				asked = backend.Now()
			}
			g = d.granted(a, rep, asked)
			return true, 0, nil
		case errors.Is(err, backend.ErrLocked) && a.r.Wait:
			return false, rep.in, nil
		}
		return false, 0, err
	}
	switch {
	case !a.r.Wait:
		_, _, err = look(ctx)
		if errors.Is(err, backend.ErrLocked) && a.sends > 1 {
			err = d.forget(ctx, a)
		}
	case d.w.plan.waits:
		err = core.Wait(ctx, a.nonce, a.wake, look)
	default:
		err = wait(ctx, a.wake, look)
	}
	if err == nil && d.w.flaw == secondTrip {
		rep, _, err := d.c.call(ctx, a.id+" token", func() reply {
			return reply{token: d.w.store.next(d.w.store.lock(a.name), a)}
		})
		g.Token = rep.token
		return g, err
	}
	return g, err
}

// granted is what the driver says of a grant.
func (d *driver) granted(a *acq, rep reply, asked backend.Instant) backend.Grant {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	a.asked, a.seen = asked, backend.Now()
	g := backend.Grant{Token: rep.token, Slot: rep.slot, Reserved: rep.spare, Asked: asked, Handle: a}
	switch d.w.flaw {
	case reserveMore:
		g.Reserved = a.r.Reserve
	case sentLate:
		g.Sent = asked.Elapsed()
	}
	return g
}

// forget ends a try that was sent twice and refused: the first request may come yet, and find the lock free. The
// engine does not call Abandon after ErrLocked.
func (d *driver) forget(ctx context.Context, a *acq) error {
	_, _, err := d.c.call(ctx, d.id(a, "forget"), func() reply { return reply{err: d.w.store.leave(a, abandoned)} })
	if err == nil {
		err = backend.ErrLocked
	}
	return err
}

// hears notes that an Acquire has heard of the store, and whether it waits.
func (d *driver) hears(a *acq, waits bool) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	a.waits, a.heard = waits, time.Now()
}

// wait is the loop of a driver that is told when to look: core.Wait without its jitter.
func wait(ctx context.Context, wake <-chan struct{}, look func(context.Context) (bool, time.Duration, error)) error {
	var failed time.Time
	locked := false
	for {
		began := time.Now()
		done, next, err := look(ctx)
		switch {
		case done:
			return nil
		case err == nil:
			locked, failed = true, time.Time{}
		case ctx.Err() != nil:
			return core.Ended(ctx, locked, nil)
		case backend.Final(err):
			return err
		default:
			if failed.IsZero() {
				failed = began
			}
			if time.Since(failed) >= core.Patience {
				return backend.Unavailable(err)
			}
			next = 100 * time.Millisecond
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-wake:
		case <-ctx.Done():
			timer.Stop()
			return core.Ended(ctx, locked, nil)
		}
		timer.Stop()
	}
}

// sender sends a message: once, or once more if there is no answer.
type sender func(ctx context.Context, id string, apply func() reply) (reply, backend.Instant, error)

func (d *driver) acqs(hs []*core.Hold) []*acq {
	as := make([]*acq, len(hs))
	for i, h := range hs {
		as[i] = d.acq(h.Request)
	}
	return as
}

// many is a renewal or a look at several holds, in one message.
func (d *driver) many(ctx context.Context, op string, as []*acq, send sender, do func(*acq) error) []error {
	d.begin(op, as...)
	defer d.end(op, as...)
	rep, _, err := send(ctx, d.id(as[0], op), func() reply {
		errs := make([]error, len(as))
		for i, a := range as {
			errs[i] = do(a)
		}
		return reply{errs: errs}
	})
	if err != nil {
		if d.w.flaw == unknownIsLost {
			err = backend.ErrLost
		}
		rep.errs = make([]error, len(as))
		if d.w.flaw == hungRenewed {
			err = nil
		}
		for i := range rep.errs {
			rep.errs[i] = err
		}
	}
	return rep.errs
}

func (d *driver) Outage(string) error { return nil }

func (d *driver) Renew(ctx context.Context, hs []*core.Hold) []error {
	return d.many(ctx, "renew", d.acqs(hs), d.c.call, d.w.store.renew)
}

func (d *driver) Check(ctx context.Context, hs []*core.Hold) []error {
	return d.many(ctx, "check", d.acqs(hs), d.c.call, d.w.store.check)
}

func (d *driver) Release(ctx context.Context, h *core.Hold) error {
	a := d.acq(h.Request)
	d.begin("release", a)
	defer d.end("release", a)
	if d.w.flaw == slowRelease {
		time.Sleep(20 * time.Second)
	}
	apply := func() reply { return reply{err: d.w.store.leave(a, released)} }
	_, _, err := d.c.call(ctx, d.id(a, "release"), apply)
	if err == nil {
		d.w.mu.Lock()
		d.gone[a.nonce] = time.Now()
		d.w.mu.Unlock()
	}
	return d.releaseBadly(a, err)
}

func (d *driver) Abandon(ctx context.Context, r *backend.Request) error {
	a := d.acq(r)
	d.begin("abandon", a)
	defer d.end("abandon", a)
	if d.w.flaw == neverAbandons {
		return nil
	}
	_, _, err := d.c.call(ctx, d.id(a, "abandon"), func() reply { return reply{err: d.w.store.leave(a, abandoned)} })
	return err
}

func (d *driver) Inspect(ctx context.Context, name string) (backend.Info, error) {
	d.begin("inspect")
	defer d.end("inspect")
	rep, _, err := d.c.call(ctx, d.c.next("inspect"), func() reply { return reply{info: d.w.store.inspect(name)} })
	return rep.info, err
}

func (d *driver) List(ctx context.Context, _ string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		for _, name := range names {
			info, err := d.Inspect(ctx, name)
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

func (d *driver) Break(ctx context.Context, name string) error { return d.breakBy(ctx, d.c.call, name) }

func (d *driver) breakBy(ctx context.Context, send sender, name string) error {
	d.begin("break")
	defer d.end("break")
	_, _, err := send(ctx, d.c.next("break "+name), func() reply {
		d.w.store.breakLock(name)
		return reply{}
	})
	return err
}

// Settle and Land: nothing outlives its caller.
func (d *driver) Settle() {}
func (d *driver) Land()   {}

func (d *driver) Close() error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.closed || d.live > 0 && !d.w.bare() { // bare: what outlived its caller is ended by Close
		d.w.violation("driver of %s closed with %d calls in flight, closed before: %v", d.c.id, d.live, d.closed)
	}
	d.closed = true
	return nil
}
