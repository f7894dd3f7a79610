package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
)

func grace(ctx context.Context, e *Env) error {
	b := must(e.Open(ctx))
	errs := make(chan error, 2)
	for _, renewed := range []bool{false, true} {
		name := e.Name()
		go func() { errs <- stopped(func() error { return e.graceOnce(ctx, b, name, renewed) }) }()
	}
	check(errors.Join(<-errs, <-errs))
	// An Unlock and a Break free it without grace.
	a := must(e.Open(ctx, e.kept(), fencelock.WithGrace(e.TTL())))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	check(unlock(ctx, le, "the holder"))
	next := must(try(ctx, b, name, "after an Unlock under WithGrace"))
	check(unlock(ctx, next, "the next"))
	must(try(ctx, a, name, "a free lock"))
	check(want(b.Break(ctx, name), nil, "Break"))
	r := must(granted(
		ctx, locking(ctx, b, name), e.TTL()/2+e.Slack(), "the next, after a Break under WithGrace",
	))
	return unlock(ctx, r.lease, "the next, after a Break under WithGrace")
}

// graceOnce lets a lease with a grace be lost, which was renewed before or not, while b waits for its lock.
func (e *Env) graceOnce(ctx context.Context, b *fencelock.Locker, name string, renewed bool) error {
	delay := e.Kept()
	// By hand: a renewal on its way would set the expiry anew.
	a, link := must2(e.OpenThrough(
		ctx, e.kept(), fencelock.WithGrace(delay), fencelock.WithManualRenew(),
	))
	le := must(try(ctx, a, name, "a free lock"))
	if renewed {
		check(want(le.Renew(ctx), nil, "Renew"))
	}
	next := locking(ctx, b, name)
	link.Set(blackHole)
	must(ended(ctx, le, e.Kept()+e.Slack()))
	if !e.traits.LeasePerConn { // a cut connection would end that lease for good, and with it its grace
		link.Cut()
		link.Set(passAll) // the old holder's clean-up must respect the grace too
	}
	r := must(granted(ctx, next, delay+e.Kept()+time.Second+e.Slack(), "the next"))
	if got := r.at.Sub(le.Deadline()); got < delay-e.traits.Resolution {
		return fmt.Errorf("granted %v after the old holder's Deadline (renewed before: %v), "+
			"want at least the grace, %v", got, renewed, delay)
	}
	link.Cut()
	link.Set(passAll)
	return unlock(ctx, r.lease, "the next")
}

func ownTTL(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx, fencelock.WithManualRenew()))
	name := e.Name()
	long := must(try(ctx, a, name, "a free lock", fencelock.WithTTL(10*e.TTL())))
	short := must(try(ctx, a, e.Name(), "a free lock", e.short()))
	if _, err := ended(ctx, short, e.TTL()+e.Slack()); err != nil {
		return fmt.Errorf("the short lease: %w", err)
	}
	check(sleep(ctx, e.TTL()/2))
	check(live(long, "the long lease"))
	b := must(e.Open(ctx))
	check(held(ctx, b, name, "the long lease"))
	check(unlock(ctx, long, "the long lease"))
	check(e.longestTTL(ctx, a, b))
	if e.h.Link == nil {
		return nil
	}
	// And of a client that is never heard of again.
	a, link := must2(e.OpenThrough(ctx))
	long = must(try(ctx, a, e.Name(), "a free lock"))
	short = must(try(ctx, a, e.Name(), "a free lock", e.short()))
	link.Set(blackHole)
	next := locking(ctx, b, short.Name())
	r := must(granted(ctx, next, 2*e.TTL()+time.Second+e.Slack(), "the next, after a short lease beside a long one"))
	check(held(ctx, b, long.Name(), "the long lease"))
	return unlock(ctx, r.lease, "the next")
}

// longestTTL asks for the longest TTL and grace that there are. A store that cannot count so far refuses them.
func (e *Env) longestTTL(ctx context.Context, a, b *fencelock.Locker) error {
	const year = 365 * 24 * time.Hour
	opts := []fencelock.Option{fencelock.WithTTL(year)}
	if e.traits.Grace {
		opts = append(opts, fencelock.WithGrace(year))
	}
	le, err := a.Mutex(e.Name(), opts...).TryLock(ctx)
	if errors.Is(err, fencelock.ErrInvalid) {
		e.Notef("a TTL of a year: %v", err)
		return nil
	}
	check(want(err, nil, "TryLock with a TTL of a year"))
	for _, when := range []string{"granted for a year", "renewed for a year"} {
		check(held(ctx, b, le.Name(), when))
		info, err := b.Inspect(ctx, le.Name())
		if left := info.ExpiresIn; err != nil || left > 0 && (left < year-time.Hour || left > 2*year+time.Hour) {
			return fmt.Errorf("Inspect of a lock that was %s: got %+v, %v", when, info, err)
		}
		check(want(le.Renew(ctx), nil, "Renew for a year"))
	}
	if left := time.Until(le.Deadline()); left < year/2 {
		return fmt.Errorf("the Deadline of a lease for a year is %v away", left)
	}
	check(unlock(ctx, le, "the holder for a year"))
	return unlock(ctx, must(try(ctx, b, le.Name(), "after a lease for a year")), "the next")
}

func maxHold(ctx context.Context, e *Env) error {
	most := e.TTL() * 4 / 3
	for _, opts := range [][]fencelock.Option{nil, {fencelock.WithManualRenew()}} {
		// The TTL is so much longer that its expiry cannot pass for the freeing.
		a, b := must2(e.Two(ctx, append(opts, fencelock.WithTTL(4*e.TTL()))...))
		name := e.Name()
		began := time.Now()
		le := must(try(ctx, a, name, "a free lock", fencelock.WithMaxHold(most)))
		grantedBy := time.Now()
		next := locking(ctx, b, name)
		if len(opts) > 0 {
			check(sleep(ctx, e.TTL()/2))
			check(want(le.Renew(ctx), nil, "Renew"))
		}
		told := must(ended(ctx, le, 2*e.TTL()+e.Slack()))
		check(lostBy(le, "at the bound", fencelock.MaxHold))
		if le.Deadline().After(grantedBy.Add(most)) {
			return fmt.Errorf("the Deadline lies %v after the grant, want at most %v",
				le.Deadline().Sub(grantedBy), most)
		}
		if got := told.Sub(began); got < most/2 {
			return fmt.Errorf("ended after %v, want about %v", got, most)
		}
		r := must(granted(ctx, next, time.Second+e.Slack(), "the next, after the bound"))
		check(unlock(ctx, r.lease, "the next"))
	}
	return nil
}

func minHold(ctx context.Context, e *Env) error {
	least := e.TTL()
	for _, w := range []struct {
		when   string
		closes bool
		ttl    time.Duration
		most   time.Duration
	}{
		// The TTL is so much longer that its expiry cannot pass for the freeing.
		{"after an Unlock", false, 4 * least, 2*least + e.Slack()},
		{"after an Unlock and a Close", true, least, 2*least + time.Second + e.Slack()},
	} {
		a, b := must2(e.Two(ctx, fencelock.WithTTL(w.ttl)))
		name := e.Name()
		began := time.Now()
		le := must(try(ctx, a, name, "a free lock", fencelock.WithMinHold(least)))
		by := time.Now()
		check(unlock(ctx, le, "the first"))
		if w.closes {
			check(want(a.Close(), nil, "Close"))
		}
		check(held(ctx, b, name, w.when))
		r := must(granted(ctx, locking(ctx, b, name), w.most, "the next, "+w.when))
		if kept := r.at.Sub(began); kept < least-e.traits.Resolution-time.Millisecond {
			return fmt.Errorf("%s: kept others out for %v, want at least %v", w.when, kept, least)
		}
		took := r.at.Sub(by).Round(time.Millisecond)
		e.Notef("%s: kept others out for %v, of %v asked for", w.when, took, least)
		check(unlock(ctx, r.lease, "the next"))
	}
	return nil
}

func acquireCtxEnds(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx, e.kept()))
	name := e.Name()
	first := must(try(ctx, b, name, "a free lock"))
	acquire, cancel := context.WithCancel(ctx)
	defer cancel()
	ch := locking(acquire, a, name)
	check(waiting(ctx, b, name, 1))
	check(unlock(ctx, first, "the first holder"))
	r := must(granted(ctx, ch, time.Second+e.Slack(), "the waiter"))
	cancel()
	check(sleep(ctx, e.Kept()*3/2))
	check(live(r.lease, "after the acquire ctx ended"))
	check(held(ctx, b, name, "after the acquire ctx ended"))
	return unlock(ctx, r.lease, "the holder")
}

func lateGrant(ctx context.Context, e *Env) error {
	a, link := must2(e.OpenThrough(ctx, e.short()))
	b := must(e.Open(ctx))
	must(cycle(ctx, a, e.Name(), "before")) // a held first reply must be the grant
	name := e.Name()
	link.Set(holdReplies)
	late := calling(ctx, a.Mutex(name).TryLock)
	check(sleep(ctx, e.TTL()+e.Slack()))
	link.Set(passAll)
	r := <-late
	if r.err == nil {
		left := r.lease.Deadline().Sub(r.at)
		alone := held(ctx, b, name, "handed out late")
		_ = r.lease.Unlock(ctx)
		if alone != nil {
			return alone
		}
		if left <= 0 {
			return fmt.Errorf("handed out %v after its own deadline", -left)
		}
		e.Notef("asked again: granted with %v left", left.Round(time.Millisecond))
	} else if err := want(r.err, fencelock.ErrUnavailable, "TryLock with a late reply"); err != nil {
		return err
	}
	// Given back, or undone: nothing is left.
	check(until(ctx, time.Second+e.TTL()+e.Slack(), "the late grant is given back",
		freeFor(ctx, b, name)))
	return e.noGhost(ctx, a, b, link)
}
