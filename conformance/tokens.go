package conformance

import (
	"context"
	"errors"
	"fmt"
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
		Name: "E2", What: "tokens rise over the loss of all data",
		Why:   "A counter that starts again hands out old numbers.",
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
		Trait: func(t backend.Traits) string { return noTokens(t) + cannotStop(t) },
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
		Needs: Needs{Store: true}, Alone: true, Solo: ForMeasure, Check: constantState,
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

func tokensRise(ctx context.Context, e *Env) error {
	a, b, err := e.Two(ctx)
	if err != nil {
		return err
	}
	name := e.Name()
	last := fencelock.Token(0)
	rise := func(t fencelock.Token, how string) error {
		if t <= last {
			return fmt.Errorf("token %s: got %d after %d", how, t, last)
		}
		last = t
		return nil
	}
	for i := range e.count(200, 1000, 10_000) {
		l := a
		if i%2 == 1 {
			l = b
		}
		t, err := cycle(ctx, l, name, "a round")
		if err != nil {
			return err
		}
		if err := rise(t, "after a release"); err != nil {
			return err
		}
	}
	for range 3 {
		le, err := try(ctx, a, name, "a free lock", fencelock.WithManualRenew())
		if err != nil {
			return err
		}
		if err := rise(le.Token(), "after a release"); err != nil {
			return err
		}
		if err := b.Break(ctx, name); err != nil {
			return err
		}
		t, err := cycle(ctx, b, name, "after Break")
		if err != nil {
			return err
		}
		if err := rise(t, "after Break"); err != nil {
			return err
		}
	}
	// A try that fails must not disturb.
	le, err := try(ctx, a, name, "a free lock", fencelock.WithManualRenew())
	if err != nil {
		return err
	}
	if err := rise(le.Token(), "after Break"); err != nil {
		return err
	}
	if err := held(ctx, b, name, "a try that fails"); err != nil {
		return err
	}
	if err := unlock(ctx, le, "the holder"); err != nil {
		return err
	}
	for _, l := range []*fencelock.Locker{a, b} {
		t, err := cycle(ctx, l, name, "after a try that failed")
		if err != nil {
			return err
		}
		if err := rise(t, "after a try that failed"); err != nil {
			return err
		}
	}
	if le, err = try(ctx, a, name, "a free lock", fencelock.WithManualRenew(), e.short()); err != nil {
		return err
	}
	if err := rise(le.Token(), "after a release"); err != nil {
		return err
	}
	r, err := granted(ctx, locking(ctx, b, name), 2*e.TTL()+time.Second+e.Slack(), "after expiry")
	if err != nil {
		return err
	}
	if err := rise(r.lease.Token(), "after expiry"); err != nil {
		return err
	}
	return unlock(ctx, r.lease, "after expiry")
}

func tokensAfterLoss(ctx context.Context, e *Env) error {
	l, err := e.Open(ctx)
	if err != nil {
		return err
	}
	names := []string{e.Name(), e.Name(), e.Name()}
	last := map[string]fencelock.Token{}
	for round := range 3 {
		for _, name := range names {
			r, err := granted(ctx, locking(ctx, l, name), 10*time.Second, "after the loss of all data")
			if err != nil {
				return err
			}
			if r.lease.Token() <= last[name] {
				return fmt.Errorf("token after loss %d of all data: got %d after %d",
					round, r.lease.Token(), last[name])
			}
			last[name] = r.lease.Token()
			if err := unlock(ctx, r.lease, "a round"); err != nil {
				return err
			}
		}
		if err := restart(e.h.Server, true); err != nil {
			return err
		}
	}
	return nil
}

func tokenFixed(ctx context.Context, e *Env) error {
	a, b, err := e.Two(ctx, e.kept())
	if err != nil {
		return err
	}
	name := e.Name()
	le, err := try(ctx, a, name, "a free lock")
	if err != nil {
		return err
	}
	token := le.Token()
	if err := le.Renew(ctx); err != nil {
		return fmt.Errorf("Renew: got %w, want nil", err)
	}
	if err := sleep(ctx, e.Kept()); err != nil { // and in the background
		return err
	}
	if le.Token() != token {
		return fmt.Errorf("token after renewals: got %d, want %d", le.Token(), token)
	}
	if info, err := b.Inspect(ctx, name); err != nil || info.Token != token {
		return fmt.Errorf("Inspect: got token %d (%v), want %d", info.Token, err, token)
	}
	if err := b.Break(ctx, name); err != nil {
		return err
	}
	next, err := granted(ctx, locking(ctx, b, name), time.Second+e.Slack(), "after Break")
	if err != nil {
		return err
	}
	if _, err := ended(ctx, le, e.traits.Revoked+e.Slack()); err != nil {
		return err
	}
	if le.Token() != token || next.lease.Token() == token {
		return fmt.Errorf("after the loss: the old lease says %d, the new one %d; "+
			"want %d and a higher one", le.Token(), next.lease.Token(), token)
	}
	if err := unlock(ctx, next.lease, "the next"); err != nil || e.h.Link == nil {
		return err
	}
	return e.tokenOfTheGrant(ctx)
}

func tokensSmall(ctx context.Context, e *Env) error {
	l, err := e.Open(ctx)
	if err != nil {
		return err
	}
	t, err := cycle(ctx, l, e.Name(), "a round")
	if err != nil {
		return err
	}
	if t <= 0 || t >= 1<<53 {
		return fmt.Errorf("token: got %d, want one from 1 to below 2^53", t)
	}
	return nil
}

func constantState(ctx context.Context, e *Env) error {
	l, err := e.Open(ctx)
	if err != nil {
		return err
	}
	n := e.count(2_000, 5_000, 100_000)
	if e.h.tiny {
		n = 200
	}
	var wg sync.WaitGroup
	errs := make(chan error, 16)
	names := make(chan string)
	for range cap(errs) {
		wg.Go(func() {
			var first error
			for name := range names {
				if _, err := cycle(ctx, l, name, "one of many names"); err != nil && first == nil {
					first = err
				}
			}
			errs <- first
		})
	}
	for range n {
		names <- e.Name()
	}
	close(names)
	wg.Wait()
	for range cap(errs) {
		if err := <-errs; err != nil {
			return err
		}
	}
	left, err := e.h.Store.Left(ctx, e.prefix)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%d names locked and unlocked left %d things in the "+
			"store, such as %q; want none", n, len(left), left[0])
	}
	return nil
}

func floorRespected(ctx context.Context, e *Env) error {
	l, err := e.Open(ctx)
	if err != nil {
		return err
	}
	name := e.Name()
	t, err := cycle(ctx, l, name, "a round")
	if err != nil {
		return err
	}
	floor := t + 1_000_000_000
	le, err := try(ctx, l, name, "with a floor", fencelock.WithFloor(floor))
	if err != nil {
		return err
	}
	if le.Token() <= floor {
		return fmt.Errorf("token: got %d, want more than the floor %d", le.Token(), floor)
	}
	high := le.Token()
	if err := unlock(ctx, le, "with a floor"); err != nil {
		return err
	}
	if t, err = cycle(ctx, l, name, "after a floor"); err != nil {
		return err
	}
	if t <= high {
		return fmt.Errorf("token after a floor: got %d after %d", t, high)
	}
	// A waiter's too.
	if le, err = try(ctx, l, name, "a free lock"); err != nil {
		return err
	}
	floor = le.Token() + 1_000_000_000
	ch := locking(ctx, l, name, fencelock.WithFloor(floor))
	if err := waiting(ctx, l, name, 1); err != nil {
		return err
	}
	if err := unlock(ctx, le, "the holder"); err != nil {
		return err
	}
	r, err := granted(ctx, ch, time.Second+e.Slack(), "the waiter")
	if err != nil {
		return err
	}
	if r.lease.Token() <= floor {
		return fmt.Errorf("a waiter's token: got %d, want more than its floor %d", r.lease.Token(), floor)
	}
	return unlock(ctx, r.lease, "the waiter")
}

// tokensPassedOn lets several goroutines of two clients take turns, each client with a queue of its
// own: then the engine passes the lock on within a client as often as the driver reserved tokens
// for it.
func tokensPassedOn(ctx context.Context, e *Env) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a driver may never grant again
	defer cancel()
	a, b, err := e.Two(ctx)
	if err != nil {
		return err
	}
	name := e.Name()
	t, err := cycle(ctx, a, name, "a round")
	if err != nil {
		return err
	}
	// First as it is, and then with a source that is ahead of the store's clock and moves by nothing but grants.
	for _, floor := range []fencelock.Token{0, t + 1_000_000_000} {
		var mu sync.Mutex
		var last fencelock.Token
		turn := func(l *fencelock.Locker) error {
			le, err := l.Mutex(name, fencelock.WithFloor(floor)).Lock(ctx)
			if err != nil {
				return err
			}
			mu.Lock()
			was := last
			last = max(last, le.Token())
			mu.Unlock()
			_ = sleep(ctx, 100*time.Microsecond) // so that the others line up
			err = unlock(ctx, le, "one of many")
			if le.Token() <= was {
				err = fmt.Errorf("got the token %d after %d", le.Token(), was)
			}
			return err
		}
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				l := []*fencelock.Locker{a, a, a, b}[i%4]
				for range e.count(5, 20, 100) {
					if errs[i] = turn(l); errs[i] != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}
