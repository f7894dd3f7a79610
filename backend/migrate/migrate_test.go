package migrate_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/backend/migrate"
)

const ttl = 10 * time.Second

var scope = backend.Scope{{Match: "stays/*", Stays: true}, {Match: "*"}}

// world is two stores in memory.
type world struct {
	*testing.T
	old, new *memory.Driver
}

// bubble runs fn in virtual time.
func bubble(t *testing.T, fn func(w world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := world{T: t}
		w.old, w.new = newStore(t), newStore(t)
		fn(w)
	})
}

func newStore(t *testing.T) *memory.Driver {
	t.Helper()
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// client of a store in memory; clients of one store share it.
func client(d *memory.Driver) *memory.Driver {
	c, err := d.Client(backend.DefaultPrefix)
	if err != nil {
		panic(err) // the prefix is good
	}
	return c
}

func (w world) options(phase backend.Phase) migrate.Options {
	return migrate.Options{Move: "m", Scope: scope, Phase: phase, From: client(w.old), To: client(w.new)}
}

func (w world) pair() migrate.Pair {
	return migrate.Pair{Move: "m", Scope: scope, From: w.old, To: w.new}
}

// start starts a client, which is closed with the test unless the test does it.
func (w world) start(phase backend.Phase) *migrate.Driver {
	w.Helper()
	return w.startWith(w.options(phase))
}

func (w world) startWith(o migrate.Options) *migrate.Driver {
	w.Helper()
	d, err := migrate.New(w.Context(), o)
	if err != nil {
		w.Fatalf("a client in phase %s: %v", o.Phase, err)
	}
	w.Cleanup(func() { w.stop(d) })
	return d
}

func (w world) stop(d *migrate.Driver) {
	w.Helper()
	if err := d.Close(); err != nil {
		w.Errorf("Close: %v", err)
	}
}

func request(name string) *backend.Request {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	return &backend.Request{Name: name, Nonce: hex.EncodeToString(raw), Owner: "me", TTL: ttl, Lost: func(error) {}}
}

func (w world) acquire(d backend.Driver, r *backend.Request) *backend.Hold {
	w.Helper()
	g, err := d.Acquire(w.Context(), r)
	if err != nil {
		w.Fatalf("acquire %q: %v", r.Name, err)
	}
	return &backend.Hold{Request: r, Grant: g}
}

func (w world) release(d backend.Driver, h *backend.Hold) {
	w.Helper()
	if err := d.Release(w.Context(), h); err != nil {
		w.Fatalf("release %q: %v", h.Name, err)
	}
}

// cycle locks and unlocks, and returns the token.
func (w world) cycle(d backend.Driver, name string) backend.Token {
	w.Helper()
	h := w.acquire(d, request(name))
	w.release(d, h)
	return h.Token
}

func (w world) want(what string, got, want error) {
	w.Helper()
	if !errors.Is(got, want) {
		w.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (w world) tryFails(d backend.Driver, name string, want error) {
	w.Helper()
	_, err := d.Acquire(w.Context(), request(name))
	w.want("a try of "+name, err, want)
}

func TestNeighboursExclude(t *testing.T) {
	for _, c := range []struct{ a, b backend.Phase }{
		{backend.PhaseFrom, backend.PhaseBoth},
		{backend.PhaseBoth, backend.PhaseFrom},
		{backend.PhaseBoth, backend.PhaseTo},
		{backend.PhaseTo, backend.PhaseBoth},
		{backend.PhaseBoth, backend.PhaseBoth},
		{backend.PhaseTo, backend.PhaseTo},
		{"", backend.PhaseFrom},
		{"", backend.PhaseBoth},
	} {
		bubble(t, func(w world) {
			var a, b backend.Driver = client(w.old), nil
			if c.a != "" {
				a = w.start(c.a)
			}
			b = w.start(c.b)
			h := w.acquire(a, request("x"))
			w.tryFails(b, "x", backend.ErrLocked)
			w.cycle(b, "y")
			w.release(a, h)
			if next := w.cycle(b, "x"); next <= h.Token {
				w.Errorf("%s, then %s: tokens %d, %d", c.a, c.b, h.Token, next)
			}
			// Whichever of the two stores is ahead.
			last := h.Token
			for _, ahead := range []*memory.Driver{w.new, w.old} {
				w.want("raise", ahead.Raise(w.Context(), last+1e12), nil)
				for _, d := range []backend.Driver{b, a, b} {
					got := w.cycle(d, "x")
					if got <= last {
						w.Errorf("%s and %s: token %d after %d", c.a, c.b, got, last)
					}
					last = got
				}
			}
		})
	}
}

// TestTokensRise walks through all phases and back, with tokens of the old store that are far ahead of the new one's clock.
func TestTokensRise(t *testing.T) {
	bubble(t, func(w world) {
		w.want("raise", w.old.Raise(w.Context(), time.Now().UnixMicro()+1e12), nil)
		var last backend.Token
		for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo, backend.PhaseBoth, backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo} {
			d := w.start(phase)
			got := w.cycle(d, "x")
			if got <= last {
				w.Errorf("phase %s: token %d after %d", phase, got, last)
			}
			last = got
			w.stop(d)
			if phase == backend.PhaseTo { // the new store is far ahead now
				w.want("raise", w.new.Raise(w.Context(), last+1e12), nil)
			}
		}
	})
}

// TestTokensRiseWithoutBoth: the same for a name that nobody locks in phase both. Rule I6.
func TestTokensRiseWithoutBoth(t *testing.T) {
	bubble(t, func(w world) {
		w.want("raise", w.old.Raise(w.Context(), time.Now().UnixMicro()+1e12), nil)
		var last backend.Token
		for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo, backend.PhaseBoth, backend.PhaseFrom} {
			d := w.start(phase)
			if phase != backend.PhaseBoth {
				got := w.cycle(d, "x")
				if got <= last {
					w.Errorf("phase %s: token %d after %d", phase, got, last)
				}
				last = got
			}
			w.stop(d)
			if phase == backend.PhaseTo {
				last += 1e12
				w.want("raise", w.new.Raise(w.Context(), last), nil)
			}
		}
	})
}

func TestTwoPhasesApart(t *testing.T) {
	bubble(t, func(w world) {
		from := w.start(backend.PhaseFrom)
		_, err := migrate.New(w.Context(), w.options(backend.PhaseTo))
		w.want("to beside from", err, backend.ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), "still in phase from") {
			w.Errorf("got %v, want it to name who is in phase from", err)
		}
		w.cycle(from, "x")
		w.want("the switch by hand", w.pair().OpenAgainst(w.Context(), backend.PhaseTo), nil)
		to := w.start(backend.PhaseTo)
		w.tryFails(from, "x", backend.ErrUnsupported)
		h := w.acquire(to, request("x"))
		w.tryFails(client(w.old), "x", backend.ErrUnsupported) // by its URL only
		w.cycle(client(w.old), "stays/x")
		w.release(to, h)
		w.stop(to)
		w.stop(from)
		w.start(backend.PhaseFrom) // nobody is in phase to any more
		w.tryFails(to, "x", backend.ErrUnsupported)
	})
}

// TestUnknownSwitch changes only the URL, which the old store's clients cannot see.
func TestOnlyTheURLChanged(t *testing.T) {
	bubble(t, func(w world) {
		w.start(backend.PhaseFrom)
		w.tryFails(client(w.new), "x", backend.ErrUnsupported)
		w.cycle(client(w.new), "stays/x")
		w.start(backend.PhaseBoth)
		w.tryFails(client(w.new), "x", backend.ErrUnsupported)
	})
}

// TestStragglerPausedOverTwoSwitches: rule I5.
func TestStragglerPausedOverTwoSwitches(t *testing.T) {
	bubble(t, func(w world) {
		// Its reports are lost: nobody knows of it.
		from := w.start(backend.PhaseFrom)
		cs, err := w.old.Clients(w.Context(), "m")
		w.want("Clients", err, nil)
		for _, c := range cs {
			w.want("Withdraw", errors.Join(w.old.Withdraw(w.Context(), c), w.new.Withdraw(w.Context(), c)), nil)
		}
		held := w.acquire(from, request("held"))
		began := time.Now()
		to, err := migrate.New(w.Context(), w.options(backend.PhaseTo))
		w.want("to while it is held", err, backend.ErrUnavailable)
		if took := time.Since(began); took != 5*time.Second || to != nil || !strings.Contains(err.Error(), `"held" by me`) {
			w.Errorf("after %v: %v: want it to name the lock and its holder after 5s", took, err)
		}
		w.tryFails(from, "x", backend.ErrUnsupported)
		w.want("renewing what it holds", from.Renew(w.Context(), []*backend.Hold{held})[0], nil)
		w.release(from, held)
		first := w.start(backend.PhaseTo)
		w.tryFails(from, "held", backend.ErrUnsupported)
		if got := w.cycle(first, "held"); got <= held.Token {
			w.Errorf("token %d after %d", got, held.Token)
		}
	})
}

// TestSwitchWaitsForTheDead: a client of phase from was killed; its lock is waited for until the store's expiry.
func TestSwitchWaitsForTheDead(t *testing.T) {
	bubble(t, func(w world) {
		dead := client(w.old)
		g, err := dead.Acquire(w.Context(), request("x"))
		w.want("acquire", err, nil)
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		to, err := migrate.New(ctx, w.options(backend.PhaseTo))
		w.want("to", err, nil)
		defer w.stop(to)
		if took := time.Since(began); took < ttl || took > ttl+time.Second {
			w.Errorf("the switch took %v, want the TTL, %v", took, ttl)
		}
		if got := w.cycle(to, "x"); got <= g.Token {
			w.Errorf("token %d after %d", got, g.Token)
		}
	})
}

func TestTryOfABusyNewStore(t *testing.T) {
	bubble(t, func(w world) {
		both := w.start(backend.PhaseBoth)
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		to := w.start(backend.PhaseTo)
		h := w.acquire(to, request("x"))
		w.tryFails(both, "x", backend.ErrLocked)
		if i, err := w.old.Inspect(w.Context(), "x"); err != nil || i.Held {
			w.Errorf("the old store: got %+v, %v, want it free again", i, err)
		}
		w.release(to, h)
		w.cycle(both, "x")
	})
}

// TestOldLegIsKept: the lock of the old store outlasts a wait for the new one that is longer than the TTL.
func TestOldLegIsKept(t *testing.T) {
	bubble(t, func(w world) {
		both := w.start(backend.PhaseBoth)
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		to := w.start(backend.PhaseTo)
		h := w.acquire(to, request("x"))
		r := request("x")
		r.Wait = true
		granted := make(chan *backend.Hold)
		go func() { granted <- w.acquire(both, r) }()
		for range 5 {
			time.Sleep(ttl / 2)
			w.want("renew", to.Renew(w.Context(), []*backend.Hold{h})[0], nil)
			if i, err := w.old.Inspect(w.Context(), "x"); err != nil || !i.Held {
				w.Fatalf("the old store: got %+v, %v, want it held", i, err)
			}
		}
		w.release(to, h)
		at := backend.Now()
		got := <-granted
		if since := at.Sub(got.Asked); since < 0 || since > time.Second {
			w.Errorf("the grant counts from %v before it, want from just now", since)
		}
		if got.Max != 0 {
			w.Errorf("the grant is trusted for %v only", got.Max)
		}
		if got.Token <= h.Token {
			w.Errorf("token %d after %d", got.Token, h.Token)
		}
		w.release(both, got)
	})
}

// TestOldLegIsLost: what was held in the old store is broken while the new one is waited for. The acquisition starts over.
func TestOldLegIsLost(t *testing.T) {
	bubble(t, func(w world) {
		both := w.start(backend.PhaseBoth)
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		to := w.start(backend.PhaseTo)
		h := w.acquire(to, request("x"))
		r := request("x")
		r.Wait = true
		r.Lost = func(err error) { w.Errorf("told of a loss, %v, without a lock", err) }
		granted := make(chan *backend.Hold)
		go func() { granted <- w.acquire(both, r) }()
		synctest.Wait()
		w.want("break", w.old.Break(w.Context(), "x"), nil)
		synctest.Wait()
		w.release(to, h)
		got := <-granted
		for what, s := range map[string]backend.Driver{"old": w.old, "new": w.new} {
			if i, err := s.Inspect(w.Context(), "x"); err != nil || !i.Held || i.Waiters != 0 {
				w.Errorf("the %s store: got %+v, %v, want it held and nobody waiting", what, i, err)
			}
		}
		r.Lost = func(error) {}
		w.release(both, got)
		w.cycle(both, "x")
	})
}

// TestStartedOverThenGivenUp: an acquisition that started over leaves nothing behind when it is abandoned.
func TestStartedOverThenGivenUp(t *testing.T) {
	bubble(t, func(w world) {
		both := w.start(backend.PhaseBoth)
		other := w.start(backend.PhaseBoth)
		h := w.acquire(w.new2(backend.PhaseBoth), request("x")) // in the new store alone
		r := request("x")
		r.Wait = true
		ctx, cancel := context.WithCancel(w.Context())
		failed := make(chan error)
		go func() {
			_, err := both.Acquire(ctx, r)
			failed <- err
		}()
		synctest.Wait()
		w.want("break", w.old.Break(w.Context(), "x"), nil)
		synctest.Wait()
		cancel()
		w.want("the wait", <-failed, context.Canceled)
		w.want("abandon", both.Abandon(w.Context(), r), nil)
		synctest.Wait()
		for what, s := range map[string]backend.Driver{"old": w.old, "new": w.new} {
			if i, err := s.Inspect(w.Context(), "x"); err != nil || i.Waiters != 0 || i.Held != (what == "new") {
				w.Errorf("the %s store: got %+v, %v", what, i, err)
			}
		}
		w.want("release", w.new.Release(w.Context(), h), nil)
		w.cycle(other, "x")
	})
}

// new2 is the new store, in which a request is of phase both although it is not held in the old one.
func (w world) new2(phase backend.Phase) backend.Driver { return phased{client(w.new), phase} }

type phased struct {
	*memory.Driver
	phase backend.Phase
}

func (p phased) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	r.Move, r.Phase = "m", p.phase
	return p.Driver.Acquire(ctx, r)
}

// TestEitherLegEndsIt: a hold of both is lost when it is lost in one store, by a push and by a renewal.
func TestEitherLegEndsIt(t *testing.T) {
	for _, side := range []string{"old", "new"} {
		bubble(t, func(w world) {
			d := w.start(backend.PhaseBoth)
			lost := make(chan error, 2)
			r := request("x")
			r.Lost = func(err error) { lost <- err }
			h := w.acquire(d, r)
			w.want("check", d.Check(w.Context(), []*backend.Hold{h})[0], nil)
			s := map[string]*memory.Driver{"old": w.old, "new": w.new}[side]
			w.want("break", s.Break(w.Context(), "x"), nil)
			w.want("told", <-lost, backend.ErrLost)
			w.want("renew", d.Renew(w.Context(), []*backend.Hold{h})[0], backend.ErrLost)
			w.want("release", d.Release(w.Context(), h), backend.ErrLost)
			w.cycle(d, "x")
		})
	}
}

func TestInspectAndList(t *testing.T) {
	bubble(t, func(w world) {
		d := w.start(backend.PhaseBoth)
		h := w.acquire(d, request("x"))
		i, err := d.Inspect(w.Context(), "x")
		if err != nil || !i.Held || i.Token != h.Token || i.Owner != "me" || i.Name != "x" {
			w.Errorf("got %+v, %v, want it held with token %d", i, err, h.Token)
		}
		r := request("x")
		r.Wait = true
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan error)
		go func() {
			_, err := d.Acquire(ctx, r)
			done <- err
		}()
		synctest.Wait()
		n := 0
		for i, err := range d.List(w.Context(), "") {
			if n++; err != nil || i.Name != "x" || !i.Held || i.Waiters != 1 {
				w.Errorf("got %+v, %v", i, err)
			}
		}
		if n != 1 {
			w.Errorf("listed %d, want 1", n)
		}
		cancel()
		<-done
		w.want("abandon", d.Abandon(w.Context(), r), nil)
		w.want("break", d.Break(w.Context(), "x"), nil)
		w.tryFree(w.old)
		w.tryFree(w.new)
	})
}

func (w world) tryFree(s backend.Driver) {
	w.Helper()
	if i, err := s.Inspect(w.Context(), "x"); err != nil || i.Held {
		w.Errorf("got %+v, %v, want it free", i, err)
	}
}

// TestLook: who only looks at a migration changes nothing of it, whatever phase his configuration has.
func TestLook(t *testing.T) {
	bubble(t, func(w world) {
		both := w.start(backend.PhaseBoth)
		h := w.acquire(both, request("x"))
		for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo} {
			o := w.options(phase)
			o.Look = true
			if phase == backend.PhaseTo {
				o.From = nil
			}
			d := w.startWith(o)
			if i, err := d.Inspect(w.Context(), "x"); err != nil || !i.Held || i.Owner != "me" {
				w.Errorf("phase %s: got %+v, %v", phase, i, err)
			}
			w.tryFails(d, "y", backend.ErrUnsupported)
		}
		if old, new := w.open(); !old || new {
			w.Errorf("old open %v, new open %v, want them as they were", old, new)
		}
		if cs, err := w.pair().Clients(w.Context()); err != nil || len(cs) != 1 {
			w.Errorf("clients: got %v, %v, want the one that locks", cs, err)
		}
		w.release(both, h)
	})
}

func TestTraitsOfBoth(t *testing.T) {
	redis, row := backend.TraitsOf("redis"), backend.TraitsOf("postgres-row")
	got := migrate.TraitsOfBoth(redis, row)
	if got.Name != "redis+postgres-row" || got.Fencing != backend.Anchored || got.ClockFree || got.Transactional || !got.FIFO ||
		!got.LeasePerConn || got.MinTTL != max(redis.MinTTL, row.MinTTL) || got.DeadWaiter != redis.DeadWaiter+row.DeadWaiter {
		t.Errorf("got %+v", got)
	}
}

func TestBadOptions(t *testing.T) {
	bubble(t, func(w world) {
		for what, change := range map[string]func(*migrate.Options){
			"no name":         func(o *migrate.Options) { o.Move = "" },
			"no scope":        func(o *migrate.Options) { o.Scope = nil },
			"a bad pattern":   func(o *migrate.Options) { o.Scope = backend.Scope{{Match: ""}} },
			"no phase":        func(o *migrate.Options) { o.Phase = "" },
			"a strange phase": func(o *migrate.Options) { o.Phase = "middle" },
			"no old store":    func(o *migrate.Options) { o.From = nil },
			"no new store":    func(o *migrate.Options) { o.To = nil },
		} {
			o := w.options(backend.PhaseBoth)
			change(&o)
			_, err := migrate.New(w.Context(), o)
			w.want(what, err, backend.ErrInvalid)
		}
		o := w.options(backend.PhaseBoth)
		o.To = struct{ backend.Driver }{client(w.new)}
		_, err := migrate.New(w.Context(), o)
		w.want("a store without gates", err, backend.ErrUnsupported)
	})
}

func TestScopeMustNotChange(t *testing.T) {
	bubble(t, func(w world) {
		w.start(backend.PhaseBoth)
		o := w.options(backend.PhaseBoth)
		o.Scope = backend.Scope{{Match: "x/*"}}
		_, err := migrate.New(w.Context(), o)
		w.want("another scope", err, backend.ErrInvalid)
	})
}
