package migrate_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/internal/core"
)

// TestPausedOverALoss: a switch to a store without a gate is paused before it opens it. Another
// switches back, the new store loses its data, and the first goes on: what it expects must not be
// what is there again.
func TestPausedOverALoss(t *testing.T) {
	bubble(t, func(w world) {
		now := &lossy{store: client(w.new)}
		pair := func(to backend.Driver) migrate.Pair {
			return w.pairOf("m", w.old, to)
		}
		late := &beforeOpening{lossy: now}
		late.do = func() {
			w.want("back", pair(now).Open(w.Context(), backend.PhaseFrom), nil)
			now.store = client(newStore(w.T))
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
		lossy := &lossy{store: client(w.old)}
		o := w.options(backend.PhaseBoth)
		o.From = lossy
		d := w.startWith(o)
		w.cycle(d, "x")
		fresh := newStore(w.T)
		lossy.store = client(fresh)
		if got := w.cycle(d, "x"); got <= first {
			w.Errorf("token %d after %d", got, first)
		}
		w.tryFails(client(fresh), "x", backend.ErrUnsupported)
		w.cycle(client(fresh), "stays/x")

		// And by an operator, though the new store is open.
		fresh = newStore(w.T)
		w.want("open again", w.pairOf("m", fresh, w.new).Open(w.Context(), backend.PhaseTo), nil)
		w.tryFails(client(fresh), "x", backend.ErrUnsupported)
	})
}

// TestLostGateOfTheNewStore: without its gate the new store would let programs in that are merely given its URL.
func TestLostGateOfTheNewStore(t *testing.T) {
	bubble(t, func(w world) {
		lossy := &lossy{store: client(w.new)}
		o := w.options(backend.PhaseBoth)
		o.To = lossy
		d := w.startWith(o)
		w.cycle(d, "x")
		fresh := newStore(w.T)
		lossy.store = client(fresh)
		w.cycle(d, "x")
		w.tryFails(client(fresh), "x", backend.ErrUnsupported)
		w.cycle(client(w.old), "x") // the old one is where everybody is
	})
}

// lossy is a store whose data can be replaced under its clients.
type lossy struct{ store }

// TestOneStoreDown: rule I4.
func TestOneStoreDown(t *testing.T) {
	for _, side := range []string{"old", "new"} {
		bubble(t, func(w world) {
			down := &broken{store: client(map[string]store{"old": w.old, "new": w.new}[side])}
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
			if err := d.Renew(w.Context(), []*core.Hold{h})[0]; !errors.Is(err, down.err) {
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
	store
	err error
}

func (b *broken) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if b.err != nil {
		return backend.Grant{}, b.err
	}
	return b.Gater.Acquire(ctx, r)
}

func (b *broken) Renew(ctx context.Context, hs []*core.Hold) []error {
	if b.err != nil {
		return slices.Repeat([]error{b.err}, len(hs))
	}
	return b.Gater.Renew(ctx, hs)
}

func (b *broken) Release(ctx context.Context, h *core.Hold) error {
	if b.err != nil {
		return b.err
	}
	return b.Gater.Release(ctx, h)
}

func (b *broken) Abandon(ctx context.Context, r *backend.Request) error {
	if b.err != nil {
		return b.err
	}
	return b.Gater.Abandon(ctx, r)
}

// TestOtherStoreIsNotNeeded: in phase to nobody needs the old store once the new one is open, and
// in phase from nobody the new one once both have gates.
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
				return client(map[backend.Phase]store{
					backend.PhaseFrom: w.new, backend.PhaseTo: w.old,
				}[phase]), nil
			}
			w.startWith(o)
			synctest.Wait() // the spare store is told by a goroutine of its own
			if cs, err := w.pair().Clients(w.Context()); err != nil || len(cs) != 2 {
				w.Errorf("clients: got %v, %v, want two", cs, err)
			}
		})
	}
}

// TestUndoOverALoss: a switch back fails at the new store, which has lost its gate. What undoes it must not take that
// for an old store, which is open without one: somebody may hold in the old store yet.
func TestUndoOverALoss(t *testing.T) {
	bubble(t, func(w world) {
		closed := backend.Gate{Move: "m", Scope: scope, State: backend.GateBoth, Epoch: 5}
		w.want("a switch that died", w.old.SetGate(w.Context(), closed, 0), nil)
		pair := w.pair().Over(nil, &lateGate{store: client(w.new), state: backend.GateBoth})
		if err := pair.Open(w.Context(), backend.PhaseFrom); err == nil {
			w.Error("got nil, want the error of the store")
		}
		if old, new := w.open(); old || new {
			w.Errorf("old open %v, new open %v, want both closed", old, new)
		}
		w.want("once more", w.pair().Open(w.Context(), backend.PhaseFrom), nil)
	})
}

// TestOldStoreIsLostDuringASwitch: the old store loses its data once it is drained, and with it its gate, and somebody
// who knows of no migration locks there before the new one is opened. He is waited for, also where another client has
// given the store a new gate meanwhile, which is open.
func TestOldStoreIsLostDuringASwitch(t *testing.T) {
	for _, again := range []bool{false, true} {
		bubble(t, func(w world) {
			w.stop(w.start(backend.PhaseBoth))
			old := &lossy{store: client(w.old)}
			var held *core.Hold
			to := &raising{store: client(w.new), do: func() {
				if held != nil {
					return
				}
				old.store = client(newStore(w.T))
				held = w.acquire(old.store, request("x"))
				if again {
					time.Sleep(time.Millisecond) // epochs are moments
					w.want("prepare", w.pairOf("m", old, w.new).Prepare(w.Context()), nil)
				}
			}}
			pair := w.pairOf("m", old, to)
			short, cancel := context.WithTimeout(w.Context(), ttl/2)
			defer cancel()
			w.want("a switch while he holds", pair.Open(short, backend.PhaseTo), backend.ErrUnavailable)
			w.release(old.store, held)
			w.want("a switch", pair.Open(w.Context(), backend.PhaseTo), nil)
		})
	}
}

// raising does something whenever its tokens are raised.
type raising struct {
	store
	do func()
}

func (r *raising) Raise(ctx context.Context, floor backend.Token) error {
	r.do()
	return r.Gater.Raise(ctx, floor)
}
