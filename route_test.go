package fencelock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// forked is a router over a few drivers, by the first letter of a name.
type forked struct {
	core.Composite
	routes  []backend.Route
	letters string
}

// fork makes one route for each letter.
func fork(letters string, routes ...backend.Route) *forked {
	return &forked{routes: routes, letters: letters}
}

func (f *forked) Routes() []backend.Route { return f.routes }

func (f *forked) Route(name string) (int, error) {
	if i := strings.IndexByte(f.letters, name[0]); i >= 0 {
		return i, nil
	}
	return 0, backend.Invalid("no rule matches %q", name)
}

func (f *forked) Traits() backend.Traits {
	var ts []backend.Traits
	for _, r := range f.routes {
		ts = append(ts, r.Driver.Traits())
	}
	return backend.Weakest(ts...)
}

func (f *forked) Close() error {
	closed := map[backend.Driver]bool{}
	for _, r := range f.routes {
		if !closed[r.Driver] {
			_ = r.Driver.Close()
		}
		closed[r.Driver] = true
	}
	return nil
}

// beginning also keeps which backend each call began with.
type beginning struct {
	record
	begun map[string]string // by name
}

func (b *beginning) Begin(ctx context.Context, e fencelock.Event) context.Context {
	if b.begun == nil {
		b.begun = map[string]string{}
	}
	b.begun[e.Name] = e.Backend
	return ctx
}

// named gives a fake other traits.
func named(d *fake, change func(*backend.Traits)) *fake {
	d.traits = change
	return d
}

func TestEachRouteHasItsOwnDefaults(t *testing.T) {
	bubble(t, func(t *testing.T, slow *fake) {
		const margin = 3 * time.Second
		quick := newFake(t)
		named(slow, func(t *backend.Traits) { t.Name, t.Margin, t.MinTTL = "slow", margin, 2*margin })
		named(quick, func(t *backend.Traits) { t.Name = "quick" })
		var seen beginning
		l, err := fencelock.New(fork("sqd",
			backend.Route{Driver: slow, TTL: time.Minute, Reentrant: true},
			backend.Route{Driver: quick, TTL: 5 * time.Second},
			backend.Route{Driver: quick},
		), fencelock.WithObserver(&seen))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := l.Traits(); got.Name != "slow+quick" || got.Margin != margin {
			t.Errorf("traits: got %+v, want the weakest of both", got)
		}
		tests := map[string]struct {
			backend string
			span    time.Duration
			again   error // of locking with a ctx that carries the lease
		}{
			"s": {"slow", time.Minute - margin, nil},
			"q": {"quick", 5*time.Second - 100*time.Millisecond, fencelock.ErrDeadlock},
			"d": {"quick", fencelock.DefaultTTL - fencelock.DefaultTTL/50, fencelock.ErrDeadlock},
		}
		for name, want := range tests {
			start := time.Now()
			le := lock(t, l.Mutex(name))
			if got := le.Deadline().Sub(start); got != want.span {
				t.Errorf("%s: trusted for %v, want %v", name, got, want.span)
			}
			_, err := l.Mutex(name, fencelock.WithoutReentrancy()).Lock(carry(t, t.Context(), le))
			wantErr(t, name+" again, without re-entrancy", err, fencelock.ErrDeadlock)
			inner, err := l.Mutex(name).Lock(carry(t, t.Context(), le))
			wantErr(t, name+" again", err, want.again)
			if err == nil {
				unlock(t, inner)
			} else if !strings.Contains(err.Error(), "("+want.backend+")") {
				t.Errorf("%s: got error %v, want one of %s", name, err, want.backend)
			}
			unlock(t, le)
		}
		for _, e := range seen.of(fencelock.Released) {
			if want := tests[e.Name].backend; e.Backend != want {
				t.Errorf("event of %s: got backend %s, want %s", e.Name, e.Backend, want)
			}
		}
		if got := len(seen.of(fencelock.Released)); got != len(tests) {
			t.Errorf("got %d events of releases, want %d", got, len(tests))
		}
		for name, b := range seen.begun {
			if want := tests[name].backend; b != want {
				t.Errorf("begin of %s: got backend %s, want %s", name, b, want)
			}
		}
		if len(seen.begun) != len(tests) {
			t.Errorf("got the begin of %v, want that of every name", seen.begun)
		}
	})
}

// A Mutex's options are checked against the backend of its name, not against the weakest.
func TestOptionsOfARoutedMutex(t *testing.T) {
	bubble(t, func(t *testing.T, slow *fake) {
		quick := newFake(t)
		named(slow, func(t *backend.Traits) { t.Name, t.MinTTL, t.Grace = "slow", 10*time.Second, false })
		l := open(t, fork("sq", backend.Route{Driver: slow}, backend.Route{Driver: quick}))
		brief := []fencelock.Option{fencelock.WithTTL(time.Second), fencelock.WithGrace(time.Second)}
		unlock(t, lock(t, l.Mutex("q", brief...)))
		_, err := l.Mutex("s", brief[0]).TryLock(t.Context())
		wantErr(t, "a short TTL", err, fencelock.ErrInvalid)
		_, err = l.Mutex("s", brief[1]).TryLock(t.Context())
		wantErr(t, "grace", err, fencelock.ErrUnsupported)
	})
}

func TestANameWithoutARoute(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, fork("ab", backend.Route{Driver: d}, backend.Route{Driver: newFake(t)}))
		_, err := l.Mutex("x").Lock(t.Context())
		wantErr(t, "lock", err, fencelock.ErrInvalid)
		_, err = l.Mutex("x", fencelock.WithManualRenew()).TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrInvalid)
		if d.count() != 0 {
			t.Errorf("got %d calls of the driver, want none", d.count())
		}
	})
}

// Options of the Locker must suit every route, and the error says which they do not suit.
func TestOptionsOfARoutedLocker(t *testing.T) {
	weak := named(newFake(t), func(t *backend.Traits) { t.Name, t.MinTTL, t.ClockFree = "weak", 2*time.Second, false })
	strong := named(newFake(t), func(t *backend.Traits) { t.Name, t.ClockFree = "strong", true })
	router := fork("sw", backend.Route{Driver: strong}, backend.Route{Driver: weak})
	for what, tt := range map[string]struct {
		opt  fencelock.Option
		want error
	}{
		"a TTL":  {fencelock.WithTTL(time.Second), fencelock.ErrInvalid},
		"a need": {fencelock.Require(fencelock.Need{ClockFree: true}), fencelock.ErrUnsupported},
	} {
		_, err := fencelock.New(router, tt.opt)
		wantErr(t, what, err, tt.want)
		if opErrors(err) != 1 || !strings.Contains(err.Error(), "weak") {
			t.Errorf("%s: got %v, want one OpError that names weak", what, err)
		}
	}
	_, err := fencelock.New(&forked{})
	wantErr(t, "no routes", err, fencelock.ErrInvalid)
	lost, err := fencelock.New(&forked{routes: router.routes[:1], letters: "xy"})
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	_, err = lost.Mutex("y").TryLock(t.Context())
	wantErr(t, "a route that there is not", err, fencelock.ErrInvalid)
	// An option wins over the default of every route.
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, fork("a", backend.Route{Driver: d, TTL: time.Hour}), fencelock.WithTTL(ttl))
		start := time.Now()
		if got := lock(t, l.Mutex("a")).Deadline().Sub(start); got != trusted {
			t.Errorf("trusted for %v, want %v", got, trusted)
		}
	})
}

// Routes of one driver share its batches, those of different drivers do not: one that hangs holds up no other.
func TestBatchesAreADriversOwn(t *testing.T) {
	bubble(t, func(t *testing.T, one *fake) {
		two := newFake(t)
		l := open(t, fork("abc", backend.Route{Driver: one}, backend.Route{Driver: one}, backend.Route{Driver: two}))
		leases := map[string]*fencelock.Lease{}
		for _, name := range []string{"a1", "b1", "a2", "b2", "c1", "c2"} {
			leases[name] = lock(t, l.Mutex(name))
		}
		only := func(letters string) step {
			return func(c call) error {
				for _, r := range c.reqs {
					if !strings.Contains(letters, r.Name[:1]) {
						t.Errorf("%s came to the driver of %s", r.Name, letters)
					}
				}
				return c.apply()
			}
		}
		one.on("renew", only("ab"))
		two.on("renew", only("c"))
		time.Sleep(10 * ttl)
		for d, holds := range map[*fake]int{one: 4, two: 2} {
			// The jitter is less than how early a hold may join a batch.
			if about, calls := d.about("renew"), d.count("renew"); calls < 20 || about != holds*calls {
				t.Errorf("got %d renewals of %d holds in %d calls, want all of a driver in each", about, holds, calls)
			}
		}
		two.on("renew", hang)
		time.Sleep(2 * ttl)
		for name, le := range leases {
			if lost := le.Err() != nil; lost != (name[0] == 'c') {
				t.Errorf("%s: got err %v, want a loss where the driver hangs only", name, le.Err())
			}
		}
		two.on("renew", nil)
	})
}

// Only the drivers that can be asked are asked about their holds.
func TestChecksAreADriversOwn(t *testing.T) {
	bubble(t, func(t *testing.T, told *fake) {
		asked := newFake(t)
		asked.deaf = true
		named(asked, func(t *backend.Traits) { t.Revoked = time.Second })
		l := open(t,
			fork("ta", backend.Route{Driver: told}, backend.Route{Driver: checking{asked}}),
			fencelock.WithTTL(time.Hour))
		t1, a1 := lock(t, l.Mutex("t")), lock(t, l.Mutex("a"))
		if err := asked.other().Break(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		wantLost(t, "broken behind our back", a1, fencelock.Revoked)
		wantHeld(t, "the other", t1)
		if told.count("check") != 0 || asked.count("check") == 0 {
			t.Errorf("got %d and %d checks, want those of the second driver only",
				told.count("check"), asked.count("check"))
		}
	})
}

// What hides that a driver is made of others is refused at once, and not at each lock.
func TestWrappedCompositeIsRefused(t *testing.T) {
	_, err := fencelock.New(struct{ backend.Driver }{newFake(t)})
	wantErr(t, "a wrapper of a migration, say", err, fencelock.ErrInvalid)
	_, err = fencelock.New(fork("s", backend.Route{Driver: struct{ backend.Driver }{newFake(t)}}))
	wantErr(t, "behind a Router", err, fencelock.ErrInvalid)
}
