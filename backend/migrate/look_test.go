package migrate_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/internal/core"
)

// TestInspectAndList shows what either store has, each name once.
func TestInspectAndList(t *testing.T) {
	bubble(t, func(w world) {
		d := w.start(backend.PhaseBoth)
		holds := map[string]*core.Hold{
			"x": w.acquire(d, request("x")), "in the old": w.acquire(w.start(backend.PhaseFrom), request("in the old")),
			"in the new": w.acquire(w.new2(backend.PhaseBoth), request("in the new")),
		}
		for name, h := range holds {
			i, err := d.Inspect(w.Context(), name)
			if err != nil || !i.Held || i.Token != h.Token || i.Owner != "me" || i.Name != name {
				w.Errorf("got %+v, %v, want it held with token %d", i, err, h.Token)
			}
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
			if n++; err != nil || !i.Held || i.Token != holds[i.Name].Token || (i.Waiters == 1) != (i.Name == "x") {
				w.Errorf("got %+v, %v", i, err)
			}
		}
		if n != len(holds) {
			w.Errorf("listed %d, want %d", n, len(holds))
		}
		for range d.List(w.Context(), "") {
			break // asks for no more
		}
		cancel()
		<-done
		w.want("abandon", d.Abandon(w.Context(), r), nil)
		w.want("break", d.Break(w.Context(), "x"), nil)
		w.tryFree(w.old)
		w.tryFree(w.new)
	})
}

func (w world) tryFree(s core.Caller) {
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
	if got.Name != "redis+postgres-row" || got.Fencing != backend.Anchored || got.ClockFree ||
		got.Transactional || !got.FIFO ||
		!got.LeasePerConn || got.MinTTL != max(redis.MinTTL, row.MinTTL) ||
		got.DeadWaiter != redis.DeadWaiter+row.DeadWaiter {
		t.Errorf("got %+v", got)
	}
}

// A reader in one phase would have the token of another store's readers in the next, and a permit another slot.
func TestNoSharedHolds(t *testing.T) {
	bubble(t, func(w world) {
		for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo} {
			d, err := migrate.New(w.Context(), w.options(phase))
			if err != nil {
				w.Fatal(err)
			}
			l, err := fencelock.New(d)
			if err != nil {
				w.Fatal(err)
			}
			_, err = l.RWMutex("moved/n").RLock(w.Context())
			w.want(string(phase)+": RLock", err, fencelock.ErrUnsupported)
			_, err = l.Semaphore("moved/n", 2).Acquire(w.Context())
			w.want(string(phase)+": Acquire", err, fencelock.ErrUnsupported)
			if err := l.Close(); err != nil {
				w.Error(err)
			}
		}
	})
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
		for _, other := range []backend.Scope{
			{{Match: "x/*"}},
			{{Match: "!stays/*"}, {Match: "*"}}, // messages show them alike
			{{Match: "stays/*", Stays: true}, {Match: "*"}, {Match: "*"}},
		} {
			o := w.options(backend.PhaseBoth)
			o.Scope = other
			_, err := migrate.New(w.Context(), o)
			w.want("the scope "+other.String(), err, backend.ErrInvalid)
		}
	})
}
