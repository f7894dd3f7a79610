package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/internal/core"
)

// hostileResends are rules K10, K20 and K25: requests that are sent a second time, after a pause, or after a wait.
var hostileResends = []Rule{
	{
		Name: "K10", What: "an Acquire sent again after a pause is trusted no longer than the store keeps it",
		Why: "The first reply was lost, the second one is counted from its own request: a " +
			"store that kept the first expiry would let another in.",
		Needs: Needs{Store: true}, modes: true, Check: resentIsKept,
	},
	{
		Name: "K25", What: "an Acquire that was sent twice is undone whole: the copy that arrives last takes nothing",
		Why:   "A slow first copy that arrives after the lock was freed would hold it for a TTL, for nobody.",
		Needs: Needs{Wire: true}, Check: undoneWhole,
	},
	{
		Name: "K20",
		What: "a driver that sends a try twice by itself undoes it whole: the late first copy takes nothing",
		Why: "A resend that succeeds is soon forgotten; its first copy may still be on its " +
			"way, and would hold a lock that was released.",
		Needs: Needs{Wire: true}, Check: sentTwiceByItself,
	},
}

func resentIsKept(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	name := e.Name()
	first, alone, waiter := e.Request(name, false), e.exclusive(name, false), e.Request(name, true)
	first.TTL, alone.TTL, waiter.TTL = 10*e.TTL(), 10*e.TTL(), 10*e.TTL()
	h := e.keeps(ctx, d, must(acquire(ctx, d, first, "the first")), "of a free lock")
	check(release(ctx, d, h, "the first"))
	h = must(acquire(ctx, d, alone, "the holder"))
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	_, err := d.Acquire(short, waiter)
	cancel()
	check(want(err, context.DeadlineExceeded, "Acquire of a held lock, with Wait"))
	check(release(ctx, d, h, "the holder"))
	soon, cancel := context.WithTimeout(ctx, time.Second+e.Slack())
	defer cancel()
	h = e.keeps(ctx, d, must(acquire(soon, d, waiter, "the waiter, again")), "after a wait")
	return release(ctx, d, h, "the waiter")
}

// keeps sends the request of a hold again, after a pause, and compares how long the new grant is trusted with how long
// the store keeps it.
func (e *Env) keeps(ctx context.Context, d core.Caller, h *core.Hold, when string) *core.Hold {
	check(sleep(ctx, e.TTL())) // a tenth of its TTL, and many times the margin
	asked := backend.Now()
	again := must(acquire(ctx, d, h.Request, "the same, sent again "+when))
	if again.Token != h.Token {
		check(fmt.Errorf("%s: Acquire sent again: got token %d, want its own, %d", when, again.Token, h.Token))
	}
	if !again.Asked.IsZero() {
		asked = again.Asked
	}
	span := h.TTL
	if again.Max > 0 {
		span = min(span, again.Max)
	}
	held, expires, err := e.h.Store.Look(ctx, e.prefix, h.Name)
	looked := backend.Now() // the store's answer is of a moment before this, however long the look took
	if err != nil || !held {
		check(fmt.Errorf("%s: a look at the store: got held %v, %v; want it held", when, held, err))
	}
	// The margin as the engine takes it.
	trust := span - max(20*time.Millisecond, h.TTL/50, e.traits.Margin) - looked.Sub(asked)
	if expires > 0 && trust > expires+e.traits.Resolution {
		check(fmt.Errorf("%s: Acquire sent again: trusted for %v more, and the store keeps it for %v",
			when, trust, expires))
	}
	return again
}

func undoneWhole(ctx context.Context, e *Env) error {
	for _, end := range []string{"Release", "Abandon"} {
		part("ended by "+end, func() error { return e.lateCopy(ctx, end) })
	}
	return nil
}

// lateCopy sends a request whose first copy stays under way for a while, sends it again, ends it,
// and looks whether the first copy takes the lock when it arrives.
func (e *Env) lateCopy(ctx context.Context, end string) error {
	d, link := e.callerThrough(ctx)
	other := e.caller(ctx)
	const late = 3 * time.Second
	r := e.Request(e.Name(), false)
	r.TTL = ample
	// It is connected, and the store knows its scripts.
	check(release(ctx, d, must(acquire(ctx, d, e.Request(e.Name(), false), "the first")), "the first"))
	began := time.Now()
	link.Set(faultproxy.Mode{Delay: late})
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	_, err := d.Acquire(short, r)
	cancel()
	if err == nil {
		return errors.New("Acquire over a slow way: got a grant, want an error")
	}
	link.Set(passAll)
	// The second copy goes another way if the store's client gives up a connection that has not answered.
	soon, cancel := context.WithTimeout(ctx, late/2)
	g, err := d.Acquire(soon, r)
	if err == nil && end == "Release" {
		err = d.Release(soon, &core.Hold{Request: r, Grant: g})
	} else {
		err = d.Abandon(soon, r)
	}
	cancel()
	if took := time.Since(began); err != nil || took > late-500*time.Millisecond {
		e.Notef("%s: the copies came in order (after %v: %v)", end, took.Round(time.Millisecond), err)
	}
	if err != nil {
		check(abandoned(ctx, d, r, late+5*time.Second))
	}
	check(sleep(ctx, time.Until(began.Add(late+time.Second+e.Slack()))))
	if info, err := other.Inspect(ctx, r.Name); err != nil || info.Held {
		return fmt.Errorf("after the late copy: got %+v, %v; want the lock free", info, err)
	}
	next := must(acquire(ctx, other, e.Request(r.Name, false), "another, after the late copy"))
	return release(ctx, other, next, "another, after the late copy")
}

// abandoned abandons a request, again and again until the store has heard of it.
func abandoned(ctx context.Context, d core.Caller, r *backend.Request, most time.Duration) error {
	return until(ctx, most, "Abandon", func() (bool, error) {
		err := d.Abandon(ctx, r)
		return err == nil || errors.Is(err, backend.ErrLost), nil
	})
}

// sentTwiceByItself delays the first copy of a try, and no later one. A driver that waits for that
// copy instead is not caught, which is no mistake.
func sentTwiceByItself(ctx context.Context, e *Env) error {
	d, link := e.callerThrough(ctx)
	other := e.caller(ctx)
	// It is connected, and the store knows its scripts.
	check(release(ctx, d, must(acquire(ctx, d, e.Request(e.Name(), false), "the first")), "the first"))
	const late = 4 * time.Second
	r := e.Request(e.Name(), false)
	r.TTL = ample
	began, before := time.Now(), link.Counts().Requests
	link.Set(faultproxy.Mode{Delay: late})
	soon, cancel := context.WithTimeout(ctx, late-time.Second)
	defer cancel()
	var h *core.Hold
	got := running(func() error { h = must(acquire(soon, d, r, "the holder")); return nil })
	check(sleep(ctx, 250*time.Millisecond)) // its first copy is on its way
	link.Set(passAll)
	if err := <-got; err != nil {
		e.Notef("not sent again within %v: %v", time.Since(began).Round(time.Millisecond), err)
		return abandoned(ctx, d, r, late+5*time.Second)
	}
	check(release(ctx, d, h, "the holder"))
	check(sleep(ctx, time.Until(began.Add(late+500*time.Millisecond+e.Slack()))))
	e.Notef("requests that arrived: %d", link.Counts().Requests-before)
	if info, err := other.Inspect(ctx, r.Name); err != nil || info.Held {
		return fmt.Errorf("after the late first copy: got %+v, %v; want the lock free", info, err)
	}
	return nil
}
