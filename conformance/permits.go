package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

func permitsBound(ctx context.Context, e *Env) error {
	const n = 3
	ls := e.several(ctx, 3)
	name := e.Name()
	var now, most atomic.Int64
	lock := func(i int) locks { return ls[i%len(ls)].Semaphore(name, n).Acquire }
	check(throng(ctx, e, 4*len(ls), lock, func(int, *fencelock.Lease) error {
		defer now.Add(-1)
		out := now.Add(1)
		if out > n {
			return fmt.Errorf("%d permits of %d are out", out, n)
		}
		most.Store(max(most.Load(), out))
		return sleep(ctx, 2*time.Millisecond)
	}))
	var out []*fencelock.Lease
	for i := range n {
		out = append(out, must(take(ctx, ls[i].Semaphore(name, n).TryAcquire, fmt.Sprintf("permit %d of %d", i+1, n))))
	}
	check(refused(ctx, ls[0].Semaphore(name, n).TryAcquire, "one more than there are"))
	for _, le := range out {
		check(unlock(ctx, le, "a permit"))
	}
	e.Notef("up to %d of %d at once", most.Load(), n)
	return nil
}

func deadPermit(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	// Its renewals are to reach no other hold.
	renewing := must(e.Open(ctx, fencelock.WithTTL(2*e.TTL())))
	other := must(e.Open(ctx))
	name := e.Name()
	live := must(take(ctx, renewing.Semaphore(name, 2).TryAcquire, "a live holder"))
	r := e.permit(name, 2)
	began := time.Now()
	must(acquire(ctx, d, r, "one that is never heard of again"))
	waiter := calling(ctx, other.Semaphore(name, 2).Acquire)
	got := must(granted(ctx, waiter, 2*e.TTL()+time.Second+e.Slack(), "a waiter"))
	if took := got.at.Sub(began); took < e.TTL()-e.traits.Resolution-time.Millisecond {
		return fmt.Errorf("granted %v after the dead holder's acquire, want no sooner than the TTL, %v", took, e.TTL())
	}
	check(live.Err())
	check(unlock(ctx, got.lease, "the waiter"))
	return unlock(ctx, live, "the live holder")
}

// permit is a request for one of n by a bare driver, which nobody renews.
func (e *Env) permit(name string, n int) *backend.Request {
	r := e.Request(name, false)
	r.Mode, r.Limit, r.Auto = backend.Permit, n, false
	return r
}

func leastBinds(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 3)
	name := e.Name()
	of3 := must(take(ctx, ls[0].Semaphore(name, 3).TryAcquire, "the first, of three"))
	of2 := must(take(ctx, ls[1].Semaphore(name, 2).TryAcquire, "the second, of two"))
	check(refused(ctx, ls[2].Semaphore(name, 3).TryAcquire, "a third beside one that asked for two"))
	check(unlock(ctx, of2, "the one of two"))
	second := must(take(ctx, ls[1].Semaphore(name, 3).TryAcquire, "the second, once that is gone"))
	check(refused(ctx, ls[2].Semaphore(name, 2).TryAcquire, "one of two beside two of three"))
	third := must(take(ctx, ls[2].Semaphore(name, 3).TryAcquire, "the third of three"))
	for _, le := range []*fencelock.Lease{of3, second, third} {
		check(unlock(ctx, le, "one of three"))
	}
	return nil
}

func slots(ctx context.Context, e *Env) error {
	const n = 3
	ls := e.several(ctx, n)
	name := e.Name()
	greatest := make([]fencelock.Token, n)
	held := make([]*fencelock.Lease, n)
	for round := range n + 4 {
		i := round % n
		var le *fencelock.Lease
		if round < n {
			le = must(take(ctx, ls[i].Semaphore(name, n).TryAcquire, "a permit that is free"))
		} else {
			next := calling(ctx, ls[i].Semaphore(name, n).Acquire)
			check(waiting(ctx, ls[i], name, 1))
			le = passed(ctx, held[i], next)
			held[i] = nil
		}
		s := le.Slot()
		if s < 0 || s >= n {
			return fmt.Errorf("got slot %d, want 0 to %d", s, n-1)
		}
		if slices.ContainsFunc(held, func(o *fencelock.Lease) bool { return o != nil && o.Slot() == s }) {
			return fmt.Errorf("two live permits have slot %d", s)
		}
		check(e.above(le.Token(), greatest[s], fmt.Sprintf("of slot %d", s)))
		greatest[s], held[i] = le.Token(), le
	}
	for _, le := range held {
		check(unlock(ctx, le, "a permit"))
	}
	return e.manySlots(ctx, ls[0])
}

// manySlots takes many permits of one name, each of which has a slot of its own.
func (e *Env) manySlots(ctx context.Context, l *fencelock.Locker) error {
	n := e.count(70, 200, backend.MostPermits)
	if e.traits.LeasePerConn {
		n = 10
	}
	n = min(n, e.traits.Permits)
	s := l.Semaphore(e.Name(), n)
	out := map[int]*fencelock.Lease{}
	for i := range n {
		le := must(take(ctx, s.TryAcquire, fmt.Sprintf("permit %d of %d", i+1, n)))
		if twin := out[le.Slot()]; twin != nil || le.Slot() < 0 || le.Slot() >= n {
			return fmt.Errorf("permit %d of %d: got slot %d (out already: %v)", i+1, n, le.Slot(), twin != nil)
		}
		out[le.Slot()] = le
	}
	check(refused(ctx, s.TryAcquire, fmt.Sprintf("one more than %d", n)))
	info, err := l.Inspect(ctx, out[0].Name())
	if err != nil || info.Holders != n || info.Holds != nil && len(info.Holds) != min(n, backend.MostHolds) {
		return fmt.Errorf("with %d permits out: got %d holders, of whom %d are shown, %w",
			n, info.Holders, len(info.Holds), err)
	}
	return atOnce(n, func(slot int) error { return unlock(ctx, out[slot], "one of many permits") })
}

func permitAgain(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	l := must(e.Open(ctx))
	name := e.Name()
	other := must(acquire(ctx, d, e.permit(name, 3), "another"))
	r := e.permit(name, 3)
	h := must(acquire(ctx, d, r, "a request"))
	again := must(acquire(ctx, d, r, "the same request again"))
	if h.Token != again.Token || h.Slot != again.Slot {
		return fmt.Errorf("got slot %d and token %d, then %d and %d", h.Slot, h.Token, again.Slot, again.Token)
	}
	third := must(take(ctx, l.Semaphore(name, 3).TryAcquire, "the third permit"))
	check(unlock(ctx, third, "the third permit"))
	check(release(ctx, d, h, "its holder"))
	return release(ctx, d, other, "the other")
}

func permitAbandoned(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	name := e.Name()
	held := must(acquire(ctx, d, e.permit(name, 2), "a holder"))
	r := e.permit(name, 2)
	must(acquire(ctx, d, r, "a request"))
	unheard := *r // the driver knows no answer to this one: a copy of it may be under way
	check(want(d.Abandon(ctx, &unheard), nil, "Abandon"))
	if _, err := d.Acquire(ctx, r); !errors.Is(err, backend.ErrLost) {
		return fmt.Errorf("a late copy of an abandoned request: got %v, want %w", err, backend.ErrLost)
	}
	next := must(acquire(ctx, d, e.permit(name, 2), "the next, of the permit that came free"))
	check(release(ctx, d, next, "the next"))
	return release(ctx, d, held, "the holder")
}

func releasedTwice(ctx context.Context, e *Env) error {
	for _, m := range e.modes() {
		if m != backend.Exclusive {
			part(m.String(), func() error { return e.releasedTwice(ctx, m) })
		}
	}
	return nil
}

func (e *Env) releasedTwice(ctx context.Context, m backend.Mode) error {
	d, l := e.caller(ctx), must(e.Open(ctx))
	name := e.Name()
	take := func(who string) *core.Hold {
		r := e.permit(name, 2)
		r.Mode = m
		return must(acquire(ctx, d, r, who))
	}
	first, second := take("the first"), take("the second")
	check(release(ctx, d, first, "the first"))
	check(release(ctx, d, first, "the first, again"))
	check(held(ctx, l, name, "one of two released twice"))
	third := take("the next")
	if m == backend.Permit {
		check(refused(ctx, l.Semaphore(name, 2).TryAcquire, "one more than two"))
	}
	check(release(ctx, d, third, "the next"))
	return release(ctx, d, second, "the second")
}

func wokenCounts(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	silent, link := must2(e.OpenThrough(ctx))
	l := must(e.Open(ctx))
	name := e.Name()
	first := must(acquire(ctx, d, e.permit(name, 2), "the first"))
	second := must(acquire(ctx, d, e.permit(name, 2), "the second"))
	line := calling(ctx, silent.Semaphore(name, 2).Acquire)
	check(waiting(ctx, l, name, 1))
	link.Set(blackHole)
	check(release(ctx, d, first, "the first"))
	check(refused(ctx, l.Semaphore(name, 2).TryAcquire, "a try for the permit that was kept for a waiter"))
	link.Set(passAll)
	got := must(granted(ctx, line, e.soon()+e.traits.DeadWaiter, "the waiter"))
	check(refused(ctx, l.Semaphore(name, 2).TryAcquire, "a try beside two permits of two"))
	check(unlock(ctx, got.lease, "the waiter"))
	return release(ctx, d, second, "the second")
}
