package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// tokens is group E. E7, tokens through a migration, comes with the migration.
var tokens = []Rule{
	{
		Name: "E1", What: "tokens rise strictly over release, expiry and Break",
		Why:   "A token that repeats or falls lets a stale holder write.",
		Trait: noTokens, Check: tokensRise,
	},
	{
		Name: "E2", What: "tokens rise over the loss of all data, and over its return to an older state",
		Why:   "A counter that starts again, or goes back with a backup, hands out old numbers.",
		Trait: noTokens, Needs: Needs{Server: true}, Alone: true, Check: tokensAfterLoss,
	},
	{
		Name: "E3", What: "a lease's token is fixed, also after its loss",
		Why:   "A token read afterwards is the next holder's.",
		Trait: noTokens, Check: tokenFixed,
	},
	{
		Name: "E4", What: "a guard refuses lower tokens, accepts equal and higher ones",
		Why:   "An equality check would refuse the newer holder too.",
		Trait: noTokens, Check: guardRefuses,
	},
	{
		Name: "E5", What: "a zombie writer is refused",
		Why:   "Paused, overtaken, resumed: the write that no lease can stop.",
		Needs: Needs{Process: true},
		Trait: func(t backend.Traits) string { return cmp.Or(noTokens(t), cannotStop(t)) },
		Check: zombieWriter,
	},
	{
		Name: "E6", What: "tokens are below 2^53",
		Why:   "JSON and Lua would round a greater one.",
		Trait: noTokens, Check: tokensSmall,
	},
	{
		Name: "E8", What: "many names leave constant state once released",
		Why:   "A counter for each name that can never be deleted fills the store.",
		Needs: Needs{Behind: true}, Alone: true, Solo: ForMeasure, Check: constantState,
	},
	{
		Name: "E9", What: "the floor of a request is respected",
		Why:   "After a guard has seen a higher token, the next holder needs one above it.",
		Trait: noTokens, Check: floorRespected,
	},
	{
		Name: "E10", What: "tokens rise while processes pass the lock on among their own",
		Why:   "A number of a reserved block that another grant has too makes two holders equal.",
		Trait: noTokens, Check: tokensPassedOn,
	},
}

func noTokens(t backend.Traits) string {
	if t.Fencing == backend.NoFencing {
		return "Traits.Fencing is none"
	}
	return ""
}

// above returns an error unless a token is greater than one before it, as far as the backend has tokens.
func (e *Env) above(t, before fencelock.Token, what string) error {
	if t > before || e.traits.Fencing == backend.NoFencing {
		return nil
	}
	return fmt.Errorf("token %s: got %d after %d", what, t, before)
}

func tokensRise(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	last := fencelock.Token(0)
	rise := func(t fencelock.Token, how string) error {
		err := e.above(t, last, how)
		last = t
		return err
	}
	for i := range e.count(200, 1000, 10_000) {
		l := a
		if i%2 == 1 {
			l = b
		}
		t := must(cycle(ctx, l, name, "a round"))
		check(rise(t, "after a release"))
	}
	for range 3 {
		le := must(try(ctx, a, name, "a free lock", fencelock.WithManualRenew()))
		check(rise(le.Token(), "after a release"))
		check(b.Break(ctx, name))
		t := must(cycle(ctx, b, name, "after Break"))
		check(rise(t, "after Break"))
	}
	// A try that fails must not disturb.
	le := must(try(ctx, a, name, "a free lock", fencelock.WithManualRenew()))
	check(rise(le.Token(), "after Break"))
	check(held(ctx, b, name, "a try that fails"))
	check(unlock(ctx, le, "the holder"))
	for _, l := range []*fencelock.Locker{a, b} {
		t := must(cycle(ctx, l, name, "after a try that failed"))
		check(rise(t, "after a try that failed"))
	}
	le = must(try(ctx, a, name, "a free lock", fencelock.WithManualRenew(), e.short()))
	check(rise(le.Token(), "after a release"))
	r := must(granted(ctx, locking(ctx, b, name), 2*e.TTL()+time.Second+e.Slack(), "after expiry"))
	check(rise(r.lease.Token(), "after expiry"))
	return unlock(ctx, r.lease, "after expiry")
}

func tokensAfterLoss(ctx context.Context, e *Env) error {
	l := must(e.Open(ctx, e.kept())) // a release just before a kill may not be on the disk yet
	var names []string
	last := map[string]fencelock.Token{}
	for range 3 {
		names = append(names, must(e.unraised(ctx, l)))
	}
	rise := func(when string) {
		for _, name := range names {
			r := must(granted(ctx, locking(ctx, l, name), 10*time.Second, when))
			check(e.above(r.lease.Token(), last[name], when))
			last[name] = r.lease.Token()
			check(unlock(ctx, r.lease, when))
		}
	}
	rise("at first")
	s, first := e.h.Server, e.h.Server.Wipe
	if r, ok := s.(Rewinder); ok {
		check(restart(s, r.Keep))
		rise("after a backup")
		first = r.SetBack
	} else {
		e.Notef("not checked: the return to an older state (the harness's Server is no Rewinder)")
	}
	check(restart(s, first))
	rise("after the return to a backup, or to nothing")
	check(restart(s, s.Wipe))
	rise("after the loss of all data")
	return nil
}

func tokenFixed(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx, e.kept()))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	token := le.Token()
	check(want(le.Renew(ctx), nil, "Renew"))
	check(sleep(ctx, e.Kept())) // and in the background
	if le.Token() != token {
		return fmt.Errorf("token after renewals: got %d, want %d", le.Token(), token)
	}
	if info, err := b.Inspect(ctx, name); err != nil || info.Token != token {
		return fmt.Errorf("Inspect: got token %d (%v), want %d", info.Token, err, token)
	}
	check(b.Break(ctx, name))
	next := must(granted(ctx, locking(ctx, b, name), time.Second+e.Slack(), "after Break"))
	check(e.learns(ctx, le))
	if le.Token() != token || next.lease.Token() == token {
		return fmt.Errorf("after the loss: the old lease says %d, the new one %d; "+
			"want %d and a higher one", le.Token(), next.lease.Token(), token)
	}
	check(unlock(ctx, next.lease, "the next"))
	if e.h.Link == nil {
		return nil
	}
	return e.tokenOfTheGrant(ctx)
}

func tokensSmall(ctx context.Context, e *Env) error {
	l := must(e.Open(ctx))
	t := must(cycle(ctx, l, e.Name(), "a round"))
	if t <= 0 || t >= 1<<53 {
		return fmt.Errorf("token: got %d, want one from 1 to below 2^53", t)
	}
	return nil
}

func constantState(ctx context.Context, e *Env) error {
	l := must(e.Open(ctx))
	n := e.count(2_000, 5_000, 100_000)
	if e.h.tiny {
		n = 200
	}
	name := e.Name()
	check(atOnce(n, func(i int) error {
		_, err := cycle(ctx, l, name+strconv.Itoa(i), "one of many names")
		return err
	}))
	left := must(e.h.Store.Left(ctx, e.prefix))
	if len(left) > 0 {
		return fmt.Errorf("%d names locked and unlocked left %d things in the "+
			"store, such as %q; want none", n, len(left), left[0])
	}
	return nil
}

// ahead is how far a rule moves the tokens of a name, in µs: all rules together ask for less than backend.FloorAhead.
const ahead = 100_000_000

func floorRespected(ctx context.Context, e *Env) error {
	for _, e.mode = range e.modes() { // not at once: a floor may hide that another is ignored
		part(e.mode.String(), func() error { return e.floorRespected(ctx) })
	}
	return nil
}

func (e *Env) floorRespected(ctx context.Context) error {
	l := must(e.Open(ctx))
	name := e.Name()
	t := must(cycle(ctx, l, name, "a round"))
	floor := t + ahead
	le := must(e.try(ctx, l, name, "with a floor", fencelock.WithFloor(floor)))
	check(e.above(le.Token(), floor, "with a floor"))
	check(unlock(ctx, le, "with a floor"))
	check(e.above(must(cycle(ctx, l, name, "after a floor")), le.Token(), "after a floor"))
	// A waiter's too.
	le = must(try(ctx, l, name, "a free lock"))
	floor = le.Token() + ahead
	ch := e.locking(ctx, l, name, fencelock.WithFloor(floor))
	check(waiting(ctx, l, name, 1))
	check(unlock(ctx, le, "the holder"))
	r := must(granted(ctx, ch, time.Second+e.Slack(), "the waiter"))
	check(e.above(r.lease.Token(), floor, "of a waiter with a floor"))
	return unlock(ctx, r.lease, "the waiter")
}

// tokensPassedOn lets several goroutines of two clients take turns, each client with a queue of its
// own: then the engine passes the lock on within a client as often as the driver reserved tokens
// for it.
func tokensPassedOn(ctx context.Context, e *Env) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a driver may never grant again
	defer cancel()
	a, b := must2(e.Two(ctx))
	name := e.Name()
	t := must(cycle(ctx, a, name, "a round"))
	// First as it is, and then with a source that is ahead of the store's clock and moves by nothing but grants.
	for _, floor := range []fencelock.Token{0, t + ahead} {
		var mu sync.Mutex
		var last fencelock.Token
		turn := func(l *fencelock.Locker) {
			le := must(l.Mutex(name, fencelock.WithFloor(floor)).Lock(ctx))
			mu.Lock()
			was := last
			last = max(last, le.Token())
			mu.Unlock()
			_ = sleep(ctx, 100*time.Microsecond) // so that the others line up
			err := unlock(ctx, le, "one of many")
			check(errors.Join(err, e.above(le.Token(), was, "passed on")))
		}
		check(together(8, func(i int) error {
			for range e.count(5, 20, 100) {
				turn([]*fencelock.Locker{a, a, a, b}[i%4])
			}
			return nil
		}))
	}
	return nil
}

// hostileFloors are rules K7: floors at the end of the number space.
var hostileFloors = []Rule{
	{
		Name: "K7", What: "a floor, or a guard's token, far ahead of the numbers in use is refused and spends nothing",
		Why:   "One bad number from one resource would leave the other names of the store without tokens for good.",
		Trait: noTokens, Check: farFloorsRefused,
	},
}

// farFloor is further ahead of the numbers in use than a floor may be.
const farFloor = 2 * backend.FloorAhead

func farFloorsRefused(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	t := must(cycle(ctx, a, name, "a round"))
	near := max(t, time.Now().UnixMicro()) // wherever the store's own number is between the two
	guards := e.guards(ctx)
	for _, floor := range []fencelock.Token{near + farFloor, 1<<53 - 2} {
		for what, guard := range guards {
			check(want(guard.Check(ctx, name, floor), fencelock.ErrInvalid, what+", of a token far ahead"))
			check(want(guard.Check(ctx, name, t), nil, what+", of a holder after that"))
		}
		part(fmt.Sprintf("a floor of %d after the token %d", floor, t), func() error {
			return refusedFloor(ctx, a, b, name, fencelock.WithFloor(floor))
		})
		for i := range 20 {
			other := name
			if i > 0 {
				other = e.Name()
			}
			got := must(cycle(ctx, b, other, "after a floor that was refused"))
			if got >= near+farFloor {
				return fmt.Errorf("token of another name after a floor of %d was refused: "+
					"got %d, want one near %d", floor, got, near)
			}
		}
	}
	return nil
}

// refusedFloor asks with a floor that is too far ahead: for a free lock, and for one that another
// client releases meanwhile.
func refusedFloor(ctx context.Context, a, b *fencelock.Locker, name string, bad fencelock.Option) error {
	le, err := a.Mutex(name, bad).TryLock(ctx)
	check(errors.Join(want(err, fencelock.ErrInvalid, "TryLock"), unlockIf(ctx, le)))
	holder := must(try(ctx, b, name, "after a TryLock that was refused"))
	waiter := locking(ctx, a, name, bad)
	check(sleep(ctx, 100*time.Millisecond)) // it queues by then where the store judges a floor only when it grants
	check(unlock(ctx, holder, "the holder before it"))
	r := <-waiter
	return errors.Join(want(r.err, fencelock.ErrInvalid, "Lock"), unlockIf(ctx, r.lease))
}
