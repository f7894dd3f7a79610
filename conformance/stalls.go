package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/internal/core"
)

// hostileStalls are rules K30 to K34: what happens while requests, or the store, stand still, the
// store is full, or a wait is long.
var hostileStalls = []Rule{
	{
		Name: "K30",
		What: "a waiter whose turn passed while its requests were held up is not granted " +
			"the lock beside the next",
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
		Name: "K33",
		What: "a store that is full keeps the leases, frees what is unlocked, " +
			"and is not asked without end",
		Why:   "What needs no space must go on, or a full disk takes every lock with it.",
		Needs: Needs{Fill: true, Link: true}, Alone: true, Check: fullStore,
	},
	{
		Name: "K34", What: "who has waited for long is served before who came later",
		Why:   "A place that is kept up badly is lost while its owner waits, and others pass by.",
		Trait: noFIFO, Check: longWaits,
	},
}

// stallMost is an outage that a waiter rides out with a second to spare.
const stallMost = core.Patience - time.Second

// lined returns a holder's lease, with a Lock of each of ls waiting behind it, in this order.
func lined(
	ctx context.Context, holder *fencelock.Locker, name string, ls ...*fencelock.Locker,
) (*fencelock.Lease, []<-chan result, error) {
	le, err := try(ctx, holder, name, "a free lock")
	if err != nil {
		return nil, nil, err
	}
	var line []<-chan result
	for i, l := range ls {
		line = append(line, locking(ctx, l, name))
		if err := waiting(ctx, holder, name, i+1); err != nil {
			return nil, nil, err
		}
	}
	return le, line, nil
}

func turnMissed(ctx context.Context, e *Env) error {
	a, c, err := e.Two(ctx)
	if err != nil {
		return err
	}
	ttl := 2 * e.TTL() // a grant of its last look is not too late to be believed
	b, link, err := e.OpenThrough(ctx, fencelock.WithTTL(ttl))
	if err != nil {
		return err
	}
	name := e.Name()
	le, line, err := lined(ctx, a, name, b, c)
	if err != nil {
		return err
	}
	second, third := line[0], line[1]
	// the push arrives, and what the waiter asks for then does not
	link.Set(faultproxy.Mode{HoldRequests: true})
	if err := sleep(ctx, 300*time.Millisecond); err != nil { // what it had asked for before is answered
		return err
	}
	if err := unlock(ctx, le, "the holder"); err != nil {
		return err
	}
	most := 3*e.traits.DeadWaiter + ttl + 10*time.Second + e.Slack()
	var next result
	select {
	case s := <-second: // its wait is one request, which was there already, or its patience is over
		link.Set(passAll)
		if err := unlockIf(ctx, s.lease); err != nil { // an error is allowed
			return err
		}
		r, err := granted(ctx, third, most, "the third")
		return errors.Join(err, unlockIf(ctx, r.lease))
	case next = <-third:
		if next.err != nil {
			return fmt.Errorf("the third, while the second is not heard: Lock: got %w, want a lease", next.err)
		}
	case <-time.After(most):
		return fmt.Errorf("the third, while the second is not heard: not granted within %v", most)
	}
	link.Set(passAll) // what the second asked for arrives
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
	if err := next.lease.Err(); err != nil {
		return fmt.Errorf("the third: got %w, want it held", err)
	}
	if err := held(ctx, a, name, "the third has it"); err != nil {
		return err
	}
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
	a, err := e.Open(ctx)
	if err != nil {
		return err
	}
	for _, cut := range []bool{false, true} {
		b, link, err := e.OpenThrough(ctx)
		if err != nil {
			return err
		}
		stop := func() error { link.Set(blackHole); return nil }
		resume := func() error {
			if cut {
				link.Cut()
			}
			link.Set(passAll)
			return nil
		}
		if err := e.stall(ctx, stop, resume, a, b); err != nil {
			return fmt.Errorf("connections cut at the end: %v: %w", cut, err)
		}
	}
	return nil
}

func stallOfStore(ctx context.Context, e *Env) error {
	a, err := e.Open(ctx)
	if err != nil {
		return err
	}
	b, c, err := e.Two(ctx)
	if err != nil {
		return err
	}
	return e.stall(ctx, e.h.Server.Pause, e.h.Server.Resume, a, b, c)
}

// stall stops something for stallMost while a holds a lock and the others wait for it: all of them go on as before.
func (e *Env) stall(
	ctx context.Context, stop, resume func() error, a *fencelock.Locker,
	waiters ...*fencelock.Locker,
) error {
	name := e.Name()
	le, line, err := lined(ctx, a, name, waiters...)
	if err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	serr := sleep(ctx, stallMost)
	if err := errors.Join(serr, resume()); err != nil {
		return err
	}
	rest := merged(line...)
	select {
	case r := <-rest:
		return fmt.Errorf("a waiter after a stall of %v: Lock: got %w, want it to wait on", stallMost, r.err)
	case <-time.After(2 * time.Second):
	}
	if err := unlock(ctx, le, "the holder after a stall"); err != nil {
		return err
	}
	for range line {
		r, err := granted(ctx, rest, 2*time.Second+2*e.traits.DeadWaiter+e.Slack(), "a waiter after a stall")
		if err == nil {
			err = unlock(ctx, r.lease, "a waiter after a stall")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func fullStore(ctx context.Context, e *Env) error {
	a, b, err := e.Two(ctx)
	if err != nil {
		return err
	}
	through, link, err := e.OpenThrough(ctx)
	if err != nil {
		return err
	}
	names := []string{e.Name(), e.Name(), e.Name(), e.Name(), e.Name()}
	old, err := try(ctx, a, names[0], "a free lock")
	if err != nil {
		return err
	}
	if err := old.Renew(ctx); err != nil {
		return fmt.Errorf("Renew: %w", err)
	}
	unrenewed, err := try(ctx, a, names[1], "a free lock")
	if err != nil {
		return err
	}
	fresh, err := try(ctx, a, names[2], "a free lock", e.kept())
	if err != nil {
		return err
	}
	waited, line, err := lined(ctx, a, names[3], b)
	if err != nil {
		return err
	}
	if _, err := cycle(ctx, through, e.Name(), "before"); err != nil { // the reply to lose is the grant's
		return err
	}
	link.LoseReplies(1)
	twice, err := granted(ctx, locking(ctx, through, names[4]), 5*time.Second, "Lock with its reply lost")
	if err != nil {
		return err
	}
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
	if err := unlock(ctx, waited, "the store is full, and another waits"); err != nil {
		return err
	}
	for _, le := range []*fencelock.Lease{old, unrenewed, twice.lease} {
		if err := unlock(ctx, le, "the store is full"); err != nil {
			return err
		}
		if info, err := b.Inspect(ctx, le.Name()); err != nil || info.Held {
			return fmt.Errorf("Inspect after an Unlock, the store is full: got %+v, %v; want it free", info, err)
		}
	}
	if err := e.fewRequests(ctx, through, link); err != nil {
		return err
	}
	if err := sleep(ctx, 2*e.Kept()); err != nil {
		return err
	}
	if err := fresh.Err(); err != nil {
		return fmt.Errorf("a lease that was granted just before the store was full: got %w, want it held", err)
	}
	if err := unlock(ctx, fresh, "the store is full"); err != nil {
		return err
	}
	full = false
	if err := empty(ctx); err != nil {
		return fmt.Errorf("the harness: %w", err)
	}
	select {
	case r := <-line[0]: // its patience may be over
		if r.err != nil {
			err = want(r.err, fencelock.ErrUnavailable, "Lock while the store was full")
		}
		err = errors.Join(err, unlockIf(ctx, r.lease))
	case <-time.After(5*time.Second + e.traits.DeadWaiter):
		err = errors.New("who waited while the store was full got neither the lock nor an error")
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		r, err := granted(ctx, locking(ctx, b, name), 5*time.Second, "once the store has space again")
		if err == nil {
			err = unlock(ctx, r.lease, "once the store has space again")
		}
		if err != nil {
			return err
		}
	}
	if e.h.Store == nil {
		return nil
	}
	return e.emptyWithin(ctx, 10*time.Second)
}

// fewRequests tries locks while the store is full: what could not be done is asked for again now and then only. Whether
// a try is granted is the store's business.
func (e *Env) fewRequests(ctx context.Context, l *fencelock.Locker, link Link) error {
	const tries, perTry, watched = 50, 20, 3 * time.Second
	before := link.Counts().Requests
	for range tries {
		le, err := l.Mutex(e.Name()).TryLock(ctx)
		if err != nil {
			continue
		}
		if err := unlock(ctx, le, "granted while the store is full"); err != nil {
			return err
		}
	}
	if err := sleep(ctx, watched); err != nil {
		return err
	}
	if sent := link.Counts().Requests - before; sent > tries*perTry {
		return fmt.Errorf("requests of %d tries in a store that is full, and in %v after them: "+
			"got %d, want at most %d each", tries, watched, sent, perTry)
	}
	return nil
}

func longWaits(ctx context.Context, e *Env) error {
	const n, apart, wait = 4, 800 * time.Millisecond, 7 * time.Second // the first has waited for so long at the end
	holder, err := e.Open(ctx)
	if err != nil {
		return err
	}
	name := e.Name()
	le, err := try(ctx, holder, name, "a free lock")
	if err != nil {
		return err
	}
	began := time.Now()
	var line []<-chan result
	for i := range n {
		l, err := e.Open(ctx)
		if err != nil {
			return err
		}
		line = append(line, locking(ctx, l, name))
		if err := waiting(ctx, holder, name, i+1); err != nil {
			return err
		}
		if err := sleep(ctx, apart); err != nil {
			return err
		}
	}
	if err := sleep(ctx, wait-time.Since(began)); err != nil {
		return err
	}
	for i, ch := range line {
		if err := unlock(ctx, le, "the one before"); err != nil {
			return err
		}
		r, err := granted(ctx, ch, 2*time.Second+e.Slack(),
			fmt.Sprintf("waiter %d of %d, in its turn after a long wait", i+1, n))
		if err != nil {
			return err
		}
		le = r.lease
	}
	return unlock(ctx, le, "the last")
}
