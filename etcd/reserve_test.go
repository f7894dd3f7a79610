package etcd_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// reserving is a request that asks for n more tokens.
func reserving(name string, nonce, n int) *backend.Request {
	r := request(name, nonce, 20*time.Second)
	r.Reserve = n
	return r
}

// after fails the test unless a grant's token is above all that the one before it had.
func after(t *testing.T, what string, before, got backend.Grant) {
	t.Helper()
	if last := before.Token + int64(before.Reserved); got.Token <= last {
		t.Errorf("%s: got token %d, want one above %d, the last of the grant before, "+
			"which was granted %d and %d more",
			what, got.Token, last, before.Token, before.Reserved)
	}
}

// reserves: a grant has the numbers that it asked for, and what comes after it, however it comes, is above all of them.
func reserves(t *testing.T, r *rig) {
	d, other := r.driver(t, r.url()), r.driver(t, r.url())
	last := hold(t, d, reserving("x", 1, 0))
	if last.Reserved != 0 {
		t.Errorf("a grant that asked for none: got %d reserved", last.Reserved)
	}
	must(t, d.Release(t.Context(), last))
	nonce := 1
	for _, tt := range []struct {
		what    string
		reserve int
		ends    func(h *core.Hold)
	}{
		{"after a release", 63, func(h *core.Hold) { must(t, d.Release(t.Context(), h)) }},
		{"after a release of one number", 1, func(h *core.Hold) { must(t, d.Release(t.Context(), h)) }},
		{"after a break", 63, func(h *core.Hold) { must(t, other.Break(t.Context(), "x")) }},
		{"after its end by another program", 63, func(h *core.Hold) {
			_, err := r.c.Revoke(t.Context(), r.lease(t, "x"))
			must(t, err)
		}},
		{"after a raise", 63, func(h *core.Hold) {
			must(t, other.Raise(t.Context(), h.Token+5))
			must(t, d.Release(t.Context(), h))
		}},
		{"after a raise of its own", 63, func(h *core.Hold) {
			must(t, d.RaiseHeld(t.Context(), h, h.Token+5))
			must(t, d.Release(t.Context(), h))
		}},
		{"after the base was lost", 63, func(h *core.Hold) {
			_, err := r.c.Delete(t.Context(), r.prefix+"~base")
			must(t, err)
			must(t, d.Release(t.Context(), h))
		}},
	} {
		for _, next := range []int{0, 63} {
			nonce += 2
			h := hold(t, d, reserving("x", nonce, tt.reserve))
			after(t, "before it ended "+tt.what, last.Grant, h.Grant)
			if h.Reserved != tt.reserve {
				t.Errorf("%s: got %d reserved, want %d", tt.what, h.Reserved, tt.reserve)
			}
			if again := hold(t, d, h.Request); again.Token != h.Token || again.Reserved != h.Reserved {
				t.Errorf("sent again: got token %d and %d, want %d and %d",
					again.Token, again.Reserved, h.Token, h.Reserved)
			}
			if s, err := other.Source(t.Context()); err != nil || s < h.Token+int64(h.Reserved) {
				t.Errorf("the source: got %d, %v, want no less than %d and %d more", s, err, h.Token, h.Reserved)
			}
			tt.ends(h)
			last = hold(t, other, reserving("x", nonce+1, next))
			after(t, tt.what, h.Grant, last.Grant)
			must(t, other.Release(t.Context(), last))
		}
	}
}

// reservesAfterExpiry: the holder dies and its lease ends by itself.
func reservesAfterExpiry(t *testing.T, r *rig) {
	d, other := r.driver(t, r.url()), r.driver(t, r.url())
	req := reserving("x", 1, 63)
	req.TTL, req.Auto = time.Second, false
	h := hold(t, d, req)
	next := reserving("x", 2, 0)
	next.Wait = true
	g, err := other.Acquire(within(t, 15*time.Second), next)
	must(t, err)
	if h.Reserved != 63 {
		t.Errorf("got %d reserved, want 63", h.Reserved)
	}
	after(t, "after its expiry", h.Grant, g)
	must(t, other.Release(t.Context(), &core.Hold{Request: next, Grant: g}))
}

// second makes a request wait behind the holder of its name, and returns what will have its grant.
func (r *rig) second(t *testing.T, d caller, next *backend.Request) <-chan backend.Grant {
	t.Helper()
	next.Wait = true
	granted := make(chan backend.Grant, 1)
	go func() {
		g, err := d.Acquire(t.Context(), next)
		if err != nil {
			t.Error(err)
		}
		granted <- g
	}()
	await(t, 10*time.Second, "it waits", func() bool { return len(r.queue(t, next.Name)) == 2 })
	return granted
}

// reservesOfWaiters: the next in the queue was there before the grant that reserves.
func reservesOfWaiters(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	h := hold(t, d, reserving("x", 1, 63))
	for i := range 6 {
		next := reserving("x", i+2, 63*(i%2))
		granted := r.second(t, d, next)
		must(t, d.Release(t.Context(), h))
		g := <-granted
		after(t, "a waiter", h.Grant, g)
		if g.Reserved != next.Reserve {
			t.Errorf("a waiter: got %d reserved, want %d", g.Reserved, next.Reserve)
		}
		h = &core.Hold{Request: next, Grant: g}
	}
	must(t, d.Release(t.Context(), h))
}

// reservesWithFloor: a floor behind the clock changes nothing; one that is ahead of it is exceeded,
// and nothing is reserved beyond it.
func reservesWithFloor(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	now := time.Now().UnixMicro()
	for i, tt := range []struct {
		floor backend.Token
		want  int
	}{{now - 1e6, 63}, {now + 3600e6, 0}, {7, 0}} {
		req := reserving("x", i+1, 63)
		req.Floor = tt.floor
		h := hold(t, d, req)
		if h.Token <= tt.floor || h.Reserved != tt.want {
			t.Errorf("floor %d: got token %d and %d reserved, want a greater token and %d",
				tt.floor, h.Token, h.Reserved, tt.want)
		}
		must(t, d.Release(t.Context(), h))
	}
}

// reservesWithinReach: a floor that is a little ahead of the clock is exceeded by the token, and
// there is room for a reserve all the same.
func reservesWithinReach(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	for i := range 20 {
		req := reserving("x", i+1, 63)
		req.Floor = time.Now().Add(2500 * time.Microsecond).UnixMicro()
		h := hold(t, d, req)
		if h.Token <= req.Floor || h.Reserved != 63 {
			t.Errorf("floor %d: got token %d and %d reserved, want a greater token and 63",
				req.Floor, h.Token, h.Reserved)
		}
		must(t, d.Release(t.Context(), h))
	}
}

// reservesInspected: Inspect shows the token of the grant, before and after a renewal has written
// it, whatever was raised since.
func reservesInspected(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	shows := func(when string, h *core.Hold) {
		t.Helper()
		info, err := d.Inspect(t.Context(), "x")
		must(t, err)
		if !info.Held || info.Token != h.Token || info.Owner != h.Owner {
			t.Errorf("Inspect %s: got %+v, want it held with token %d", when, info, h.Token)
		}
	}
	for i, reserve := range []int{63, 0, 5} {
		h := hold(t, d, reserving("x", i+1, reserve))
		shows("after the grant", h)
		must(t, d.Raise(t.Context(), h.Token+int64(i)*1e9))
		shows("after the base was raised", h)
		must(t, d.Renew(t.Context(), []*core.Hold{h})[0])
		r.noted(t, "x")
		shows("after a renewal", h)
		must(t, d.Release(t.Context(), h))
	}
	// Now the base is far ahead of the clock.
	h := hold(t, d, reserving("x", 100, 63))
	if h.Reserved != 0 {
		t.Errorf("with a base ahead of the clock: got %d reserved, want 0", h.Reserved)
	}
	shows("with a base ahead of the clock", h)
	must(t, d.Release(t.Context(), h))
}

// sentUnderAnOldLease: a grant under a lease that was confirmed long ago tells when the store was
// asked for it, in both ways to one.
func sentUnderAnOldLease(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	first := hold(t, d, reserving("x", 1, 0))
	check := func(what string, after backend.Instant, g backend.Grant) {
		t.Helper()
		if g.Asked.Sub(after) > 0 {
			t.Errorf("%s: the lease was confirmed for it: nothing was tested", what)
		}
		if early := after.Sub(g.Asked.Add(g.Sent)); early >= 0 {
			t.Errorf("%s: got a grant that was sent for %v before that was possible", what, early)
		}
	}
	began := backend.Now()
	check("free", began, hold(t, d, reserving("y", 2, 7)).Grant)

	granted := r.second(t, d, reserving("x", 3, 7))
	began = backend.Now()
	must(t, d.Release(t.Context(), first))
	check("waited for", began, <-granted)
}
