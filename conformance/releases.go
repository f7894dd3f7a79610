package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/internal/core"
)

// releases is group B.
var releases = []Rule{
	{
		Name: "B1", What: "a second Unlock is ErrReleased and harmless",
		Why:   "A deferred Unlock after an explicit one must not free the next holder.",
		Check: secondUnlock,
	},
	{
		Name: "B2", What: "a late Unlock never touches the next holder",
		Why:   "The classic mistake of lock libraries: a slow holder frees a stranger's lock.",
		Needs: Needs{Link: true}, modes: true, Check: lateUnlock,
	},
	{
		Name: "B3", What: "Unlock with a cancelled ctx still releases",
		Why:   "The request's ctx is done when a handler's defers run.",
		Check: unlockDoneCtx,
	},
	{
		Name: "B4", What: "after Unlock the store shows it free",
		Why:   "A lock that only this library believes to be free is not.",
		Needs: Needs{Behind: true}, Check: storeShowsFree,
	},
	{
		Name: "B5", What: "the store is down: ErrUnavailable, and a later Unlock works",
		Why:   "A program must know that its unlock did not arrive, and be able to try again.",
		Needs: Needs{Link: true}, modes: true, Check: unlockWhileDown,
	},
	{
		Name:  "B6",
		What:  "an Unlock whose reply was lost, sent again after the next grant, frees nobody",
		Why:   "The retry of a release must not free the next holder.",
		modes: true, Check: releaseRepeated,
	},
	{
		Name: "B7", What: "Close frees every lease, even if one fails",
		Why:   "A program that ends must not leave its locks to their expiry.",
		Check: closeFrees,
	},
	{
		Name: "B8", What: "Unlock after a loss is ErrLost, never nil",
		Why:   "A job that overlapped with another must not look like a success.",
		Needs: Needs{Link: true}, modes: true, Check: unlockAfterLoss,
	},
	{
		Name: "B9", What: "a crowd of releases, each sent again later, is nil for each",
		Why:   "Replies get lost when much goes on, and then releases that went together are sent again one by one.",
		Check: crowdRepeated,
	},
}

func crowdRepeated(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	n := 120
	if e.traits.LeasePerConn {
		n = 30
	}
	same := nonce()[:4] // a store may sort the nonces that it remembers by their first digits
	take := func(who string) *core.Hold {
		r := e.Request(e.Name(), false)
		r.TTL, r.Nonce = ample, same+r.Nonce[4:]
		return must(acquire(ctx, d, r, who))
	}
	holds := make([]*core.Hold, n)
	for i := range holds {
		holds[i] = take(fmt.Sprintf("holder %d of %d", i+1, n))
	}
	check(together(n, func(i int) error {
		return release(ctx, d, holds[i], fmt.Sprintf("holder %d of %d at once", i+1, n))
	}))
	for range 5 {
		check(release(ctx, d, take("one alone"), "one alone"))
	}
	for i, h := range holds {
		check(release(ctx, d, h, fmt.Sprintf("holder %d of %d, sent again", i+1, n)))
	}
	return nil
}

func secondUnlock(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	old := must(try(ctx, a, name, "a free lock"))
	check(unlock(ctx, old, "first"))
	next := must(try(ctx, b, name, "after the unlock"))
	check(want(old.Unlock(ctx), fencelock.ErrReleased, "second Unlock"))
	check(want(old.Err(), fencelock.ErrReleased, "Err after Unlock"))
	check(held(ctx, a, name, "after the second Unlock of the old lease"))
	return unlock(ctx, next, "the next holder")
}

func lateUnlock(ctx context.Context, e *Env) error {
	a, link := must2(e.OpenThrough(ctx, e.short()))
	b := must(e.Open(ctx))
	name := e.Name()
	old := must(e.try(ctx, a, name, "a free lock"))
	// The release of the old holder is held up until the next one holds.
	link.Set(blackHole)
	late := running(func() error { return old.Unlock(ctx) })
	next := must(granted(ctx, locking(ctx, b, name), 3*e.TTL()+e.Slack(), "the next holder"))
	link.Set(passAll)
	err := <-late
	if !errors.Is(err, fencelock.ErrLost) && !errors.Is(err, fencelock.ErrUnavailable) {
		return fmt.Errorf("the late Unlock: got %v, want ErrLost or ErrUnavailable", err)
	}
	_ = old.Unlock(ctx)
	check(sleep(ctx, e.Slack()))
	c := must(e.Open(ctx))
	check(held(ctx, c, name, "after the late Unlock"))
	return unlock(ctx, next.lease, "the next holder")
}

func unlockDoneCtx(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	done, cancel := context.WithCancel(ctx)
	cancel()
	check(unlock(done, le, "with a cancelled ctx"))
	le = must(try(ctx, b, name, "after an Unlock with a cancelled ctx"))
	return unlock(ctx, le, "the next holder")
}

func storeShowsFree(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	look := func(want bool, when string) error {
		got, _, err := e.h.Store.Look(ctx, e.prefix, name)
		if err != nil || got != want {
			return fmt.Errorf("%s the store says held=%v (%v), want %v", when, got, err, want)
		}
		return nil
	}
	check(look(true, "while it is held,"))
	check(unlock(ctx, le, "the holder"))
	return look(false, "after Unlock,")
}

func unlockWhileDown(ctx context.Context, e *Env) error {
	a, link := must2(e.OpenThrough(ctx, fencelock.WithTTL(10*e.TTL())))
	b := must(e.Open(ctx))
	name := e.Name()
	le := must(e.try(ctx, a, name, "a free lock"))
	if e.traits.LeasePerConn {
		link.Set(blackHole) // a cut would end the lease: C5 has that
	} else {
		down(link)
	}
	check(want(le.Unlock(ctx), fencelock.ErrUnavailable, "Unlock while the store is out of reach"))
	link.Set(passAll)
	check(unlock(ctx, le, "once it is back"))
	le = must(try(ctx, b, name, "after the second Unlock"))
	return unlock(ctx, le, "the next holder")
}

func releaseRepeated(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	name := e.Name()
	first := e.Request(name, false)
	h := must(acquire(ctx, d, first, "the first"))
	check(release(ctx, d, h, "the first"))
	check(release(ctx, d, h, "the first, sent again"))
	next := must(acquire(ctx, d, e.exclusive(name, false), "the next"))
	check(release(ctx, d, h, "the first, sent again after the next grant"))
	if err := d.Abandon(ctx, first); err != nil && !errors.Is(err, backend.ErrLost) {
		return fmt.Errorf("Abandon of a released request: got %w, want nil or ErrLost", err)
	}
	if _, err := d.Acquire(ctx, e.exclusive(name, false)); !errors.Is(err, backend.ErrLocked) {
		return fmt.Errorf("after the repeated Release: Acquire by a third: got %v, want ErrLocked", err)
	}
	return release(ctx, d, next, "the next")
}

func closeFrees(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx, fencelock.WithTTL(30*time.Second)))
	const n = 20
	names := make([]string, n)
	leases := make([]*fencelock.Lease, n)
	for i := range names {
		names[i] = e.Name()
		leases[i] = must(try(ctx, a, names[i], "a free lock"))
	}
	// One of them is gone already: its release cannot succeed.
	check(want(b.Break(ctx, names[n/2]), nil, "Break"))
	check(inTime(ctx, "Close", 5*time.Second+e.Slack(), func() error {
		_ = a.Close() // may report the one
		return nil
	}))
	for i, name := range names {
		if leases[i].Err() == nil {
			return fmt.Errorf("lease %d of %d is still held after Close", i+1, n)
		}
		le := must(try(ctx, b, name, fmt.Sprintf("lock %d of %d after Close", i+1, n)))
		check(unlock(ctx, le, "the next holder"))
	}
	_, err := a.Mutex(e.Name()).TryLock(ctx)
	return want(err, fencelock.ErrClosed, "TryLock after Close")
}

func unlockAfterLoss(ctx context.Context, e *Env) error {
	a, link := must2(e.OpenThrough(ctx, e.short()))
	b := must(e.Open(ctx))
	name := e.Name()
	le := must(e.try(ctx, a, name, "a free lock"))
	link.Set(blackHole)
	must(ended(ctx, le, e.TTL()+e.Slack()))
	link.Set(passAll)
	check(want(le.Unlock(ctx), fencelock.ErrLost, "Unlock after the deadline"))
	// The same at the store: a driver that is asked to release what it has lost.
	d := e.caller(ctx)
	r := e.Request(e.Name(), false)
	h := must(acquire(ctx, d, r, "the holder"))
	check(want(b.Break(ctx, r.Name), nil, "Break"))
	return want(d.Release(ctx, h), backend.ErrLost, "Release of a lock that was broken")
}

// down makes the store unreachable: what is open is cut, what is new is refused.
func down(link Link) {
	link.Set(faultproxy.Mode{Refuse: true})
	link.Cut()
}

// noGhost checks that a grant whose caller gave up before the reply came is undone, long
// before its TTL.
func (e *Env) noGhost(ctx context.Context, a, b *fencelock.Locker, link Link) error {
	name := e.Name()
	link.Set(holdReplies)
	impatient, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	le, err := a.Mutex(name, fencelock.WithTTL(30*e.TTL())).TryLock(impatient)
	if err == nil {
		return fmt.Errorf("TryLock whose reply is held: got a lease with token %d, want an error", le.Token())
	}
	link.Set(passAll)
	return until(ctx, 5*time.Second+e.Slack(), "the grant of a caller that gave up is undone", freeFor(ctx, b, name))
}

// sentAgain checks at the driver that a request which is sent again has the effect of
// once, and of one that has ended none.
func (e *Env) sentAgain(ctx context.Context) error {
	d := e.caller(ctx)
	name := e.Name()
	holder, waiter := e.Request(name, false), e.exclusive(name, true)
	holder.TTL, waiter.TTL = 10*e.TTL(), 10*e.TTL()
	h := must(acquire(ctx, d, holder, "the holder"))
	if again, err := d.Acquire(ctx, holder); err != nil || again.Token != h.Token {
		return fmt.Errorf("Acquire sent again: got token %d, %w; want its own grant, token %d",
			again.Token, err, h.Token)
	}
	for range 2 { // it leaves its place behind, and finds it again
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		_, err := d.Acquire(short, waiter)
		cancel()
		check(want(err, context.DeadlineExceeded, "Acquire of a held lock, with Wait"))
	}
	if info, err := d.Inspect(ctx, name); err != nil || info.Waiters > 1 {
		return fmt.Errorf("a waiter that asked again: got %d waiters (%v), want 1", info.Waiters, err)
	}
	check(release(ctx, d, h, "the holder"))
	soon, cancel := context.WithTimeout(ctx, time.Second+e.Slack())
	defer cancel()
	h = must(acquire(soon, d, waiter, "the waiter, again"))
	check(release(ctx, d, h, "the waiter"))
	return e.arrivesLate(ctx)
}

// arrivesLate checks at the driver that a request which got lost on its way, was abandoned, and arrives after that is
// not granted.
func (e *Env) arrivesLate(ctx context.Context) error {
	d, link := e.callerThrough(ctx)
	lost := e.Request(e.Name(), false)
	lost.TTL = 10 * e.TTL()
	if _, err := d.Inspect(ctx, lost.Name); err != nil { // it is connected
		return fmt.Errorf("Inspect: %w", err)
	}
	link.Set(blackHole)
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	_, err := d.Acquire(short, lost)
	cancel()
	if err == nil {
		return errors.New("Acquire through a dead link: got a grant, want an error")
	}
	short, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
	_ = d.Abandon(short, lost) // it does not come through either, and is no reason to forget the Acquire
	cancel()
	short, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
	err = d.Break(short, lost.Name)
	cancel()
	if err == nil {
		return errors.New("Break through a dead link: got nil, want an error")
	}
	link.Cut()
	link.Set(passAll)
	check(abandoned(ctx, d, lost, 5*time.Second))
	_, err = d.Acquire(ctx, lost)
	return want(err, backend.ErrLost, "Acquire that arrives after its Abandon")
}
