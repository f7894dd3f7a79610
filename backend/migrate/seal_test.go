package migrate_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
)

// moved walks a fleet to the new store and finishes the migration.
func (w world) moved() {
	w.Helper()
	w.stop(w.start(backend.PhaseBoth))
	to := w.start(backend.PhaseTo)
	w.cycle(to, "x")
	w.stop(to)
	w.want("finish", w.pair().Finish(w.Context()), nil)
	w.want("finish again", w.pair().Finish(w.Context()), nil)
}

// gates are both, to see whether anything changed.
func (w world) gates() (from, to migrate.Side) {
	w.Helper()
	st, err := w.pair().Status(w.Context())
	w.want("status", err, nil)
	return st.From, st.To
}

// TestFinishedIsSealed: a process with the configuration of phase from is refused as it starts, and the fleet, which
// knows of no migration any more, does not notice.
func TestFinishedIsSealed(t *testing.T) {
	for what, lose := range map[string]func(w *world){
		"both stores as they were":          func(*world) {},
		"the old store is another, and new": func(w *world) { w.old = newStore(w.T) },
		"the new store has lost its data":   func(w *world) { w.new = newStore(w.T) },
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(w world) {
				w.moved()
				lose(&w)
				fleet := client(w.new)
				held := w.acquire(fleet, request("held"))
				from, to := w.gates()
				_, err := migrate.New(w.Context(), w.options(backend.PhaseFrom))
				w.want("a start in phase from", err, backend.ErrInvalid)
				if err == nil || !strings.Contains(err.Error(), "is finished") ||
					!strings.Contains(err.Error(), "advance --phase from") {
					w.Errorf("got %v, want it to say that the migration is finished, and the way back", err)
				}
				if _, late := w.gates(); late.Gate.Epoch != to.Gate.Epoch {
					w.Errorf("the new store's gate: got %+v, want %+v as before", late, to)
				}
				w.cycle(fleet, "x")
				w.release(fleet, held)
				if from.Gate.Epoch != 0 { // a store with no gate knows of no migration
					w.tryFails(client(w.old), "x", backend.ErrUnsupported)
				}
				// A straggler in phase both may start, and keeps nobody out; nor does one that repairs.
				both := w.start(backend.PhaseBoth)
				w.cycle(both, "x")
				time.Sleep(2 * time.Second)
				w.cycle(both, "x")
				w.cycle(fleet, "x")
			})
		})
	}
}

// TestFinishedOnOneSide: a Finish that was stopped in the middle has sealed the store that the fleet uses.
func TestFinishedOnOneSide(t *testing.T) {
	bubble(t, func(w world) {
		w.stop(w.start(backend.PhaseBoth))
		w.stop(w.start(backend.PhaseTo))
		n := 0
		dying := w.pair()
		dying = dying.Over(noGate{client(w.old), &n, 1}, nil)
		w.want("a finish that dies", dying.Finish(w.Context()), errDead)
		_, err := migrate.New(w.Context(), w.options(backend.PhaseFrom))
		w.want("a start in phase from", err, backend.ErrInvalid)
		w.cycle(client(w.new), "x")
		w.want("finish", w.pair().Finish(w.Context()), nil)
		if st, err := w.pair().Status(w.Context()); err != nil || !st.Finished() {
			w.Errorf("got %+v, %v, want it finished", st, err)
		}
	})
}

// TestBlockedByOneSide: a Finish or a Cancel that was stopped in the middle speaks against the phases that it ends.
func TestBlockedByOneSide(t *testing.T) {
	for says, tt := range map[string]struct {
		last backend.Phase // that was deployed
		next backend.Phase
		end  func(w world) error
	}{
		"is finished": {backend.PhaseTo, backend.PhaseFrom, func(w world) error {
			return w.pair().Over(noGate{client(w.old), new(int), 1}, nil).Finish(w.Context())
		}},
		"was cancelled": {backend.PhaseFrom, backend.PhaseBoth, func(w world) error {
			return w.pair().Over(nil, noGate{client(w.new), new(int), 1}).Cancel(w.Context())
		}},
	} {
		bubble(t, func(w world) {
			w.stop(w.start(backend.PhaseBoth))
			w.stop(w.start(tt.last))
			w.want("an end that dies", tt.end(w), errDead)
			st, err := w.pair().Status(w.Context())
			w.want("status", err, nil)
			if why := strings.Join(st.Blockers(tt.next), "; "); !strings.Contains(why, says) {
				w.Errorf("phase %s is blocked by %q, want that it %s", tt.next, why, says)
			}
		})
	}
}

// noGate fails its SetGate number at.
type noGate struct {
	store
	calls *int
	at    int
}

func (s noGate) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if *s.calls++; *s.calls == s.at {
		return errDead
	}
	return s.Gater.SetGate(ctx, g, was)
}

// TestBackFromFinished: the way back begins with an operator, and only there.
func TestBackFromFinished(t *testing.T) {
	bubble(t, func(w world) {
		w.moved()
		before := w.cycle(client(w.new), "x")
		// One that fails leaves it finished.
		fleet := client(w.new)
		held := w.acquire(fleet, request("held"))
		short, cancel := context.WithTimeout(w.Context(), 2*time.Second)
		defer cancel()
		w.want("a way back that fails", w.pair().Open(short, backend.PhaseFrom), backend.ErrUnavailable)
		w.cycle(fleet, "x")
		st, err := w.pair().Status(w.Context())
		if err != nil || !st.Finished() {
			w.Errorf("after that: got %+v, %v, want it finished as before", st, err)
		}
		for phase, finished := range map[backend.Phase]bool{backend.PhaseFrom: true, backend.PhaseTo: false} {
			if why := strings.Join(st.Blockers(phase), "; "); strings.Contains(why, "is finished") != finished {
				w.Errorf("phase %s is blocked by %q", phase, why)
			}
		}
		w.release(fleet, held)
		w.want("the way back", w.pair().Open(w.Context(), backend.PhaseFrom), nil)
		from := w.start(backend.PhaseFrom)
		if got := w.cycle(from, "x"); got <= before {
			w.Errorf("token %d after %d", got, before)
		}
		w.tryFails(client(w.new), "x", backend.ErrUnsupported)
		// And there again, by deploys alone.
		w.stop(from)
		w.stop(w.start(backend.PhaseBoth))
		w.stop(w.start(backend.PhaseTo))
		w.stop(w.start(backend.PhaseFrom)) // not finished: back by a deploy
	})
}

// TestSealedWhileASwitchIsPaused: a client of phase from looked at the gates before they were sealed; its clock may be
// ahead of the operator's.
func TestSealedWhileASwitchIsPaused(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour} {
		sealedWhilePaused(t, ahead)
	}
}

func sealedWhilePaused(t *testing.T, ahead time.Duration) {
	t.Helper()
	sealed := 0
	for at := 1; at <= steps; at++ {
		bubble(t, func(w world) {
			w.stop(w.start(backend.PhaseBoth))
			w.stop(w.start(backend.PhaseTo))
			n := 0
			var once bool
			finish := func() error {
				if !once {
					once = true
					w.forget() // its reports are lost: nobody knows of it
					if err := w.pair().Finish(w.Context()); err == nil {
						sealed++
					}
					time.Sleep(time.Millisecond) // epochs are moments
				}
				return nil
			}
			o := w.options(backend.PhaseFrom)
			o.From, o.To = stepped{client(w.old), &n, at, finish, ahead}, stepped{client(w.new), &n, at, finish, ahead}
			d, err := migrate.New(w.Context(), o)
			st, serr := w.pair().Status(w.Context())
			w.want("status", serr, nil)
			switch {
			case err == nil: // it was through before, and then there was nothing to finish
				if !st.From.Open(true) || st.To.Open(false) || st.Finished() {
					w.Errorf("step %d: phase from has started: got %+v", at, st)
				}
				w.stop(d)
			case !st.To.Open(false) || !st.Finished():
				w.Errorf("step %d: phase from was refused (%v): got %+v, "+
					"want the new store open and sealed", at, err, st)
			}
		})
	}
	if sealed < 3 {
		t.Errorf("finished at %d steps only: they are not counted", sealed)
	}
}

// TestMovedWhileASwitchIsPaused: a switch has seen that the store which it opens has no gate. Before it goes on, a
// fleet moves there and finishes. The switch closes nothing, and the migration stays finished.
func TestMovedWhileASwitchIsPaused(t *testing.T) {
	moved := 0
	for at := 1; at <= steps; at++ {
		bubble(t, func(w world) {
			n, once := 0, false
			move := func() error {
				if !once {
					once = true
					moved++
					w.moved()
				} else if _, new := w.open(); !new {
					w.Errorf("moved before step %d: the fleet's store is closed", at)
				}
				time.Sleep(time.Millisecond) // epochs are moments
				return nil
			}
			p := w.pair()
			p = p.Over(stepped{client(w.old), &n, at, move, 0}, stepped{client(w.new), &n, at, move, 0})
			w.want("the switch", p.Open(w.Context(), backend.PhaseTo), nil)
			if st, err := w.pair().Status(w.Context()); err != nil || once && !st.Finished() {
				w.Errorf("moved before step %d: got %+v, %v, want it finished", at, st, err)
			}
		})
	}
	if moved < 6 {
		t.Errorf("moved at %d steps only: they are not counted", moved)
	}
}

// forget deletes what clients have reported.
func (w world) forget() {
	w.Helper()
	synctest.Wait() // the spare store is told by a goroutine of its own
	cs, err := w.pair().Clients(w.Context())
	w.want("Clients", err, nil)
	for _, c := range cs {
		w.want("Withdraw",
			errors.Join(w.old.Withdraw(w.Context(), c.Client),
				w.new.Withdraw(w.Context(), c.Client)), nil)
	}
}

// TestFailedStartIsUndone: what a start has closed is open again when it fails, whichever way it went.
func TestFailedStartIsUndone(t *testing.T) {
	for _, phase := range []backend.Phase{backend.PhaseTo, backend.PhaseFrom} {
		bubble(t, func(w world) {
			w.stop(w.start(backend.PhaseBoth))
			authority := w.old
			if phase == backend.PhaseFrom {
				w.want("there", w.pair().Open(w.Context(), backend.PhaseTo), nil)
				authority = w.new
			}
			fleet := client(authority)
			held := w.acquire(fleet, request("held"))
			// Several at once, as a deploy does it: what the one has closed, the others find closed.
			failed := make(chan error)
			const many = 5
			for range many {
				go func() {
					_, err := migrate.New(w.Context(), w.options(phase))
					failed <- err
				}()
			}
			for range many {
				w.want("a start past a holder", <-failed, backend.ErrUnavailable)
			}
			if old, new := w.open(); old != (authority == w.old) || new != (authority == w.new) {
				w.Errorf("phase %s failed: old open %v, new open %v, want it as before", phase, old, new)
			}
			w.cycle(fleet, "x")
			w.release(fleet, held)
			w.start(phase)
		})
	}
}

// TestUndoLeavesOthersAlone: a switch that fails while another the same way is through has nothing to undo.
func TestUndoLeavesOthersAlone(t *testing.T) {
	met := 0
	for at := 1; at <= steps; at++ {
		bubble(t, func(w world) {
			w.start(backend.PhaseBoth)
			n := 0
			var once bool
			other := func() error {
				if !once {
					once = true
					met++
					time.Sleep(time.Millisecond)
					w.want("the other", w.pair().Open(w.Context(), backend.PhaseTo), nil)
				}
				return errDead
			}
			dying := w.pair()
			dying = dying.Over(stepped{client(w.old), &n, at, other, 0}, stepped{client(w.new), &n, at, other, 0})
			if err := dying.Open(w.Context(), backend.PhaseTo); err != nil {
				w.want("the one that fails", err, errDead)
			}
			if old, new := w.open(); old || !new {
				w.Errorf("step %d: old open %v, new open %v, want the new one alone", at, old, new)
			}
		})
	}
	if met < 6 {
		t.Errorf("only %d switches met: the steps are not counted", met)
	}
}

// lateGate is a store to which the first change to a state gets only after its caller has given it up.
type lateGate struct {
	store
	state   backend.GateState
	pending func() error
}

func (l *lateGate) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if l.pending == nil && g.State == l.state {
		l.pending = func() error { return l.Gater.SetGate(context.Background(), g, was) }
		return errors.New("connection reset")
	}
	return l.Gater.SetGate(ctx, g, was)
}

// TestLateClosing: a store is told to be closed, nobody hears whether it was, and the request arrives after the undo.
func TestLateClosing(t *testing.T) {
	bubble(t, func(w world) {
		w.stop(w.start(backend.PhaseBoth))
		late := &lateGate{store: client(w.old), state: backend.GateBoth}
		o := w.options(backend.PhaseTo)
		o.From = late
		if _, err := migrate.New(w.Context(), o); err == nil {
			w.Fatal("got a client, want the error of the store")
		}
		w.want("the request that comes late", late.pending(), backend.ErrGateMoved)
		if old, new := w.open(); !old || new {
			w.Errorf("old open %v, new open %v, want the old one as before", old, new)
		}
		w.cycle(client(w.old), "x")
		// And the way back.
		w.want("the switch", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		late = &lateGate{store: client(w.new), state: backend.GateBoth}
		if err := w.pair().Over(nil, late).Open(w.Context(), backend.PhaseFrom); err == nil {
			w.Fatal("got a switch, want the error of the store")
		}
		w.want("the request that comes late", late.pending(), backend.ErrGateMoved)
		if old, new := w.open(); old || !new {
			w.Errorf("old open %v, new open %v, want the new one as before", old, new)
		}
	})
}

// TestLateOpening: a store is told to be open, nobody hears whether it is, and the request arrives after the undo.
func TestLateOpening(t *testing.T) {
	bubble(t, func(w world) {
		w.stop(w.start(backend.PhaseBoth))
		late := &lateGate{store: client(w.new), state: backend.GateOpen}
		if err := w.pair().Over(nil, late).Open(w.Context(), backend.PhaseTo); err == nil {
			w.Fatal("got a switch, want the error of the store")
		}
		w.want("the request that comes late", late.pending(), backend.ErrGateMoved)
		if old, new := w.open(); !old || new {
			w.Errorf("old open %v, new open %v, want the old one as before", old, new)
		}
	})
}

// TestOneStoreTwice: two stores that are one are refused before a gate closes it.
func TestOneStoreTwice(t *testing.T) {
	bubble(t, func(w world) {
		for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo} {
			o := w.options(phase)
			o.To = client(w.old)
			ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
			_, err := migrate.New(ctx, o)
			cancel()
			w.want("phase "+string(phase), err, backend.ErrInvalid)
		}
		w.cycle(client(w.old), "x")
	})
}

// TestCancel: a migration that was given up leaves both stores as if it had not been.
func TestCancel(t *testing.T) {
	bubble(t, func(w world) {
		from := w.start(backend.PhaseFrom)
		both := w.start(backend.PhaseBoth)
		w.cycle(both, "x")
		err := w.pair().Cancel(w.Context())
		w.want("too early", err, backend.ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), "reported phase both") {
			w.Errorf("got %v, want it to name who is in phase both", err)
		}
		w.stop(both)
		last := w.cycle(from, "x")
		held := w.acquire(from, request("held"))
		w.want("cancel", w.pair().Cancel(w.Context()), nil)
		w.want("cancel again", w.pair().Cancel(w.Context()), nil)
		w.release(from, held)
		if got := w.cycle(from, "x"); got <= last {
			w.Errorf("token %d after %d", got, last)
		}
		w.cycle(client(w.old), "x")
		w.cycle(client(w.new), "x") // it is nobody's
		other := w.options(backend.PhaseBoth)
		other.Move = "another"
		w.stop(w.startWith(other))
		w.want("cancel the other",
			w.pairOf("another", w.old, w.new).Cancel(w.Context()),
			nil)
		w.stop(from)
		w.stop(w.start(backend.PhaseFrom)) // the configuration may still have it
		for _, phase := range []backend.Phase{backend.PhaseBoth, backend.PhaseTo} {
			_, err := migrate.New(w.Context(), w.options(phase))
			w.want("a start in phase "+string(phase), err, backend.ErrInvalid)
			if err == nil || !strings.Contains(err.Error(), "was cancelled") {
				w.Errorf("got %v, want it to say that the migration was cancelled", err)
			}
		}
		w.cycle(client(w.old), "x")
		if st, err := w.pair().Status(w.Context()); err != nil || !st.From.Cancelled || !st.To.Cancelled {
			w.Errorf("got %+v, %v, want it cancelled", st, err)
		}
		// And from the beginning, also with other names.
		w.want("again", w.pair().Prepare(w.Context()), nil)
		w.stop(w.start(backend.PhaseBoth))
		to := w.start(backend.PhaseTo)
		if got := w.cycle(to, "x"); got <= last {
			w.Errorf("token %d after %d", got, last)
		}
		w.tryFails(client(w.old), "x", backend.ErrUnsupported)
		err = w.pair().Cancel(w.Context())
		w.want("a cancel after the switch", err, backend.ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), "advance --phase from") {
			w.Errorf("got %v, want it to say how to go back first", err)
		}
	})
}

// TestCancelMeetsASwitch: a migration is cancelled before each step of a switch.
func TestCancelMeetsASwitch(t *testing.T) {
	cancelled := 0
	for at := 1; at <= steps; at++ {
		bubble(t, func(w world) {
			w.stop(w.start(backend.PhaseBoth))
			n := 0
			var once bool
			cancel := func() error {
				if !once {
					once = true
					if err := w.pair().Cancel(w.Context()); err == nil {
						cancelled++
					}
					time.Sleep(time.Millisecond)
				}
				return nil
			}
			late := w.pair()
			late = late.Over(stepped{client(w.old), &n, at, cancel, 0}, stepped{client(w.new), &n, at, cancel, 0})
			err := late.Open(w.Context(), backend.PhaseTo)
			if old, new := w.open(); old == new || new != (err == nil) {
				w.Errorf("step %d: %v: old open %v, new open %v, want the one or the other", at, err, old, new)
			}
		})
	}
	if cancelled < 2 {
		t.Errorf("cancelled at %d steps only: they are not counted", cancelled)
	}
}

// TestSwitchMeetsACancel: a switch runs from end to end before each step of a cancel, whose clock
// is ahead. A cancel that went on would let everybody into the old store beside the new one.
func TestSwitchMeetsACancel(t *testing.T) {
	switched := 0
	for at := 1; at <= steps; at++ {
		bubble(t, func(w world) {
			w.stop(w.start(backend.PhaseBoth))
			n, once, held := 0, false, false
			there := func() error {
				if !once {
					once = true
					if err := w.pair().Open(w.Context(), backend.PhaseTo); err == nil {
						switched++
						held = true
						w.acquire(client(w.new), request("x"))
					}
				}
				return nil
			}
			late := w.pair()
			late = late.Over(stepped{
				client(w.old), &n, at, there, time.Hour,
			}, stepped{client(w.new), &n, at, there, time.Hour})
			err := late.Cancel(w.Context())
			if held {
				w.tryFails(client(w.old), "x", backend.ErrUnsupported)
			}
			if old, new := w.open(); old == new || new != (err != nil) {
				w.Errorf("step %d: %v: old open %v, new open %v, want the one or the other", at, err, old, new)
			}
		})
	}
	if switched < 3 {
		t.Errorf("switched at %d steps only: they are not counted", switched)
	}
}
