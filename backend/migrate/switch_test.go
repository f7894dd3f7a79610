package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// stepped is a store whose calls a switcher makes one by one: before the call number at it does something.
type stepped struct {
	store
	steps *int
	at    int
	do    func() error
	ahead time.Duration // of the switcher's clock, from which epochs are made
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
	return s.Gater.Gates(ctx)
}

func (s stepped) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if err := s.step(); err != nil {
		return err
	}
	g.Epoch += s.ahead.Microseconds()
	return s.Gater.SetGate(ctx, g, was)
}

func (s stepped) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	return s.Gater.Undrained(ctx, g)
}

func (s stepped) Source(ctx context.Context) (backend.Token, error) {
	if err := s.step(); err != nil {
		return 0, err
	}
	return s.Gater.Source(ctx)
}

func (s stepped) Raise(ctx context.Context, floor backend.Token) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Gater.Raise(ctx, floor)
}

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
				other := w.old
				if phase == backend.PhaseFrom {
					other = w.new
				}
				first := w.cycle(client(other), "not in both")
				n := 0
				dying := w.pair()
				dying = dying.Over(stepped{client(w.old), &n, at, func() error { return errDead }, 0}, nil)
				dying = dying.Over(nil, stepped{client(w.new), &n, at, func() error { return errDead }, 0})
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

// TestSwitchersMeet: one switch is paused before each of its steps while another, the other way,
// runs from end to end; then it goes on. At no time both stores are open, and at the end exactly
// one is, whatever the paused one's clock.
func TestSwitchersMeet(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour} {
		switchersMeet(t, ahead)
	}
}

func switchersMeet(t *testing.T, ahead time.Duration) {
	t.Helper()
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
			paused = paused.Over(stepped{client(w.old), &n, at, meet, ahead}, nil)
			paused = paused.Over(nil, stepped{client(w.new), &n, at, meet, ahead})
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

// TestSwitchSaysWhomItWaitsFor: the error of one whose ctx ends names who holds in the other store alone.
func TestSwitchSaysWhomItWaitsFor(t *testing.T) {
	bubble(t, func(w world) {
		w.stop(w.start(backend.PhaseBoth))
		r := request("held")
		r.TTL = time.Hour
		old := client(w.old) // of a program that knows nothing of the migration
		h := w.acquire(old, r)
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		err := w.pair().Open(ctx, backend.PhaseTo)
		w.want("the switch", err, backend.ErrUnavailable)
		w.want("the switch", err, context.DeadlineExceeded)
		if !strings.Contains(fmt.Sprint(err), "held") {
			w.Errorf("got %v, want it to name the lock", err)
		}
		w.release(old, h)
	})
}

// TestUndoMeetsASwitch: one switch is paused before each of its steps while another the same way fails and is undone;
// then it goes on. At no time both stores are open, and at the end exactly one is.
func TestUndoMeetsASwitch(t *testing.T) {
	met := 0
	for at := 1; at <= steps; at++ {
		bubble(t, func(w world) {
			w.start(backend.PhaseBoth)
			n, once := 0, false
			meet := func() error {
				if once {
					return nil
				}
				once = true
				time.Sleep(time.Millisecond) // epochs are moments
				failing := w.pair()
				failing = failing.Over(nil, noRaise{client(w.new)})
				if err := failing.Open(w.Context(), backend.PhaseTo); errors.Is(err, errDead) {
					met++
				}
				if old, new := w.open(); old && new {
					w.Errorf("step %d: both stores are open after the undo", at)
				}
				time.Sleep(time.Millisecond)
				return nil
			}
			paused := w.pair()
			paused = paused.Over(stepped{client(w.old), &n, at, meet, 0}, stepped{client(w.new), &n, at, meet, 0})
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

// noRaise is a store that cannot be raised.
type noRaise struct{ store }

func (noRaise) Raise(context.Context, backend.Token) error { return errDead }

// TestGrantsDuringASwitch: before each step of a switch somebody who knows of no migration locks once more, if the gate
// lets him. The first token after the switch is greater than his.
func TestGrantsDuringASwitch(t *testing.T) {
	granted := 0
	for _, phase := range []backend.Phase{backend.PhaseTo, backend.PhaseFrom} {
		for at := 1; at <= steps; at++ {
			bubble(t, func(w world) {
				w.stop(w.start(backend.PhaseBoth))
				leaving, next := w.old, w.new
				if phase == backend.PhaseFrom {
					w.want("there first", w.pair().Open(w.Context(), backend.PhaseTo), nil)
					leaving, next = w.new, w.old
				}
				w.want("raise", leaving.Raise(w.Context(), time.Now().UnixMicro()+1e9), nil)
				n, last, plain := 0, backend.Token(0), client(leaving)
				lock := func() error {
					if r := request("x"); n == at {
						if g, err := plain.Acquire(w.Context(), r); err == nil {
							granted++
							last = g.Token
							w.release(plain, &core.Hold{Request: r, Grant: g})
						}
					}
					return nil
				}
				p := w.pair()
				p = p.Over(stepped{client(w.old), &n, at, lock, 0}, stepped{client(w.new), &n, at, lock, 0})
				w.want("the switch", p.Open(w.Context(), phase), nil)
				if got := w.cycle(client(next), "x"); got <= last {
					w.Errorf("phase %s: token %d after %d, which was granted "+
						"before step %d of the switch", phase, got, last, at)
				}
			})
		}
	}
	if granted < 6 {
		t.Errorf("granted at %d steps only: they are not counted", granted)
	}
}

// searched does something whenever it is searched for holders.
type searched struct {
	store
	do func()
}

func (s searched) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	s.do()
	return s.Gater.Undrained(ctx, g)
}

// TestUndoNeedsOneStore: a switch that found its store open opens it again without the other one, which may be down
// by then, or take longer to search than there is time for.
func TestUndoNeedsOneStore(t *testing.T) {
	for _, phase := range []backend.Phase{backend.PhaseTo, backend.PhaseFrom} {
		for _, silent := range []string{"Undrained", everything} {
			bubble(t, func(w world) {
				w.stop(w.start(backend.PhaseBoth))
				opening := &mute{store: client(w.new)}
				falls := func() { opening.to = silent }
				authority, p := w.old, w.pair().Over(searched{client(w.old), falls}, opening)
				if phase == backend.PhaseFrom {
					w.want("there", w.pair().Open(w.Context(), backend.PhaseTo), nil)
					opening = &mute{store: client(w.old)}
					authority, p = w.new, w.pair().Over(opening, searched{client(w.new), falls})
				}
				fleet := client(authority)
				held := w.acquire(fleet, request("held"))
				short, cancel := context.WithTimeout(w.Context(), ttl/2)
				defer cancel()
				err := p.Open(short, phase)
				w.want("a switch past a holder", err, backend.ErrUnavailable)
				if err == nil || strings.Contains(err.Error(), "opened again") {
					w.Errorf("phase %s, silent to %s: got %v, want it undone", phase, silent, err)
				}
				if old, new := w.open(); old != (authority == w.old) || new != (authority == w.new) {
					w.Errorf("phase %s, silent to %s: old open %v, new open %v, want it as before",
						phase, silent, old, new)
				}
				w.release(fleet, held)
			})
		}
	}
}

// unraised does something instead of raising its tokens, which fails.
type unraised struct {
	*lossy
	do func()
}

func (u unraised) Raise(context.Context, backend.Token) error {
	u.do()
	return errDead
}

// TestUndoWaitsForHolders: a switch that fails opens its store again only once nobody holds in the other one alone. It
// searches that unless it found its own store open, and the other one has kept its gate since.
func TestUndoWaitsForHolders(t *testing.T) {
	for _, tt := range []struct {
		what           string
		before, during func(w world, to *lossy) *core.Hold // the switch; one of them is nil
	}{
		{"a switch back has died, and who held then still does", func(w world, to *lossy) *core.Hold {
			w.want("there", w.pair().Open(w.Context(), backend.PhaseTo), nil)
			h := w.acquire(to.store, request("x"))
			st, err := w.pair().Status(w.Context())
			w.want("status", err, nil)
			g := st.To.Gate
			g.State, g.Epoch = backend.GateBoth, g.Epoch+1
			w.want("a switch back that dies", w.new.SetGate(w.Context(), g, g.Epoch-1), nil)
			return h
		}, nil},
		{"the other store loses its data, and somebody locks there", nil, func(w world, to *lossy) *core.Hold {
			to.store = client(newStore(w.T))
			h := w.acquire(to.store, request("x"))
			time.Sleep(time.Millisecond) // epochs are moments
			w.want("prepare", w.pair().Over(nil, to).Prepare(w.Context()), nil)
			return h
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			bubble(t, func(w world) {
				w.stop(w.start(backend.PhaseBoth))
				to := &lossy{store: client(w.new)}
				var held *core.Hold
				if tt.before != nil {
					held = tt.before(w, to)
				}
				p := w.pair().Over(nil, unraised{to, func() {
					if tt.during != nil {
						held = tt.during(w, to)
					}
				}})
				err := p.Open(w.Context(), backend.PhaseTo)
				w.want("a switch that fails", err, errDead)
				if err == nil || !strings.Contains(err.Error(), "opened again") {
					w.Errorf("got %v, want it to say that it is not undone", err)
				}
				w.tryFails(client(w.old), "x", backend.ErrUnsupported)
				w.release(to.store, held)
				w.want("back", w.pair().Over(nil, to).Open(w.Context(), backend.PhaseFrom), nil)
				w.cycle(client(w.old), "x")
			})
		})
	}
}
