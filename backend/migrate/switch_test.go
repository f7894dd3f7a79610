package migrate_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/backend/migrate"
)

var errDead = errors.New("the switcher is dead")

// stepped is a store whose calls a switcher makes one by one: before the call number at it does something.
type stepped struct {
	*memory.Driver
	steps *int
	at    int
	do    func() error
}

func (s stepped) step() error {
	*s.steps++
	if *s.steps >= s.at {
		return s.do()
	}
	return nil
}

func (s stepped) Gates(ctx context.Context) ([]backend.Gate, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	return s.Driver.Gates(ctx)
}

func (s stepped) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Driver.SetGate(ctx, g, was)
}

func (s stepped) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	return s.Driver.Undrained(ctx, g)
}

func (s stepped) Source(ctx context.Context) (backend.Token, error) {
	if err := s.step(); err != nil {
		return 0, err
	}
	return s.Driver.Source(ctx)
}

func (s stepped) Raise(ctx context.Context, floor backend.Token) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Driver.Raise(ctx, floor)
}

// open reports which stores let clients of a single phase in.
func (w world) open() (old, new bool) {
	w.Helper()
	st, err := w.pair().Status(w.Context())
	w.want("status", err, nil)
	return st.From.Open(true), st.To.Open(false)
}

// steps is more than a switch has.
const steps = 10

// TestSwitcherDies: a switch is broken off before each of its steps, either way; the next one finishes it. Rule I2.
func TestSwitcherDies(t *testing.T) {
	died := 0
	for _, phase := range []backend.Phase{backend.PhaseTo, backend.PhaseFrom} {
		for at := 1; at <= steps; at++ {
			bubble(t, func(w world) {
				both := w.start(backend.PhaseBoth)
				w.want("raise", w.old.Raise(w.Context(), time.Now().UnixMicro()+1e12), nil)
				if phase == backend.PhaseFrom {
					w.want("there first", w.pair().Open(w.Context(), backend.PhaseTo), nil)
					w.want("raise", w.new.Raise(w.Context(), time.Now().UnixMicro()+1e13), nil)
				}
				first := w.cycle(client(map[backend.Phase]*memory.Driver{backend.PhaseTo: w.old, backend.PhaseFrom: w.new}[phase]), "not in both")
				n := 0
				dying := w.pair()
				dying.From = stepped{client(w.old), &n, at, func() error { return errDead }}
				dying.To = stepped{client(w.new), &n, at, func() error { return errDead }}
				err := dying.Open(w.Context(), phase)
				if errors.Is(err, errDead) {
					died++
				} else {
					w.want("a switch that lived", err, nil)
				}
				if old, new := w.open(); old && new {
					w.Errorf("died at step %d: both stores are open", at)
				}
				w.cycle(both, "x")
				last := w.start(phase)
				if old, new := w.open(); old == new || new != (phase == backend.PhaseTo) {
					w.Errorf("after the next switch: old open %v, new open %v", old, new)
				}
				if token := w.cycle(last, "not in both"); token <= first {
					w.Errorf("died at step %d: token %d after %d", at, token, first)
				}
			})
		}
	}
	if died < 10 {
		t.Errorf("only %d switches died: the steps are not counted", died)
	}
}

// TestSwitchersMeet: one switch is paused before each of its steps while another, the other way, runs from end to
// end; then it goes on. At no time both stores are open, and at the end exactly one is.
func TestSwitchersMeet(t *testing.T) {
	met := 0
	for at := 1; at <= steps; at++ {
		bubble(t, func(w world) {
			w.start(backend.PhaseBoth)
			paused := w.pair()
			n, once := 0, false
			check := func(when string) {
				w.Helper()
				if old, new := w.open(); old && new {
					w.Errorf("step %d, %s: both stores are open", at, when)
				}
			}
			meet := func() error {
				check("before the other")
				if !once {
					once = true
					met++
					w.want("back", w.pair().Open(w.Context(), backend.PhaseFrom), nil)
					if at%2 == 0 { // and there and back again
						w.want("there", w.pair().Open(w.Context(), backend.PhaseTo), nil)
						w.want("back", w.pair().Open(w.Context(), backend.PhaseFrom), nil)
					}
				}
				check("after the other")
				time.Sleep(time.Millisecond) // epochs are moments
				return nil
			}
			paused.From = stepped{client(w.old), &n, at, meet}
			paused.To = stepped{client(w.new), &n, at, meet}
			w.want("there", paused.Open(w.Context(), backend.PhaseTo), nil)
			if old, new := w.open(); old || !new {
				w.Errorf("step %d: old open %v, new open %v, want the new one alone", at, old, new)
			}
		})
	}
	if met < 6 {
		t.Errorf("only %d switches met: the steps are not counted", met)
	}
}

// TestPausedOverALoss: a switch to a store without a gate is paused before it opens it. Another switches back, the new store
// loses its data, and the first goes on: what it expects must not be what is there again.
func TestPausedOverALoss(t *testing.T) {
	bubble(t, func(w world) {
		now := &lossy{Driver: client(w.new)}
		pair := func(to backend.Gater) migrate.Pair {
			return migrate.Pair{Move: "m", Scope: scope, From: w.old, To: to}
		}
		late := &beforeOpening{lossy: now}
		late.do = func() {
			w.want("back", pair(now).Open(w.Context(), backend.PhaseFrom), nil)
			now.Driver = client(newStore(w.T))
			time.Sleep(time.Millisecond)
		}
		w.want("there", pair(late).Open(w.Context(), backend.PhaseTo), nil)
		st, err := pair(now).Status(w.Context())
		w.want("status", err, nil)
		if st.From.Open(true) || !st.To.Open(false) {
			w.Errorf("old open %v, new open %v, want the new one alone", st.From.Open(true), st.To.Open(false))
		}
		if late.do != nil {
			w.Error("the switch was not paused")
		}
	})
}

// beforeOpening does something once, before its gate is opened.
type beforeOpening struct {
	*lossy
	do func()
}

func (b *beforeOpening) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if do := b.do; do != nil && g.State == backend.GateOpen {
		b.do = nil
		do()
	}
	return b.lossy.SetGate(ctx, g, was)
}

// TestLostGate: a store that has lost its data is closed again by the next acquisition in phase both.
func TestLostGate(t *testing.T) {
	bubble(t, func(w world) {
		both := w.start(backend.PhaseBoth)
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		first := w.cycle(both, "x")
		// The clients of phase both have a connection to the old store, whose data is lost under them.
		lossy := &lossy{Driver: client(w.old)}
		o := w.options(backend.PhaseBoth)
		o.From = lossy
		d := w.startWith(o)
		w.cycle(d, "x")
		fresh := newStore(w.T)
		lossy.Driver = client(fresh)
		if got := w.cycle(d, "x"); got <= first {
			w.Errorf("token %d after %d", got, first)
		}
		w.tryFails(client(fresh), "x", backend.ErrUnsupported)
		w.cycle(client(fresh), "stays/x")
	})
}

// TestLostGateOfTheNewStore: without its gate the new store would let programs in that are merely given its URL.
func TestLostGateOfTheNewStore(t *testing.T) {
	bubble(t, func(w world) {
		lossy := &lossy{Driver: client(w.new)}
		o := w.options(backend.PhaseBoth)
		o.To = lossy
		d := w.startWith(o)
		w.cycle(d, "x")
		fresh := newStore(w.T)
		lossy.Driver = client(fresh)
		w.cycle(d, "x")
		w.tryFails(client(fresh), "x", backend.ErrUnsupported)
		w.cycle(client(w.old), "x") // the old one is where everybody is
	})
}

// lossy is a store whose data can be replaced under its clients.
type lossy struct{ *memory.Driver }

// TestOneStoreDown: rule I4.
func TestOneStoreDown(t *testing.T) {
	for _, side := range []string{"old", "new"} {
		bubble(t, func(w world) {
			down := &broken{Driver: client(map[string]*memory.Driver{"old": w.old, "new": w.new}[side])}
			o := w.options(backend.PhaseBoth)
			if side == "old" {
				o.From = down
			} else {
				o.To = down
			}
			d := w.startWith(o)
			h := w.acquire(d, request("held"))
			down.err = errors.New("connection refused")
			r := request("x")
			_, err := d.Acquire(w.Context(), r)
			w.want("a try", err, down.err)
			if err := d.Renew(w.Context(), []*backend.Hold{h})[0]; !errors.Is(err, down.err) {
				w.Errorf("renew: got %v, want unknown", err)
			}
			if err := d.Release(w.Context(), h); !errors.Is(err, down.err) {
				w.Errorf("release: got %v, want unknown", err)
			}
			w.want("abandon", d.Abandon(w.Context(), r), down.err)
			down.err = nil
			w.want("abandon again", d.Abandon(w.Context(), r), nil)
			w.release(d, h)
			w.cycle(d, "x")
			w.cycle(d, "held")
		})
	}
}

// broken is a store that cannot be reached while err is set.
type broken struct {
	*memory.Driver
	err error
}

func (b *broken) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if b.err != nil {
		return backend.Grant{}, b.err
	}
	return b.Driver.Acquire(ctx, r)
}

func (b *broken) Renew(ctx context.Context, hs []*backend.Hold) []error {
	if b.err != nil {
		return slices.Repeat([]error{b.err}, len(hs))
	}
	return b.Driver.Renew(ctx, hs)
}

func (b *broken) Release(ctx context.Context, h *backend.Hold) error {
	if b.err != nil {
		return b.err
	}
	return b.Driver.Release(ctx, h)
}

func (b *broken) Abandon(ctx context.Context, r *backend.Request) error {
	if b.err != nil {
		return b.err
	}
	return b.Driver.Abandon(ctx, r)
}

// TestOtherStoreIsNotNeeded: in phase to nobody needs the old store once the new one is open, and in phase from nobody the new
// one once both have gates.
func TestOtherStoreIsNotNeeded(t *testing.T) {
	for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseTo} {
		bubble(t, func(w world) {
			gone := errors.New("no such host")
			var tries atomic.Int32
			o := w.options(phase)
			o.Other = func(context.Context) (backend.Driver, error) {
				tries.Add(1)
				return nil, gone
			}
			if phase == backend.PhaseFrom {
				o.To = nil
			} else {
				o.From = nil
			}
			_, err := migrate.New(w.Context(), o)
			w.want("the first of all", err, gone)
			w.stop(w.start(phase)) // sets the gates
			before := tries.Load()
			d := w.startWith(o)
			w.cycle(d, "x")
			time.Sleep(time.Minute)
			if n := tries.Load() - before; n < 4 {
				w.Errorf("the other store was looked for %d times within a minute, want about 6", n)
			}
			o.Other = func(context.Context) (backend.Driver, error) {
				return client(map[backend.Phase]*memory.Driver{backend.PhaseFrom: w.new, backend.PhaseTo: w.old}[phase]), nil
			}
			w.startWith(o)
			if cs, err := w.pair().Clients(w.Context()); err != nil || len(cs) != 2 {
				w.Errorf("clients: got %v, %v, want two", cs, err)
			}
		})
	}
}

func TestReports(t *testing.T) {
	bubble(t, func(w world) {
		d := w.start(backend.PhaseFrom)
		time.Sleep(10 * time.Minute)
		status := func() migrate.Status {
			w.Helper()
			st, err := w.pair().Status(w.Context())
			w.want("status", err, nil)
			return st
		}
		st := status()
		if len(st.Clients) != 1 {
			w.Fatalf("got %d clients, want 1", len(st.Clients))
		}
		c := st.Clients[0]
		if c.Phase != backend.PhaseFrom || c.MaxTTL != 30*time.Second || !c.Alive(time.Now()) || !c.InFrom || !c.InTo || time.Since(c.Since) < 10*time.Minute || c.PID == 0 || c.Host == "" {
			w.Errorf("got %+v", c)
		}
		// A longer TTL is reported before it is asked for.
		r := request("x")
		r.TTL = time.Hour
		h := w.acquire(d, r)
		if got := status().Clients[0].MaxTTL; got != time.Hour {
			w.Errorf("longest TTL: got %v, want 1h", got)
		}
		if why := status().Blockers(backend.PhaseTo); len(why) != 2 || !strings.Contains(why[0], "is in phase from") || !strings.Contains(why[1], `"x" by me`) {
			w.Errorf("blockers of to: %q", why)
		}
		if why := status().Blockers(backend.PhaseBoth); len(why) != 0 {
			w.Errorf("blockers of both: %q", why)
		}
		w.release(d, h)
		w.stop(d)
		if why := status().Blockers(backend.PhaseTo); len(why) != 0 {
			w.Errorf("blockers of to after Close: %q", why)
		}
	})
}

// TestSilentClient: one that was killed is waited for until its longest lease is surely over.
func TestSilentClient(t *testing.T) {
	bubble(t, func(w world) {
		w.want("prepare", w.pair().Prepare(w.Context()), nil)
		killed := backend.Client{ID: "1", Move: "m", Phase: backend.PhaseFrom, Host: "h", PID: 7, MaxTTL: time.Minute, Reported: time.Now()}
		w.want("report", w.old.Report(w.Context(), killed, 30*time.Second+killed.MaxTTL), nil)
		time.Sleep(31 * time.Second)
		st, err := w.pair().Status(w.Context())
		w.want("status", err, nil)
		if why := st.Blockers(backend.PhaseTo); len(why) != 1 || !strings.Contains(why[0], "h:7 was, when it last reported 31s ago, in phase from") {
			w.Errorf("blockers: %q", why)
		}
		// It locks nobody out: what it may hold is waited for.
		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		time.Sleep(time.Minute)
		st, err = w.pair().Status(w.Context())
		w.want("status", err, nil)
		if why := st.Blockers(backend.PhaseTo); len(why) != 0 {
			w.Errorf("blockers at the end: %q", why)
		}
	})
}

func TestFinish(t *testing.T) {
	bubble(t, func(w world) {
		w.start(backend.PhaseBoth)
		err := w.pair().Finish(w.Context())
		w.want("too early", err, backend.ErrInvalid)
		for _, why := range []string{"old store is not closed", "new store is not open", "reported phase both"} {
			if err == nil || !strings.Contains(err.Error(), why) {
				w.Errorf("got %v, want it to say %q", err, why)
			}
		}
	})
	bubble(t, func(w world) {
		d := w.start(backend.PhaseTo)
		w.cycle(d, "x")
		w.want("finish", w.pair().Finish(w.Context()), nil)
		if cs, err := w.old.Clients(w.Context(), "m"); err != nil || len(cs) != 0 {
			w.Errorf("in the old store: got %v, %v, want nobody", cs, err)
		}
		w.tryFails(client(w.old), "x", backend.ErrUnsupported)
	})
}

// TestCloseLeavesNothing: goroutines are waited for, and what was dropped is dropped.
func TestCloseLeavesNothing(t *testing.T) {
	bubble(t, func(w world) {
		d := w.start(backend.PhaseBoth)
		w.cycle(d, "x")
		w.stop(d)
		synctest.Wait()
		if cs, err := w.pair().Clients(w.Context()); err != nil || len(cs) != 0 {
			w.Errorf("clients after Close: got %v, %v, want none", cs, err)
		}
	})
}
