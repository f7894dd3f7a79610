package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// leases is group C.
var leases = []Rule{
	{Name: "C1", What: "a lock expires without release", Why: "A dead holder must not hold for ever.", Check: expires},
	{
		Name: "C2", What: "held for many TTLs by renewal",
		Why:   "A lease that is lost while its holder works well is no lease.",
		modes: true, Check: renewedLong,
	},
	{
		Name: "C3", What: "renewed by hand, three times",
		Why:   "A program that paces itself needs the full TTL from each renewal.",
		modes: true, Check: renewedByHand,
	},
	{
		Name: "C4", What: "a renewal after release, expiry or re-grant changes nothing, also for those beside it",
		Why: "A renewal that revives a lost lock makes two holders, and so does one that passes over those " +
			"behind a lost one.",
		modes: true, Check: renewTooLate,
	},
	{
		Name:  "C5",
		What:  "lost replies and cut connections keep the lease, or end it at once where it is a connection",
		Why:   "One lost packet must not throw away a lock that is ours.",
		Needs: Needs{Link: true}, modes: true, Check: rideOutFaults,
	},
	{
		Name: "C6", What: "no renewal after Unlock",
		Why:   "A renewal that overtakes the unlock makes a lock that nobody can free.",
		Needs: Needs{Link: true, Store: true}, Check: noRenewalAfterUnlock,
	},
	{
		Name: "C7", What: "the Deadline is never later than the store's expiry",
		Why:   "A holder that trusts longer than the store keeps others out overlaps with the next.",
		Needs: Needs{Behind: true}, Check: deadlineFirst,
	},
	{
		Name: "C8", What: "WithGrace keeps others out after a loss",
		Why:   "A lock delay gives the old holder's last writes time to arrive.",
		Needs: Needs{Link: true}, Trait: func(t backend.Traits) string {
			if !t.Grace {
				return "Traits.Grace is false"
			}
			return ""
		}, modes: true, Check: grace,
	},
	{
		Name: "C9", What: "each lease has its own TTL",
		Why:   "One short lease must not shorten a long one.",
		modes: true, Check: ownTTL,
	},
	{
		Name: "C10", What: "WithMaxHold ends a hold",
		Why:   "Only a bounded hold stops a stuck holder that renews and renews.",
		Check: maxHold,
	},
	{
		Name: "C11", What: "the end of the acquire ctx ends nothing",
		Why:   "The ctx of the call that locked is over long before the work is.",
		modes: true, Check: acquireCtxEnds,
	},
	{
		Name: "C12", What: "a grant that comes after its own deadline is not handed out",
		Why:   "A lease that is over when its holder gets it was never one.",
		Needs: Needs{Link: true}, Check: lateGrant,
	},
	{
		Name: "C13", What: "grants and renewals count from their send, not from their answer",
		Why:   "The store counts from the request: a holder that counts from a late answer overlaps with the next.",
		Needs: Needs{Link: true}, modes: true, Check: countsFromSend,
	},
	{
		Name: "C14", What: "WithMinHold keeps others out after an Unlock, and after a Close",
		Why: "A job that is faster than the clocks of its hosts agree runs on each of them.",
		Trait: func(t backend.Traits) string {
			if !t.MinHold {
				return "Traits.MinHold is false"
			}
			return ""
		}, Needs: Needs{Told: true}, Check: minHold,
	},
}

func expires(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	l := must(e.Open(ctx))
	r := e.Request(e.Name(), false)
	r.Auto = false
	began := time.Now()
	must(acquire(ctx, d, r, "one that is never heard of again"))
	got := must(granted(ctx, locking(ctx, l, r.Name), 2*e.TTL()+time.Second+e.Slack(), "a waiter"))
	took := got.at.Sub(began)
	if took < e.TTL()-e.traits.Resolution-time.Millisecond {
		return fmt.Errorf("granted %v after the acquire, want no sooner than the TTL, %v", took, e.TTL())
	}
	e.Notef("granted %v after the dead holder's acquire (TTL %v)", took.Round(time.Millisecond), e.TTL())
	return unlock(ctx, got.lease, "the waiter")
}

func renewedLong(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx, e.kept()))
	name := e.Name()
	le := must(e.try(ctx, a, name, "a free lock"))
	token, last := le.Token(), le
	if e.mode != backend.Exclusive {
		last = must(e.try(ctx, a, name, "beside another of the same client", fencelock.WithOwner("the last")))
	}
	for range 8 {
		check(sleep(ctx, e.Kept()/2))
		check(live(le, "a renewed lease"))
		check(live(last, "another renewed lease"))
		check(held(ctx, b, name, "renewed"))
	}
	if le.Token() != token {
		return fmt.Errorf("token after renewals: got %d, want %d", le.Token(), token)
	}
	check(unlock(ctx, le, "after four TTLs"))
	if last == le {
		return nil
	}
	check(held(ctx, b, name, "renewed, and the other one is gone"))
	return unlock(ctx, last, "the last, after four TTLs")
}

func renewedByHand(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx, e.kept(), fencelock.WithManualRenew()))
	name := e.Name()
	le := must(e.try(ctx, a, name, "a free lock"))
	for i := range 3 {
		check(sleep(ctx, e.Kept()*4/10)) // the rest is for a machine that stalls
		before := le.Deadline()
		check(want(le.Renew(ctx), nil, fmt.Sprintf("Renew %d", i+1)))
		if !le.Deadline().After(before) {
			return fmt.Errorf("Renew %d did not move the Deadline", i+1)
		}
	}
	check(sleep(ctx, e.Kept()*5/10))
	check(held(ctx, b, name, "renewed by hand, half a TTL after the last time"))
	if _, err := ended(ctx, le, e.Kept()+e.Slack()); err != nil {
		return fmt.Errorf("without a renewal: %w", err)
	}
	return lostBy(le, "without a renewal", fencelock.Expired)
}

func renewTooLate(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	b := must(e.Open(ctx))
	// Released.
	one := e.Request(e.Name(), false)
	h := must(acquire(ctx, d, one, "the first"))
	check(release(ctx, d, h, "the first"))
	check(want(d.Renew(ctx, []*core.Hold{h})[0], backend.ErrLost, "Renew after Release"))
	if info, err := b.Inspect(ctx, one.Name); err != nil || info.Held {
		return fmt.Errorf("Renew after Release: Inspect: got %+v, %v; want it free", info, err)
	}
	// Expired, and granted again.
	two := e.Request(e.Name(), false)
	two.Auto = false
	h = must(acquire(ctx, d, two, "the second"))
	check(e.besideLost(ctx, d, b)) // which takes a TTL and some
	check(want(d.Renew(ctx, []*core.Hold{h})[0], backend.ErrLost, "Renew after expiry"))
	le := must(try(ctx, b, two.Name, "after the expiry and a late renewal"))
	check(want(le.Renew(ctx), nil, "Renew of the next holder")) // a grant may be a short one until then
	check(want(d.Renew(ctx, []*core.Hold{h})[0], backend.ErrLost, "Renew after a re-grant"))
	info, err := b.Inspect(ctx, two.Name)
	if err != nil || info.Token != le.Token() || info.ExpiresIn > 0 && info.ExpiresIn < ample/2 {
		return fmt.Errorf("Renew after a re-grant: Inspect: got %+v, %v; want token %d, kept for its own TTL, %v",
			info, err, le.Token(), ample)
	}
	return unlock(ctx, le, "the next holder, after a stranger's renewal")
}

// besideLost renews two locks together, of which the first was broken. The other is held for longer than it was granted
// for.
func (e *Env) besideLost(ctx context.Context, d core.Caller, b *fencelock.Locker) error {
	ttl, began := e.TTL()+e.Slack(), time.Now()
	sure := ttl - e.traits.Resolution // a grant lasts at least so long
	hs := make([]*core.Hold, 2)
	for i := range hs {
		r := e.Request(e.Name(), false)
		r.TTL, r.Auto = ttl, false
		hs[i] = must(acquire(ctx, d, r, fmt.Sprintf("number %d of two", i+1)))
	}
	check(b.Break(ctx, hs[0].Name))
	check(sleep(ctx, sure*3/4))
	renewed := time.Now()
	errs := d.Renew(ctx, hs)
	late := time.Since(began) > sure
	check(sleep(ctx, ttl+e.traits.Resolution+100*time.Millisecond-time.Since(began)))
	check(want(errs[0], backend.ErrLost, "Renew of two, of one that was broken"))
	err := want(errs[1], nil, "Renew beside one that was broken")
	if err == nil {
		err = held(ctx, b, hs[1].Name, "renewed beside one that was broken")
	}
	if late || time.Since(renewed) > sure {
		e.Notef("the machine is too busy to renew two locks in time")
		return nil
	}
	check(err)
	return release(ctx, d, hs[1], "number 2 of two")
}

func rideOutFaults(ctx context.Context, e *Env) error {
	a, link := must2(e.OpenThrough(ctx, fencelock.WithTTL(2*e.Kept())))
	held := e.heldThroughFaults
	if e.traits.LeasePerConn {
		held = e.endedByCut
	}
	check(held(ctx, a, link))
	// An acquire and a release whose replies were lost.
	link.LoseReplies(1)
	name := e.Name()
	got := must(granted(ctx, e.locking(ctx, a, name), 5*time.Second, "Lock with its reply lost"))
	link.LoseReplies(1)
	if err := got.lease.Unlock(ctx); err != nil {
		if !errors.Is(err, fencelock.ErrUnavailable) {
			return fmt.Errorf("an Unlock with its reply lost: got %w, want nil or ErrUnavailable", err)
		}
		check(unlock(ctx, got.lease, "again, after a lost reply"))
	}
	return e.sentAgain(ctx)
}

// heldThroughFaults checks that leases outlive lost replies, cut connections and a short outage.
func (e *Env) heldThroughFaults(ctx context.Context, a *fencelock.Locker, link Link) error {
	ttl := 2 * e.Kept() // as for D4
	le := must(e.try(ctx, a, e.Name(), "a free lock"))
	hand := must(e.try(ctx, a, e.Name(), "a free lock", fencelock.WithManualRenew(), fencelock.WithTTL(ample)))
	for round, fault := range []func(){
		func() { link.LoseReplies(1) },
		link.Cut,
		func() { down(link); time.AfterFunc(ttl/4, func() { link.Set(passAll) }) },
	} {
		fault()
		check(sleep(ctx, ttl*7/10))
		check(live(le, fmt.Sprintf("after fault %d of 3", round+1)))
	}
	// A renewal whose reply was lost was applied or not; sent again it is nil.
	link.LoseReplies(1)
	if err := hand.Renew(ctx); err != nil && !errors.Is(err, fencelock.ErrUnavailable) {
		return fmt.Errorf("Renew with its reply lost: got %w, want nil or ErrUnavailable", err)
	}
	check(want(hand.Renew(ctx), nil, "Renew after a lost reply"))
	return errors.Join(unlock(ctx, le, "after all faults"), unlock(ctx, hand, "after all faults"))
}

// endedByCut checks, for a backend whose lease is a connection, that its end is told at once and frees the lock, that
// replies which are only late keep it, and that the end of one touches no other.
func (e *Env) endedByCut(ctx context.Context, a *fencelock.Locker, link Link) error {
	b := must(e.Open(ctx, e.kept()))
	bystander := must(try(ctx, b, e.Name(), "a free lock"))
	for what, fault := range map[string]func(Link){
		"a lost reply":     func(l Link) { l.LoseReplies(1) },
		"a cut connection": Link.Cut,
	} {
		// A client for each: one that still tidies up after its loss would lose the reply to that.
		c, own := must2(e.OpenThrough(ctx, e.kept()))
		le := must(try(ctx, c, e.Name(), "a free lock"))
		fault(own) // and the next renewal, or the connection's own end, shows it
		if _, err := ended(ctx, le, e.Kept()/2+e.Slack()); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		check(lostBy(le, what, fencelock.SessionLost))
		check(turn(ctx, locking(ctx, b, le.Name()), time.Second+e.Slack(), "the next, after "+what))
	}
	le := must(try(ctx, a, e.Name(), "a free lock"))
	link.Set(holdReplies)
	time.AfterFunc(e.Kept()/2, func() { link.Set(passAll) })
	check(sleep(ctx, e.Kept()*3/2))
	return errors.Join(unlock(ctx, le, "after late replies"), unlock(ctx, bystander, "the bystander"))
}

func noRenewalAfterUnlock(ctx context.Context, e *Env) error {
	a, link := must2(e.OpenThrough(ctx, e.kept()))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	check(sleep(ctx, e.Kept()/2))
	check(unlock(ctx, le, "the holder"))
	before := link.Counts().Requests
	for range 6 {
		check(sleep(ctx, e.Kept()/2))
		if held, _, err := e.h.Store.Look(ctx, e.prefix, name); err != nil || held {
			return fmt.Errorf("after Unlock the store says held=%v (%v), want free", held, err)
		}
	}
	// The upkeep of an idle connection is a few requests; renewals would be nine, of each store.
	sent := link.Counts().Requests - before
	e.Notef("requests in 3 TTLs after Unlock: %d", sent)
	if sent > idle*int64(max(e.h.Stores, 1)) {
		return fmt.Errorf("requests in 3 TTLs after Unlock: got %d, want none but the connection's upkeep", sent)
	}
	return nil
}

func deadlineFirst(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx, e.kept()))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	for i := range 6 {
		left := time.Until(le.Deadline())
		looked := time.Now()
		held, expires, err := e.h.Store.Look(ctx, e.prefix, name)
		if err != nil || !held {
			return fmt.Errorf("look %d: the store says held=%v (%v), want held", i+1, held, err)
		}
		// The store's answer is at least the time that was left when it was asked.
		if trust := left - time.Since(looked); expires > 0 && trust > expires+e.traits.Resolution {
			return fmt.Errorf("look %d: the Deadline is %v away, the store's expiry "+
				"%v: trusted for too long", i+1, trust, expires)
		}
		check(sleep(ctx, e.Kept()/4))
	}
	return unlock(ctx, le, "the holder")
}

func grace(ctx context.Context, e *Env) error {
	b := must(e.Open(ctx))
	ways := []string{"granted", "renewed", "waited for"}
	check(together(len(ways), func(i int) error { return e.graceOnce(ctx, b, ways[i]) }))
	// An Unlock and a Break free it without grace.
	a := must(e.Open(ctx, e.kept(), fencelock.WithGrace(e.TTL())))
	name := e.Name()
	le := must(e.try(ctx, a, name, "a free lock"))
	check(unlock(ctx, le, "the holder"))
	next := must(try(ctx, b, name, "after an Unlock under WithGrace"))
	check(unlock(ctx, next, "the next"))
	must(e.try(ctx, a, name, "a free lock"))
	check(want(b.Break(ctx, name), nil, "Break"))
	return turn(ctx, locking(ctx, b, name), e.TTL()/2+e.Slack(), "the next, after a Break under WithGrace")
}

// graceOnce lets a lease with a grace be lost, to which there are several ways, while b waits for its lock.
func (e *Env) graceOnce(ctx context.Context, b *fencelock.Locker, way string) error {
	name, delay := e.Name(), e.Kept()
	// By hand: a renewal on its way would set the expiry anew.
	a, link := must2(e.OpenThrough(ctx, e.kept(), fencelock.WithGrace(delay), fencelock.WithManualRenew()))
	var le *fencelock.Lease
	if way == "waited for" {
		first, line := e.lined(ctx, b, name, a)
		le = passed(ctx, first, line[0])
	} else {
		le = must(e.try(ctx, a, name, "a free lock"))
	}
	if way == "renewed" {
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
		return fmt.Errorf("granted %v after the Deadline of the old holder, whose lease was %s, "+
			"want at least the grace, %v", got, way, delay)
	}
	link.Cut()
	link.Set(passAll)
	return unlock(ctx, r.lease, "the next")
}

func ownTTL(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx, fencelock.WithManualRenew()))
	name := e.Name()
	long := must(e.try(ctx, a, name, "a free lock", fencelock.WithTTL(10*e.TTL())))
	short := must(e.try(ctx, a, e.Name(), "a free lock", e.short()))
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
	long = must(e.try(ctx, a, e.Name(), "a free lock"))
	short = must(e.try(ctx, a, e.Name(), "a free lock", e.short()))
	link.Set(blackHole)
	next := locking(ctx, b, short.Name())
	r := must(granted(ctx, next, 2*e.TTL()+time.Second+e.Slack(), "the next, after a short lease beside a long one"))
	check(held(ctx, b, long.Name(), "the long lease"))
	return unlock(ctx, r.lease, "the next")
}

// longestTTL asks for the longest TTL and grace that there are. A store that cannot count so far refuses them.
func (e *Env) longestTTL(ctx context.Context, a, b *fencelock.Locker) error {
	for _, ttl := range []time.Duration{365 * 24 * time.Hour, 24 * time.Hour, 10 * time.Minute} {
		opts, kept := []fencelock.Option{fencelock.WithTTL(ttl)}, ttl
		if e.traits.Grace {
			opts, kept = append(opts, fencelock.WithGrace(ttl)), 2*ttl
		}
		_, try := methods(e.mode, a, e.Name(), opts...)
		le, err := try(ctx)
		if errors.Is(err, fencelock.ErrInvalid) {
			e.Notef("a TTL of %v: %v", ttl, err)
			continue
		}
		check(want(err, nil, fmt.Sprintf("a try with a TTL of %v", ttl)))
		for _, when := range []string{"granted", "renewed"} {
			check(held(ctx, b, le.Name(), when))
			info, err := b.Inspect(ctx, le.Name())
			if left := info.ExpiresIn; err != nil || left > 0 && (left < kept-time.Minute || left > kept+time.Hour) {
				return fmt.Errorf("Inspect of a lock that was %s for %v: got %+v, %v", when, ttl, info, err)
			}
			check(want(le.Renew(ctx), nil, "Renew of a long lease"))
		}
		if left := time.Until(le.Deadline()); left < ttl/2 {
			return fmt.Errorf("the Deadline of a lease for %v is %v away", ttl, left)
		}
		check(unlock(ctx, le, "the holder of a long lease"))
		return unlock(ctx, must(take(ctx, b.Mutex(le.Name()).TryLock, "after a long lease")), "the next")
	}
	return nil
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
		check(turn(ctx, next, time.Second+e.Slack(), "the next, after the bound"))
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
	ch := e.locking(acquire, a, name)
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
