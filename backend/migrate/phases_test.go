package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/internal/core"
)

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
			var a, b core.Caller = client(w.old), nil
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
			for _, ahead := range []store{w.new, w.old} {
				w.want("raise", ahead.Raise(w.Context(), last+1e12), nil)
				for _, d := range []core.Caller{b, a, b} {
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

// TestTokensRise walks through all phases and back, with tokens of the old store that are far ahead
// of the new one's clock.
func TestTokensRise(t *testing.T) {
	bubble(t, func(w world) {
		w.want("raise", w.old.Raise(w.Context(), time.Now().UnixMicro()+1e12), nil)
		var last backend.Token
		for _, phase := range []backend.Phase{
			backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo, backend.PhaseBoth,
			backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo,
		} {
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
		for _, phase := range []backend.Phase{
			backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo, backend.PhaseBoth,
			backend.PhaseFrom,
		} {
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

// TestFirstStart: the first client of a migration refuses nobody who knows nothing of it, at no moment.
func TestFirstStart(t *testing.T) {
	bubble(t, func(w world) {
		n := 0
		lock := func() error { w.cycle(client(w.old), "x"); return nil }
		o := w.options(backend.PhaseFrom)
		o.From, o.To = stepped{client(w.old), &n, 1, lock, 0}, stepped{client(w.new), &n, 1, lock, 0}
		w.startWith(o)
		if n < 4 {
			w.Errorf("only %d steps: they are not counted", n)
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
		synctest.Wait() // the spare store is told by a goroutine of its own
		cs, err := w.old.Clients(w.Context(), "m")
		w.want("Clients", err, nil)
		for _, c := range cs {
			w.want("Withdraw", errors.Join(w.old.Withdraw(w.Context(), c), w.new.Withdraw(w.Context(), c)), nil)
		}
		held := w.acquire(from, request("held"))
		began := time.Now()
		to, err := migrate.New(w.Context(), w.options(backend.PhaseTo))
		w.want("to while it is held", err, backend.ErrUnavailable)
		if took := time.Since(began); took < 4*time.Second || took > 5*time.Second || to != nil ||
			!strings.Contains(err.Error(), `"held" by me`) {
			w.Errorf("after %v: %v: want it to name the lock and its holder within 4 to 5s", took, err)
		}
		w.cycle(from, "x") // the start that failed has opened again what it closed
		w.want("renewing what it holds", from.Renew(w.Context(), []*core.Hold{held})[0], nil)
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

// failsAtLooks is a store whose client has no answer from the second look at who holds on.
type failsAtLooks struct {
	store
	looks *int
}

func (s failsAtLooks) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	if *s.looks++; *s.looks > 1 {
		return nil, errors.New("no answer")
	}
	return s.Gater.Undrained(ctx, g)
}

// TestFailedLookTellsWhoHolds: a driver may give up a look shortly before ctx ends. The error names who was waited for.
func TestFailedLookTellsWhoHolds(t *testing.T) {
	bubble(t, func(w world) {
		w.acquire(client(w.old), request("straggler"))
		p := w.pair()
		p = p.Over(failsAtLooks{client(w.old), new(int)}, nil)
		err := p.Open(w.Context(), backend.PhaseTo)
		w.want("a switch past a holder", err, backend.ErrUnavailable)
		for _, part := range []string{`"straggler" by`, "no answer"} {
			if !strings.Contains(fmt.Sprint(err), part) {
				w.Errorf("%v; want %s in it", err, part)
			}
		}
		if old, new := w.open(); !old || new {
			w.Errorf("old open %v, new open %v, want the old one as before", old, new)
		}
	})
}

// TestStartedOverThenGivenUp: a lock that was asked for anew leaves nothing behind when its wait ends.
func TestStartedOverThenGivenUp(t *testing.T) {
	bubble(t, func(w world) {
		l := w.locker(w.options(backend.PhaseBoth))
		h := w.acquire(w.new2(backend.PhaseBoth), request("x")) // in the new store alone
		ctx, cancel := context.WithCancel(w.Context())
		failed := w.locks(ctx, l.Mutex("x"))
		w.want("break", w.old.Break(w.Context(), "x"), nil)
		time.Sleep(time.Second)
		cancel()
		<-failed
		synctest.Wait()
		for what, s := range map[string]core.Caller{"old": w.old, "new": w.new} {
			if i, err := s.Inspect(w.Context(), "x"); err != nil || i.Waiters != 0 || i.Held != (what == "new") {
				w.Errorf("the %s store: got %+v, %v", what, i, err)
			}
		}
		w.want("release", w.new.Release(w.Context(), h), nil)
		w.cycle(w.start(backend.PhaseBoth), "x")
	})
}

// new2 is the new store, in which a request is of phase both although it is not held in the old one.
func (w world) new2(phase backend.Phase) core.Caller { return phased{client(w.new), phase} }

type phased struct {
	store
	phase backend.Phase
}

func (p phased) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	r.Move, r.Phase = "m", p.phase
	return p.Gater.Acquire(ctx, r)
}

// lateNews tells its holders of a loss a while later.
type lateNews struct {
	store
	by time.Duration
}

func (d lateNews) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	tell := r.Lost
	r.Lost = func(err error) { time.AfterFunc(d.by, func() { tell(err) }) }
	return d.Gater.Acquire(ctx, r)
}

// slowBreak takes a while to carry out a Break.
type slowBreak struct {
	store
	by time.Duration
}

func (d slowBreak) Break(ctx context.Context, name string) error {
	time.Sleep(d.by)
	return d.Gater.Break(ctx, name)
}

// A Break in phase both that reaches the second store late breaks nobody who has come since; it does break a
// holder that hears of nothing.
func TestBreakSparesTheNext(t *testing.T) {
	for _, tt := range []struct {
		what  string
		phase backend.Phase
		hears bool
	}{
		{"a holder that lives", backend.PhaseBoth, true},
		{"a holder that is dead", backend.PhaseBoth, false},
		{"a holder in the old store alone", backend.PhaseFrom, true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			bubble(t, func(w world) {
				o := w.options(tt.phase)
				o.From = lateNews{client(w.old), 50 * time.Millisecond}
				a := w.startWith(o)
				o = w.options(backend.PhaseBoth)
				o.To = slowBreak{client(w.new), 70 * time.Millisecond}
				op := w.startWith(o)
				b := w.start(backend.PhaseBoth)

				r := request("x")
				if tt.hears {
					r.Lost = func(error) { go func() { _ = a.Abandon(context.Background(), r) }() }
				}
				w.acquire(a, r)
				next := request("x")
				next.Wait = true
				next.Lost = func(err error) { w.Errorf("the next holder was told %v", err) }
				granted := make(chan *core.Hold)
				go func() { granted <- w.acquire(b, next) }()
				synctest.Wait()
				began := time.Now()
				w.want("break", op.Break(w.Context(), "x"), nil)
				h := <-granted
				if took := time.Since(began); took > time.Second {
					w.Errorf("the next holder came after %v", took)
				}
				time.Sleep(time.Second)
				w.release(b, h)
			})
		})
	}
}

// hung is a store that answers no operator.
type hung struct{ store }

func (hung) Inspect(ctx context.Context, _ string) (backend.Info, error) {
	<-ctx.Done()
	return backend.Info{}, ctx.Err()
}

func (hung) Break(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// heedful is a store that breaks nothing once ctx has ended, as one with a network.
type heedful struct{ store }

func (s heedful) Break(ctx context.Context, name string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.Gater.Break(ctx, name)
}

// unbroken is a store in which nothing can be broken.
type unbroken struct{ store }

func (unbroken) Break(context.Context, string) error { return errDead }

// A Break in phase both that the old store refuses frees the lock in the new one, and says so.
func TestBreakThatTheOldStoreRefuses(t *testing.T) {
	bubble(t, func(w world) {
		w.acquire(w.new2(backend.PhaseBoth), request("x"))
		o := w.options(backend.PhaseBoth)
		o.From = unbroken{client(w.old)}
		w.want("break", w.startWith(o).Break(w.Context(), "x"), errDead)
		w.tryFree(w.new)
	})
}

// A Break in phase both frees the lock in the old store though the new one hangs, and says that it does.
func TestBreakBesideAStoreThatHangs(t *testing.T) {
	bubble(t, func(w world) {
		w.acquire(w.start(backend.PhaseFrom), request("x"))
		o := w.options(backend.PhaseBoth)
		o.From, o.To = heedful{client(w.old)}, hung{client(w.new)}
		op := w.startWith(o)
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		w.want("break", op.Break(ctx, "x"), context.DeadlineExceeded)
		w.tryFree(w.old)
	})
}
