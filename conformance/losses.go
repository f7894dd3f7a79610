package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// losses is group D.
var losses = []Rule{
	{
		Name: "D1", What: "no loss on a clean release",
		Why:   "An alarm that rings without cause is switched off.",
		Check: noFalseLoss,
	},
	{
		Name: "D2", What: "taken away behind the library's back: told in time, with the reason",
		Why: "A holder that is not told works on beside the next one.",
		Trait: func(t backend.Traits) string {
			if t.Revoked == 0 {
				return "Traits.Revoked is 0"
			}
			return ""
		}, Check: revoked,
	},
	{
		Name: "D3", What: "a black-holed holder is told before another is granted the lock",
		Why:   "A lease is there for this, and most libraries tell too late.",
		Needs: Needs{Link: true}, Alone: true, Solo: ForMeasure, Check: toldFirst,
	},
	{
		Name: "D4", What: "a short silence of the network ends nothing",
		Why:   "A lease that one lost packet ends is worth nothing on a real network.",
		Needs: Needs{Link: true}, Check: shortSilence,
	},
	{
		Name: "D5", What: "a stopped holder sees the loss on its first look",
		Why:   "A process that was paused must not go on as if nothing had happened.",
		Needs: Needs{Process: true}, Trait: cannotStop, Check: stoppedHolder,
	},
	{
		Name: "D6", What: "the deadline does not depend on the wall clock",
		Why:   "A clock that is set must neither lose a lock nor keep one.",
		Check: monotonicDeadline,
	},
	{
		Name: "D7", What: "the server restarts, with and without its data",
		Why:   "A holder whose lock is gone with the data must be told; one whose lock is there goes on.",
		Needs: Needs{Server: true}, Alone: true, Check: serverRestarts,
	},
	{
		Name: "D8", What: "after a loss the same Mutex locks again, and nothing is left",
		Why:   "A worker that lost its lock once must be able to go on.",
		Check: lockAfterLoss,
	},
	{
		Name: "D9", What: "a waiter that was cut off gets the lock or an error, never a false lock",
		Why:   "A waiter whose place is gone must not believe that it holds.",
		Needs: Needs{Link: true}, Check: waiterCutOff,
	},
}

func cannotStop(backend.Traits) string {
	if !canStop {
		return "processes cannot be stopped on this system"
	}
	return ""
}

func noFalseLoss(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx, e.kept()))
	for range 5 {
		le := must(try(ctx, a, e.Name(), "a free lock"))
		check(sleep(ctx, e.Kept()/3))
		select {
		case <-le.Done():
			return fmt.Errorf("the lease was done before Unlock: %w", le.Err())
		default:
		}
		check(unlock(ctx, le, "the holder"))
		select {
		case <-le.Done():
		default:
			return errors.New("after Unlock Done is open")
		}
		check(want(le.Err(), fencelock.ErrReleased, "Err after Unlock"))
	}
	return nil
}

func revoked(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx, fencelock.WithTTL(30*e.TTL())))
	take := map[string]func(name string) error{
		"Break by another client": func(name string) error { return b.Break(ctx, name) },
		"Break by the same":       func(name string) error { return a.Break(ctx, name) },
	}
	if e.h.Store != nil {
		take["taken behind the library's back"] = func(name string) error { return e.h.Store.Take(ctx, e.prefix, name) }
	}
	// A backend that tells of a loss by looking for it must not look only once.
	for how, do := range take {
		for _, opts := range [][]fencelock.Option{nil, {fencelock.WithManualRenew()}} {
			for _, when := range []struct {
				how   string
				after time.Duration
			}{{how + " right after the grant", 0}, {how + " some time after it", e.traits.Revoked + e.Slack()}} {
				check(e.revokedOnce(ctx, a, b, when.how, when.after, do, opts))
			}
		}
	}
	return b.Break(ctx, e.Name()) // a free one is no error
}

// revokedOnce takes a lock away from a, which holds it for as long as after before that.
func (e *Env) revokedOnce(
	ctx context.Context, a, b *fencelock.Locker, how string, after time.Duration,
	do func(name string) error, opts []fencelock.Option,
) error {
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock", opts...))
	bystander := must(try(ctx, a, e.Name(), "a free lock", opts...))
	check(sleep(ctx, after))
	began := time.Now()
	check(want(do(name), nil, how))
	told, err := ended(ctx, le, e.traits.Revoked+e.Slack())
	if err != nil {
		return fmt.Errorf("%s: %w", how, err)
	}
	check(lostBy(le, how, fencelock.Revoked, fencelock.SessionLost))
	e.Notef("%s: told after %v", how, told.Sub(began).Round(time.Millisecond))
	check(want(le.Unlock(ctx), fencelock.ErrLost, how+": Unlock"))
	must(cycle(ctx, b, name, how+": the next"))
	// Break is about one lock. Taken away otherwise, it may end a session with all its locks.
	if err := bystander.Err(); err != nil && strings.HasPrefix(how, "Break") {
		return fmt.Errorf("%s: another lease of its holder: got %w, want it held", how, err)
	}
	return nil
}

func toldFirst(ctx context.Context, e *Env) error {
	worst := time.Duration(1<<63 - 1)
	for range 3 {
		told := make(chan time.Time, 1)
		a, link := must2(e.OpenThrough(ctx, e.short(), fencelock.WithObserver(lossAt(told))))
		b := must(e.Open(ctx))
		name := e.Name()
		le := must(try(ctx, a, name, "a free lock"))
		next := locking(ctx, b, name)
		check(waiting(ctx, b, name, 1))
		link.Set(blackHole)
		witness := atDeadline(le)
		r := must(granted(ctx, next, 2*e.TTL()+time.Second+e.Slack(), "the next"))
		var at time.Time
		select { // the event comes by the observer's goroutine, and has the time of the loss
		case at = <-told:
		case <-time.After(time.Second):
			return errors.New("the next was granted the lock and the old holder has not been told")
		}
		if at.After(r.at) {
			if late, ahead := (<-witness).Sub(le.Deadline()), r.at.Sub(le.Deadline()); late < ahead/2 {
				return fmt.Errorf("the old holder was told %v after the next was granted the lock", at.Sub(r.at))
			}
			// The machine stalled: a timer that has nothing to do with the library was as late. A holder that
			// looks at its lease is told by the clock, not by a timer.
			at = le.Deadline()
			e.Notef("the machine stalled over the deadline; counted from the Deadline itself")
		}
		margin := r.at.Sub(at)
		worst = min(worst, margin)
		if margin <= 0 {
			return fmt.Errorf("the old holder was told %v after the next was granted the lock", -margin)
		}
		check(lostBy(le, "black-holed", fencelock.Expired, fencelock.SessionLost))
		link.Set(passAll)
		check(unlock(ctx, r.lease, "the next"))
	}
	e.Notef("the black-holed holder was told %v before the takeover, the worst of 3 (TTL %v)",
		worst.Round(time.Millisecond), e.TTL())
	return nil
}

// atDeadline returns a channel that gets the moment at which a timer of the rule's own fired for the
// Deadline of a lease that is not renewed any more.
func atDeadline(le *fencelock.Lease) <-chan time.Time {
	fired := make(chan time.Time, 1)
	go func() {
		for left := time.Until(le.Deadline()); left > 0; left = time.Until(le.Deadline()) {
			time.Sleep(left)
		}
		fired <- time.Now()
	}()
	return fired
}

// lossAt is an Observer that sends when a lease was lost: the moment just after Done was closed.
type lossAt chan<- time.Time

func (ch lossAt) Observe(_ context.Context, e fencelock.Event) {
	if e.Kind == fencelock.Lost {
		select {
		case ch <- e.At:
		default:
		}
	}
}

func shortSilence(ctx context.Context, e *Env) error {
	ttl := 2 * e.Kept() // a stalled machine may take a quarter of it
	a, link := must2(e.OpenThrough(ctx, fencelock.WithTTL(ttl)))
	le := must(try(ctx, a, e.Name(), "a free lock"))
	silence := ttl * 3 / 8 // longer than from one renewal to the next
	for round := range 3 {
		check(sleep(ctx, ttl/3))
		link.Set(blackHole)
		check(sleep(ctx, silence))
		if round == 1 && !e.traits.LeasePerConn { // a cut loses what is on its way
			link.Cut()
		}
		link.Set(passAll)
		check(sleep(ctx, ttl/2))
		check(live(le, fmt.Sprintf("after a silence of %v", silence)))
	}
	return unlock(ctx, le, "the holder")
}

func stoppedHolder(ctx context.Context, e *Env) error {
	p := must(e.Process(ctx))
	b := must(e.Open(ctx))
	name := e.Name()
	old := must(p.Lock(ctx, name, e.TTL()))
	check(p.Stop())
	stopped := time.Now()
	r := must(granted(ctx, locking(ctx, b, name), 2*e.TTL()+time.Second+e.Slack(), "the next"))
	check(sleep(ctx, 2*e.TTL()-time.Since(stopped)))
	answer := p.Send("err", name)
	check(p.Continue())
	first := must(p.await(ctx, answer, "err"))
	if !strings.Contains(first, backend.ErrLost.Error()) {
		return fmt.Errorf("the first look of a holder that was stopped for two TTLs: got %q, want a loss", first)
	}
	check(e.above(r.lease.Token(), old, "of the next"))
	return unlock(ctx, r.lease, "the next")
}

func monotonicDeadline(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	le := must(try(ctx, a, e.Name(), "a free lock"))
	// Two times that both have a monotonic reading are compared by it alone. Round takes the reading away.
	monotonic := func(t time.Time) bool { return t != t.Round(0) }
	for _, when := range []string{"granted", "renewed"} {
		if monotonic(time.Now()) && !monotonic(le.Deadline()) { // in virtual time no time has a reading
			return fmt.Errorf("%s: the Deadline %v has no monotonic reading", when, le.Deadline())
		}
		check(want(le.Renew(ctx), nil, "Renew"))
	}
	return unlock(ctx, le, "the holder")
}

func lockAfterLoss(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	if e.h.Store != nil { // a mark that tells the old holder of its loss ends a while after its TTL, so that is short
		le := must(try(ctx, a, e.Name(), "a free lock", e.kept()))
		check(b.Break(ctx, le.Name()))
		check(e.learns(ctx, le))
		check(e.emptyWithin(ctx, e.Kept()+15*time.Second))
	}
	name := e.Name()
	m := a.Mutex(name)
	for range 3 {
		le := must(m.Lock(ctx))
		check(b.Break(ctx, name))
		check(e.learns(ctx, le))
		check(turn(ctx, locking(ctx, a, name), time.Second+e.Slack(), "the same Mutex after a loss"))
	}
	return nil
}

func serverRestarts(ctx context.Context, e *Env) error {
	s := e.h.Server
	for _, lose := range []func() error{nil, s.Wipe} {
		a, b := must2(e.Two(ctx, fencelock.WithTTL(max(15*time.Second, 5*e.TTL()))))
		name := must(e.unraised(ctx, a))
		le := must(try(ctx, a, name, "a free lock"))
		check(restart(s, lose))
		kept := s.KeepsData() && lose == nil
		if kept {
			check(sleep(ctx, 2*e.TTL()))
			check(live(le, "a restart with all data"))
			check(held(ctx, b, name, "after a restart with all data"))
			check(unlock(ctx, le, "after a restart with all data"))
		} else if _, err := ended(ctx, le, cmp.Or(e.traits.Revoked, ample)+5*time.Second+e.Slack()); err != nil {
			return fmt.Errorf("a restart without the data: %w", err)
		}
		// Either way the lock works on, with a higher token.
		r := must(granted(ctx, locking(ctx, b, name), 10*time.Second, "after the restart"))
		check(e.above(r.lease.Token(), le.Token(), fmt.Sprintf("after a restart (data lost: %v)", !kept)))
		check(unlock(ctx, r.lease, "after the restart"))
	}
	return nil
}

// unraised returns a name whose tokens no floor has moved ahead of the clock. Names share their source with a few
// others, and a floor that another rule has asked of one of those is lost with the data.
func (e *Env) unraised(ctx context.Context, l *fencelock.Locker) (string, error) {
	for range 10 {
		name := e.Name()
		token, err := cycle(ctx, l, name, "before")
		if err != nil || token < time.Now().Add(time.Minute).UnixMicro() {
			return name, err
		}
	}
	return "", errors.New("the tokens of ten names are all ahead of the clock")
}

// restart kills the server and starts it again. meanwhile, if there is one, is called in between.
func restart(s Server, meanwhile func() error) error {
	err := s.Kill()
	if err == nil && meanwhile != nil {
		err = meanwhile()
	}
	return errors.Join(err, s.Start())
}

func waiterCutOff(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	ttl := 2 * e.TTL() // of the waiter, whose place and session may end while it is cut off
	b, link := must2(e.OpenThrough(ctx, fencelock.WithTTL(ttl)))
	c := must(e.Open(ctx))
	name := e.Name()
	le, line := e.lined(ctx, a, name, b)
	waiter := line[0]
	link.Set(blackHole)
	check(sleep(ctx, 2*ttl))
	link.Set(passAll)
	link.Cut()
	told := false
	select {
	case r := <-waiter:
		if r.err == nil {
			return errors.New("a waiter that was cut off was granted a lock that another holds")
		}
		told = true // an error is allowed
	case <-time.After(ttl):
	}
	check(live(le, "the holder"))
	check(unlock(ctx, le, "the holder"))
	var lease *fencelock.Lease
	if !told {
		select {
		case r := <-waiter:
			lease = r.lease
		case <-time.After(5*time.Second + e.traits.DeadWaiter + ttl + e.Slack()):
			return errors.New("the waiter that was cut off got neither the lock nor an error")
		}
	}
	if lease != nil {
		check(held(ctx, c, name, "granted to the waiter that was cut off"))
		return unlock(ctx, lease, "the waiter that was cut off")
	}
	most := e.traits.DeadWaiter + time.Second + e.Slack()
	return turn(ctx, locking(ctx, c, name), most, "the next, after a waiter that was cut off")
}
