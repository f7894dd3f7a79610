package file

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// How often a waiter looks at the latest while the lock is held, and how long it
// stays in the queue without a look: with a socket, and without.
const (
	pushFloor = 5 * time.Second
	pushLife  = 8 * time.Second // the floor, the jitter of backend.Wait, and a busy machine
	pollFloor = 50 * time.Millisecond
	pollLife  = 2 * time.Second
)

// Acquire implements [backend.Driver].
func (d *Driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, err
	}
	d.ears.expect(r) // first: it may be broken the moment it is granted
	g, err := d.acquire(ctx, r)
	if err != nil {
		d.ears.forget(r.Nonce)
	}
	return g, err
}

func (d *Driver) acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if !r.Wait {
		g, _, err := d.look(ctx, r, nil)
		return g, err
	}
	wake := d.ears.wait(r.Nonce)
	defer d.ears.leave(r.Nonce)
	var g backend.Grant
	queue := false // not at first: a free lock needs neither a socket nor the queue
	err := backend.Wait(ctx, wake, func(ctx context.Context) (bool, time.Duration, error) {
		var q *queueing
		if queue {
			q = newQueueing(d.ears.open())
		}
		var next time.Duration
		var err error
		g, next, err = d.look(ctx, r, q)
		if errors.Is(err, backend.ErrLocked) {
			queue = true
			return false, next, nil // the first look says 0: join the queue at once
		}
		return err == nil, 0, err
	})
	return g, err
}

// queueing is how a waiter waits.
type queueing struct {
	ear         string // its socket's file name; empty: it polls
	floor, life time.Duration
}

func newQueueing(ear string) *queueing {
	if ear == "" {
		return &queueing{"", pollFloor, pollLife}
	}
	return &queueing{ear, pushFloor, pushLife}
}

// look takes the lock if it is free for r. If not, it returns ErrLocked and, for one
// that waits, after how long to look again; q is nil for one that does not
// join the queue.
func (d *Driver) look(ctx context.Context, r *backend.Request, q *queueing) (backend.Grant, time.Duration, error) {
	b := d.bucket(r.Name)
	for {
		a := attempt{driver: d, request: r, queueing: q}
		if err := b.update(ctx, a.run); err != nil {
			return backend.Grant{}, 0, err
		}
		// A free lock is someone's who should be taking it; if that one is dead, look again.
		if a.err == nil || !d.pass(ctx, b, r.Name, a.heirs, r.Nonce) {
			return a.grant, a.next, a.err
		}
	}
}

// attempt is one look at a bucket's state.
type attempt struct {
	driver   *Driver
	request  *backend.Request
	queueing *queueing

	grant backend.Grant
	next  time.Duration
	err   error
	heirs heirs
}

// run is for bucket.update.
func (a *attempt) run(st *state, at backend.Instant, now int64) bool {
	r, prefix := a.request, a.driver.prefix
	if st.marked(r.Nonce) != nil {
		a.err = backend.ErrLost // it was released, broken or abandoned before
		return false
	}
	changed := false
	e := st.find(prefix, r.Name)
	if e != nil {
		changed = e.settle(now, r.Nonce)
	}
	switch {
	case e.ours(r.Nonce):
		// Sent again: the reply was lost.
		e.hold.until = now + int64(r.TTL+r.Grace)
		a.grant = backend.Grant{Token: e.hold.token, Asked: at}
		return true
	case e == nil || e.hold == nil && (len(e.queue) == 0 || e.queue[0].nonce == r.Nonce):
		gated, refused := backend.Admit(st.gatesOf(prefix), r)
		if refused == nil {
			a.grant.Ungated = r.Phase != "" && !gated
			return a.take(st, at, now) || changed
		}
		a.err = refused
		if e != nil {
			changed = e.drop(r.Nonce, now) || changed
			a.heirs = e.heirs()
		}
		return changed
	}
	a.err = backend.ErrLocked
	if a.queueing != nil {
		changed = a.queue(e, now) || changed
	}
	a.heirs = e.heirs()
	return changed
}

// take grants the lock.
func (a *attempt) take(st *state, at backend.Instant, now int64) bool {
	r := a.request
	token, ok := st.next(r.Floor)
	if !ok {
		a.err = backend.Invalid("a token above %d and the floor %d is not below 2^53: no larger ones are possible", st.counter, r.Floor)
		return false
	}
	reserved := min(backend.Reserve(r, token, time.Now()), int(maxToken-token))
	st.counter = token + backend.Token(reserved)
	e := st.entry(a.driver.prefix, r.Name)
	e.drop(r.Nonce, now)
	e.hold = &hold{
		nonce: r.Nonce, owner: r.Owner, ear: a.driver.ears.address(),
		token: token, until: now + int64(r.TTL+r.Grace),
	}
	if r.Phase == backend.PhaseBoth {
		e.hold.both = r.Move
	}
	a.grant.Token, a.grant.Reserved, a.grant.Asked = token, reserved, at
	return true
}

// queue takes or keeps the request's place, and says when to look again.
func (a *attempt) queue(e *entry, now int64) bool {
	q := a.queueing
	i := e.position(a.request.Nonce)
	changed := i < 0
	if changed {
		i = len(e.queue)
		e.queue = append(e.queue, waiter{nonce: a.request.Nonce})
	}
	w := &e.queue[i]
	// One that polls does not write at every look.
	if changed || w.ear != q.ear || w.until-now < int64(q.life)/2 {
		w.ear, w.until, changed = q.ear, now+int64(q.life), true
	}
	switch {
	case e.hold == nil: // until the first one's time to take it is over
		a.next = time.Duration(e.free-now) + claim
	case i == 0:
		a.next = time.Duration(e.hold.until - now)
	default: // the first one looks then
		a.next = time.Duration(e.hold.until-now) + claim
	}
	a.next = min(max(a.next, time.Millisecond), q.floor)
	return changed
}

// pass tells the first of a free lock's waiters to take it, and the second to
// watch that it does. Those whose process is gone are dropped; it reports whether
// there were any. me is the nonce of the caller's own request.
func (d *Driver) pass(ctx context.Context, b *bucket, name string, h heirs, me string) (dropped bool) {
	for h.first.nonce != "" {
		dead := ""
		switch {
		case d.ears.say(sayTake, h.first.nonce, h.first.ear):
			dead = h.first.nonce
		case h.second.nonce != "" && h.second.nonce != me && d.ears.say(sayWatch, h.second.nonce, h.second.ear):
			dead = h.second.nonce
		default:
			return dropped
		}
		err := b.update(ctx, func(st *state, _ backend.Instant, now int64) bool {
			h = heirs{}
			e := st.find(d.prefix, name)
			if e == nil || !e.drop(dead, now) {
				return false
			}
			e.settle(now, me)
			h = e.heirs()
			return true
		})
		if err != nil {
			return dropped // the floor timers do it later
		}
		dropped = true
		if h.first.nonce == me {
			return true
		}
	}
	return dropped
}
