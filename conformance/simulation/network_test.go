package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/backend"
)

var (
	errReset   = errors.New("connection reset by peer")
	errTimeout = errors.New("i/o timeout")
)

// trip is what becomes of one request and its reply.
type trip struct {
	there, back time.Duration
	lost        bool          // on its way there
	silent      bool          // its reply is lost
	told        bool          // a loss is seen at once, as a reset connection
	again       time.Duration // it is delivered a second time so much later; 0: it is not
}

// trip draws what becomes of a message.
func (c *client) trip(id string) trip {
	w, r := c.w, c.w.fate("trip", id)
	t := trip{
		there: between(r, 200*time.Microsecond, 15*time.Millisecond),
		back:  between(r, 200*time.Microsecond, 15*time.Millisecond),
	}
	t.told = r.IntN(2) == 0
	late := []time.Duration{0, 700 * time.Millisecond, 2 * w.plan.ttl, 2 * w.plan.ttl, 0}[w.plan.temper]
	if late == 0 {
		return t
	}
	switch r.IntN(24) {
	case 0:
		t.lost = true
	case 1, 2:
		t.silent = true
	case 3, 4:
		t.again = between(r, time.Millisecond, late)
	case 5:
		t.there += between(r, 0, late)
	case 6:
		t.back += between(r, 0, late)
	case 7: // overtaken by what comes after it
		t.there += between(r, 0, late/10)
	}
	if is, _ := has(c.faults, w.at(), slow); is {
		t.there += between(r, 0, 2*w.plan.ttl)
		t.back += between(r, 0, 2*w.plan.ttl)
	}
	is, _ := has(c.faults, w.at(), cut, cutThere)
	t.lost = t.lost || is
	is, _ = has(c.faults, w.at(), cut, cutBack)
	t.silent = t.silent || is
	return t
}

// send is one request to the store and the wait for its reply.
func (c *client) send(ctx context.Context, id string, apply func() reply) (reply, error) {
	c.stall()
	return c.sendBy(ctx, c.trip(id), id, apply)
}

// sendBy is send with what becomes of the request.
func (c *client) sendBy(ctx context.Context, t trip, id string, apply func() reply) (reply, error) {
	w := c.w
	answer := make(chan reply, 1)
	failed := make(chan error, 1)
	fail := func() {
		if t.told {
			failed <- errReset
		}
	}
	w.mu.Lock()
	if t.lost || t.silent || t.again > 0 || t.there+t.back > 500*time.Millisecond {
		c.ill(max(t.there+t.back, t.there+t.again) + 2*time.Second)
	}
	w.mu.Unlock()
	var deliver func(answers, swallowed bool)
	deliver = func(answers, swallowed bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if h, is := w.hung(); is && !swallowed {
			s := c.swallow(h, fmt.Sprint(id, answers))
			t.silent = t.silent || s.silent
			t.back += s.back
			w.note("%s: the store hangs, %v", id, s)
			switch {
			case s.never:
				return
			case s.later > 0:
				time.AfterFunc(s.later, func() { deliver(answers, true) })
				return
			}
		}
		if w.down() {
			w.note("%s: not delivered, the store is down", id)
			c.ill(2 * time.Second)
			if answers {
				fail()
			}
			return
		}
		w.store.late = swallowed
		rep := apply()
		w.store.late = false
		w.note("%s: %s", id, rep)
		w.look()
		is, _ := has(c.faults, w.at(), cut, cutBack)
		switch {
		case !answers:
		case t.silent || is:
			c.ill(2 * time.Second)
			time.AfterFunc(t.back, fail)
		default:
			time.AfterFunc(t.back, func() { answer <- rep })
		}
	}
	switch {
	case t.lost:
		time.AfterFunc(t.there, fail)
	default:
		time.AfterFunc(t.there, func() { deliver(true, false) })
		if t.again > 0 {
			time.AfterFunc(t.there+t.again, func() { deliver(false, false) })
		}
	}
	defer c.stall()
	if _, is := w.hung(); is && w.flaw == hungLate {
		long, cancel := context.WithTimeout(w.ctx, 30*time.Second)
		defer cancel()
		ctx = long
	}
	select {
	case rep := <-answer:
		return rep, nil
	case err := <-failed:
		return reply{}, err
	case <-ctx.Done():
		return reply{}, ctx.Err()
	}
}

// intake is what becomes of a request that the store has taken in while it hangs.
type intake struct {
	never  bool          // it is not applied
	later  time.Duration // it is applied so much later; 0: at once
	silent bool          // it is not answered
	back   time.Duration // by how much its answer is late
}

// swallow draws it; w.mu is held.
func (c *client) swallow(h hang, id string) intake {
	w := c.w
	var s intake
	left, r := h.to-w.at(), w.fate("swallow", id)
	switch r.IntN(3) {
	case 0:
		s.back = left + between(r, 0, w.plan.ttl) // applied, and only the answer waits
	case 1:
		s.later = left + between(r, 0, []time.Duration{50 * time.Millisecond, w.plan.ttl}[r.IntN(2)])
		s.back = between(r, 0, w.plan.ttl)
	case 2:
		s.never = true
	}
	s.silent = r.IntN(3) == 0
	c.ill(left + 2*w.plan.ttl + 2*time.Second)
	return s
}

// hung reports whether the store hangs.
func (w *world) hung() (hang, bool) {
	at := w.at()
	for _, h := range w.plan.hangs {
		if at >= h.from && at < h.to {
			return h, true
		}
	}
	return hang{}, false
}

// call sends a request that is about no try.
func (c *client) call(ctx context.Context, id string, apply func() reply) (reply, backend.Instant, error) {
	return c.callAbout(ctx, nil, id, apply)
}

// callAbout sends a request, and once more if the connection broke or the answer took long.
func (c *client) callAbout(
	ctx context.Context, a *acq, id string, apply func() reply,
) (rep reply, asked backend.Instant, err error) {
	for try := range 2 {
		most := time.Duration(try+1) * 700 * time.Millisecond
		if c.w.plan.patient {
			most = c.w.plan.longest
		}
		limited, cancel := context.WithTimeout(ctx, most)
		asked = backend.Now()
		c.stall()
		t := c.trip(fmt.Sprintf("%s.%d", id, try))
		if a != nil {
			a.sends++
			if !a.r.Wait { // no connection delivers twice by itself, and forget is for what was sent twice
				t.again = 0
			}
		}
		rep, err = c.sendBy(limited, t, fmt.Sprintf("%s.%d", id, try), apply)
		cancel()
		if err == nil {
			return rep, asked, rep.err
		}
		if ctx.Err() != nil {
			return rep, asked, ctx.Err()
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = errTimeout
		}
	}
	return rep, asked, err
}

// once sends a request, and no copy of it: a connection does not deliver twice by itself.
func (c *client) once(
	ctx context.Context, id string, apply func() reply,
) (reply, backend.Instant, error) {
	asked := backend.Now()
	c.stall()
	t := c.trip(id)
	t.again = 0
	rep, err := c.sendBy(ctx, t, id, apply)
	if err == nil {
		err = rep.err
	}
	return rep, asked, err
}

// push sends what the store says by itself; it may be lost.
func (c *client) push(id string, deliver func()) {
	t := c.trip("push " + id)
	is, _ := has(c.faults, c.w.at(), cut, cutBack)
	if h, hung := c.w.hung(); hung { // it speaks again afterwards
		t.there += h.to - c.w.at()
		c.ill(t.there + 2*time.Second)
	}
	if t.lost || t.silent || is {
		c.w.note("push to %s is lost", id)
		c.ill(2 * time.Second)
		return
	}
	for _, after := range []time.Duration{t.there, t.again} {
		if after == 0 {
			continue
		}
		time.AfterFunc(after, func() {
			if is, end := has(c.faults, c.w.at(), pause); is { // it lies in the socket
				time.Sleep(end - c.w.at())
			}
			deliver()
		})
	}
}

// stall stands still while the client does.
func (c *client) stall() {
	for {
		is, end := has(c.faults, c.w.at(), pause)
		if !is {
			return
		}
		time.Sleep(end - c.w.at())
	}
}

// stood is for how long the client stood still since then.
func (c *client) stood(since time.Time) time.Duration {
	var sum time.Duration
	from, to := since.Sub(c.w.began), c.w.at()
	for _, f := range c.faults {
		if f.kind == pause {
			sum += max(min(f.to, to)-max(f.from, from), 0)
		}
	}
	return sum
}

// ill: the client's network is not itself for so long from now. w.mu is held.
func (c *client) ill(d time.Duration) {
	if at := time.Now().Add(d); at.After(c.trouble) {
		c.trouble = at
	}
}

// String renders a reply for the log.
func (r reply) String() string {
	switch {
	case r.each != nil:
		return fmt.Sprint(r.each)
	case r.errs != nil:
		return fmt.Sprint(r.errs)
	case r.err != nil:
		return r.err.Error()
	case r.token != 0:
		return fmt.Sprintf("granted %d", r.token)
	}
	return "ok"
}
