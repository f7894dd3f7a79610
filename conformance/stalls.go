package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/internal/core"
)

// hostileStalls are rules K30 to K34: requests or the store stand still, the store is full, a wait is long.
var hostileStalls = []Rule{
	{
		Name: "K30",
		What: "a waiter whose turn passed while its requests were held up is not granted the lock beside the next",
		Why: "A request that takes a turn must look whether the turn is still " +
			"there, or two hold the lock.", Needs: Needs{Link: true}, Check: turnMissed,
	},
	{
		Name: "K31", What: "a network that stands still for four seconds ends no wait",
		Why: "A waiter is promised to ride out an outage of five seconds, " +
			"whatever its place in the store is tied to.", Needs: Needs{Link: true},
		Check: stallOfWaiter,
	},
	{
		Name: "K32", What: "a store that stands still for four seconds ends no wait and no lease",
		Why:   "A short pause of the server must not send a fleet of waiters home.",
		Needs: Needs{Server: true}, Alone: true, Check: stallOfStore,
	},
	{
		Name:  "K33",
		What:  "a store that is full keeps the leases, frees what is unlocked, and is not asked without end",
		Why:   "Calls that need no space must go on, or a full disk takes every lock with it.",
		Needs: Needs{Fill: true, Link: true}, Alone: true, Check: fullStore,
	},
	{
		Name: "K34", What: "a waiter that has waited for long is served before later ones",
		Why:   "A place that is kept up badly is lost while its owner waits, and others pass by.",
		Trait: noFIFO, Needs: Needs{Waiters: true}, Check: longWaits,
	},
}

// stallMost is an outage that a waiter rides out with a second to spare.
const stallMost = core.Patience - time.Second

// lined returns a holder's lease, with a Lock of each of ls waiting behind it, in this order and in the mode of e.
func (e *Env) lined(
	ctx context.Context, holder *fencelock.Locker, name string, ls ...*fencelock.Locker,
) (*fencelock.Lease, []<-chan result) {
	le := must(try(ctx, holder, name, "a free lock"))
	var line []<-chan result
	for i, l := range ls {
		line = append(line, e.locking(ctx, l, name))
		check(waiting(ctx, holder, name, i+1))
	}
	return le, line
}

func turnMissed(ctx context.Context, e *Env) error {
	a, c := must2(e.Two(ctx))
	ttl := 2 * e.TTL() // a grant of its last look is not too late to be believed
	b, link := must2(e.OpenThrough(ctx, fencelock.WithTTL(ttl)))
	name := e.Name()
	le, line := e.lined(ctx, a, name, b, c)
	second, third := line[0], line[1]
	// The push arrives, and the waiter's next request does not.
	link.Set(faultproxy.Mode{HoldRequests: true})
	check(sleep(ctx, 300*time.Millisecond)) // its requests of before are answered
	check(unlock(ctx, le, "the holder"))
	most := 3*e.traits.DeadWaiter + ttl + 10*time.Second + e.Slack()
	var next result
	select {
	case s := <-second: // its wait is one request, which was there already, or its patience is over
		link.Set(passAll)
		check(unlockIf(ctx, s.lease)) // an error is allowed
		r, err := granted(ctx, third, most, "the third")
		return errors.Join(err, unlockIf(ctx, r.lease))
	case next = <-third:
		if next.err != nil {
			return fmt.Errorf("the third, while the second is not heard: Lock: got %w, want a lease", next.err)
		}
	case <-time.After(most):
		return fmt.Errorf("the third, while the second is not heard: not granted within %v", most)
	}
	link.Set(passAll) // the second's request arrives
	told := false
	select {
	case s := <-second:
		if s.err == nil && next.lease.Err() == nil {
			return fmt.Errorf("a waiter whose turn had passed was granted the lock (token %d) "+
				"beside the next (token %d)", s.lease.Token(), next.lease.Token())
		}
		if errors.Is(s.err, fencelock.ErrLost) {
			return fmt.Errorf("a waiter whose turn had passed: Lock: got %w, though it never held", s.err)
		}
		told = true // an error is allowed
	case <-time.After(2 * time.Second):
	}
	check(live(next.lease, "the third"))
	check(held(ctx, a, name, "the third has it"))
	if err := unlock(ctx, next.lease, "the third"); err != nil || told {
		return err
	}
	select {
	case s := <-second:
		return unlockIf(ctx, s.lease) // an error is allowed
	case <-time.After(most):
		return errors.New("the waiter whose turn had passed got neither the lock nor an error")
	}
}

// unlockIf unlocks a lease if there is one: a Lock that may fail has returned.
func unlockIf(ctx context.Context, le *fencelock.Lease) error {
	if le == nil {
		return nil
	}
	return unlock(ctx, le, "the last")
}

func stallOfWaiter(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	for _, cut := range []bool{false, true} {
		b, link := must2(e.OpenThrough(ctx))
		stop := func() error { link.Set(blackHole); return nil }
		resume := func() error {
			if cut {
				link.Cut()
			}
			link.Set(passAll)
			return nil
		}
		part(fmt.Sprintf("connections cut at the end: %v", cut), func() error {
			return e.stall(ctx, stop, resume, a, b)
		})
	}
	return nil
}

func stallOfStore(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	b, c := must2(e.Two(ctx))
	return e.stall(ctx, e.h.Server.Pause, e.h.Server.Resume, a, b, c)
}

// stall stops something for stallMost while a holds a lock and the others wait for it: all of them go on as before.
func (e *Env) stall(
	ctx context.Context, stop, resume func() error, a *fencelock.Locker,
	waiters ...*fencelock.Locker,
) error {
	le, line := e.lined(ctx, a, e.Name(), waiters...)
	check(stop())
	err := sleep(ctx, stallMost)
	check(errors.Join(err, resume()))
	rest := merged(line...)
	select {
	case r := <-rest:
		return fmt.Errorf("a waiter after a stall of %v: Lock: got %w, want it to wait on", stallMost, r.err)
	case <-time.After(2 * time.Second):
	}
	check(unlock(ctx, le, "the holder after a stall"))
	for range line {
		check(turn(ctx, rest, 2*time.Second+2*e.traits.DeadWaiter+e.Slack(), "a waiter after a stall"))
	}
	return nil
}

func fullStore(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	through, link := must2(e.OpenThrough(ctx))
	names := []string{e.Name(), e.Name(), e.Name(), e.Name(), e.Name()}
	old := must(try(ctx, a, names[0], "a free lock"))
	check(want(old.Renew(ctx), nil, "Renew"))
	unrenewed := must(try(ctx, a, names[1], "a free lock"))
	fresh := must(try(ctx, a, names[2], "a free lock", e.kept()))
	waited, line := e.lined(ctx, a, names[3], b)
	must(cycle(ctx, through, e.Name(), "before")) // the reply to lose is the grant's
	link.LoseReplies(1)
	twice := must(granted(ctx, locking(ctx, through, names[4]), 5*time.Second, "Lock with its reply lost"))
	empty, err := e.h.Fill(ctx)
	if err != nil {
		return fmt.Errorf("the harness: %w", err)
	}
	full := true
	e.onClose(func() error {
		if full {
			return empty(context.WithoutCancel(ctx))
		}
		return nil
	})
	check(unlock(ctx, waited, "the store is full, and another waits"))
	for _, le := range []*fencelock.Lease{old, unrenewed, twice.lease} {
		check(unlock(ctx, le, "the store is full"))
		if info, err := b.Inspect(ctx, le.Name()); err != nil || info.Held {
			return fmt.Errorf("Inspect after an Unlock, the store is full: got %+v, %v; want it free", info, err)
		}
	}
	check(e.fewRequests(ctx, through, link))
	check(sleep(ctx, 2*e.Kept()))
	check(live(fresh, "a lease that was granted just before the store was full"))
	check(unlock(ctx, fresh, "the store is full"))
	full = false
	check(want(empty(ctx), nil, "the harness"))
	select {
	case r := <-line[0]: // its patience may be over
		if r.err != nil {
			check(want(r.err, fencelock.ErrUnavailable, "Lock while the store was full"))
		}
		check(unlockIf(ctx, r.lease))
	case <-time.After(5*time.Second + e.traits.DeadWaiter):
		return errors.New("the waiter got neither the lock nor an error while the store was full")
	}
	for _, name := range names {
		check(turn(ctx, locking(ctx, b, name), 5*time.Second, "once the store has space again"))
	}
	if e.h.Store == nil {
		return nil
	}
	return e.emptyWithin(ctx, 10*time.Second)
}

// fewRequests tries locks while the store is full. A request that it refuses is sent again now and then only. The store
// may grant a try or not.
func (e *Env) fewRequests(ctx context.Context, l *fencelock.Locker, link Link) error {
	const perTry, watched = 20, 3 * time.Second
	tries := e.count(10, 50, 50)
	before := link.Counts().Requests
	for range tries {
		le, err := l.Mutex(e.Name()).TryLock(ctx)
		if err != nil {
			continue
		}
		check(unlock(ctx, le, "granted while the store is full"))
	}
	check(sleep(ctx, watched))
	if sent := link.Counts().Requests - before; sent > int64(tries*perTry) {
		return fmt.Errorf("requests of %d tries in a store that is full, and in %v after them: "+
			"got %d, want at most %d each", tries, watched, sent, perTry)
	}
	return nil
}

func longWaits(ctx context.Context, e *Env) error {
	const n, apart, wait = 4, 800 * time.Millisecond, 7 * time.Second // the first has waited for so long at the end
	holder := must(e.Open(ctx))
	name := e.Name()
	le := must(try(ctx, holder, name, "a free lock"))
	began := time.Now()
	var line []<-chan result
	for i := range n {
		l := must(e.Open(ctx))
		line = append(line, locking(ctx, l, name))
		check(waiting(ctx, holder, name, i+1))
		check(sleep(ctx, apart))
	}
	check(sleep(ctx, wait-time.Since(began)))
	for i, ch := range line {
		check(unlock(ctx, le, "the one before"))
		r := must(granted(ctx, ch, 2*time.Second+e.Slack(),
			fmt.Sprintf("waiter %d of %d, in its turn after a long wait", i+1, n)))
		le = r.lease
	}
	return unlock(ctx, le, "the last")
}

// hostileStores are rules K5: the store refuses or hangs, and comes back.
var hostileStores = []Rule{
	{
		Name: "K5",
		What: "the store refuses, or hangs, and comes back: nothing is lost, Unlock works later, nothing is left",
		Why: "Stores fail in the middle of much work; a lock that is lost or left behind then " +
			"turns a hiccup into an incident.",
		// Alone: when the store is back, all connect to it at once, and others would wait for their turn.
		Needs: Needs{Link: true, Store: true}, Alone: true, Check: storeOutOfReach,
	},
}

// hiccup is how long the outages of this rule last: less than a waiter's patience, and than any lease.
const hiccup = 2 * time.Second

func storeOutOfReach(ctx context.Context, e *Env) error {
	for _, kind := range []struct {
		what string
		fail func(Link)
	}{
		{"refuses", down},
		{"hangs", func(l Link) { l.Set(blackHole) }},
	} {
		if e.traits.LeasePerConn && kind.what == "refuses" {
			continue // a cut ends such leases: C5 has that
		}
		a, link := must2(e.OpenThrough(ctx))
		c := e.contended(ctx, a)
		part(fmt.Sprintf("the store %s for %v", kind.what, hiccup), func() error {
			return e.hiccup(ctx, c, func() { kind.fail(link) }, func() { link.Set(passAll) })
		})
	}
	return nil
}

// hiccup makes the store fail for a while under much work of a, and checks the outcome of that work.
func (e *Env) hiccup(ctx context.Context, c *contended, fail, mend func()) error {
	const n = 10
	extra := make([]*fencelock.Lease, n)
	for i := range extra {
		extra[i] = must(try(ctx, c.a, e.Name(), "a free lock"))
	}
	tried := make([]string, 3*n)
	for i := range tried {
		tried[i] = e.Name()
	}
	fail()
	began := time.Now()
	results, tries := make([]error, n), make([]error, len(tried))
	var seen error
	var work sync.WaitGroup
	work.Go(func() { seen = c.seen(ctx) })
	for i, le := range extra {
		work.Go(func() {
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			results[i] = le.Unlock(short)
		})
	}
	for i, name := range tried {
		work.Go(func() {
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			le, err := c.a.Mutex(name).TryLock(short)
			if tries[i] = err; err == nil {
				_ = le.Unlock(ctx)
			}
		})
	}
	err := sleep(ctx, hiccup-time.Since(began))
	mend()
	check(err)
	work.Wait()
	check(seen)
	for _, err := range tries {
		if errors.Is(err, fencelock.ErrLocked) {
			return fmt.Errorf("TryLock of a free lock meanwhile: got %w, and nobody has it", err)
		}
	}
	for i, le := range extra {
		if results[i] == nil {
			continue
		}
		check(want(results[i], fencelock.ErrUnavailable, "Unlock meanwhile"))
		check(unlock(ctx, le, "a second Unlock, once the store is back"))
	}
	check(c.whole(ctx, e, "once the store is back"))
	for _, name := range tried {
		check(until(ctx, 5*time.Second+e.Slack(), "what was tried meanwhile is free", freeFor(ctx, c.b, name)))
	}
	return e.emptyWithin(ctx, 15*time.Second)
}

// seen returns an error if a lock that is held is said to be free, by a client that may not reach the store.
func (c *contended) seen(ctx context.Context) error {
	name := c.ours.Name()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if info, err := c.a.Inspect(short, name); err == nil && !info.Held {
		return fmt.Errorf("Inspect meanwhile of what is held: got %+v", info)
	}
	short, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	for info, err := range c.a.List(short, name) {
		if err != nil || info.Name == name {
			return nil
		}
	}
	return errors.New("List meanwhile: got neither what is held nor an error")
}

// hostileNodes are rules K1: the holder's own node hangs or is cut off together with it.
var hostileNodes = []Rule{
	{
		Name: "K1", What: "the member that a holder is connected to hangs with it, just after a renewal",
		Why:   "A member may confirm a renewal that the others have not heard of, and they free the lock too soon.",
		Needs: Needs{Member: true}, Alone: true, Check: memberHangs,
	},
}

func memberHangs(ctx context.Context, e *Env) error {
	b := must(e.Open(ctx, e.kept()))
	link, member := must2(e.h.Member(ctx))
	e.onClose(link.Close)
	for i := range e.count(3, 5, 10) {
		// Another client each time, which has learnt nothing from the trial before.
		a := must(e.open(ctx, Client{Prefix: e.prefix, Link: link}, e.kept()))
		part(fmt.Sprintf("trial %d", i+1), func() error { return e.memberHangs(ctx, a, b, link, member) })
	}
	return nil
}

// memberHangs lets a hold and b wait, and takes the member away.
func (e *Env) memberHangs(ctx context.Context, a, b *fencelock.Locker, link Link, member Server) error {
	le, line := e.lined(ctx, a, e.Name(), b)
	ch := line[0]
	for range 2 {
		check(renewed(ctx, le))
	}
	link.Set(blackHole)
	check(member.Pause())
	var r result
	var err error
	select {
	case <-le.Done():
		r, err = granted(ctx, ch, e.Kept()+e.Slack()+10*time.Second, "the waiter")
	case r = <-ch:
		if err = r.err; err == nil {
			err = fmt.Errorf("another client had the lock (token %d) %v before the holder's Deadline",
				r.lease.Token(), time.Until(le.Deadline()))
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	err = errors.Join(err, member.Resume())
	link.Cut()
	link.Set(passAll)
	check(err)
	return unlock(ctx, r.lease, "the waiter")
}

// renewed returns just after the next renewal.
func renewed(ctx context.Context, le *fencelock.Lease) error {
	for old := le.Deadline(); le.Deadline().Equal(old); {
		check(live(le, "while it waits for a renewal"))
		check(sleep(ctx, time.Millisecond))
	}
	return nil
}
