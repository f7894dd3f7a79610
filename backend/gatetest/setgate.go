package gatetest

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/fencelock/fencelock/backend"
)

func setGate(e *env) {
	g := e.set(backend.GateBoth, 0)
	next := g
	next.State, next.Epoch = backend.GateOpen, g.Epoch+1
	wider := g
	wider.Scope = backend.Scope{{Match: e.name("*")}}
	for _, c := range []struct {
		what string
		g    backend.Gate
		was  int64
		want error
	}{
		{"the same again", g, 0, nil},
		{"the same for other names", wider, 0, backend.ErrGateMoved},
		{"the same for other names, lower", wider, backend.Lower, backend.ErrGateMoved},
		{"expecting none", next, 0, backend.ErrGateMoved},
		{"expecting another", next, g.Epoch - 1, backend.ErrGateMoved},
		{"expecting it", next, g.Epoch, nil},
		{"expecting it, sent again", next, g.Epoch, nil},
		{"the old one, late", g, 0, backend.ErrGateMoved},
		{"lower, but it is not", g, backend.Lower, backend.ErrGateMoved},
		{
			"lower, of its own epoch",
			backend.Gate{Move: g.Move, Scope: g.Scope, State: backend.GateBoth, Epoch: next.Epoch},
			backend.Lower, backend.ErrGateMoved,
		},
		{
			"lower",
			backend.Gate{
				Move: g.Move, Scope: g.Scope, State: backend.GateBoth, Epoch: next.Epoch + 5,
			},
			backend.Lower, nil,
		},
	} {
		if err := e.d.SetGate(e.Context(), c.g, c.was); !errors.Is(err, c.want) {
			e.Errorf("%s: got %v, want %v", c.what, err, c.want)
		}
	}
	if got, _ := e.gate(e.client()); got.State != backend.GateBoth || got.Epoch != next.Epoch+5 {
		e.Errorf("at the end: %+v", got)
	}
	for _, bad := range []backend.Gate{
		{Move: e.move, Scope: e.scope, State: "ajar", Epoch: 1},
		{Move: e.move, State: backend.GateBoth, Epoch: 1},
		{Move: "", Scope: e.scope, State: backend.GateBoth, Epoch: 1},
	} {
		if err := e.d.SetGate(e.Context(), bad, backend.Lower); !errors.Is(err, backend.ErrInvalid) {
			e.Errorf("%+v: got %v, want ErrInvalid", bad, err)
		}
	}
}

func setGateRace(e *env) {
	first := e.set(backend.GateBoth, 0)
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 6 {
		d := e.d
		if i%2 == 1 {
			d = e.client()
		}
		wg.Go(func() {
			g := first
			g.State, g.Epoch = backend.GateOpen, first.Epoch+1+int64(i)
			switch err := d.SetGate(e.Context(), g, first.Epoch); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, backend.ErrGateMoved):
				e.Errorf("got %v, want nil or ErrGateMoved", err)
			}
		})
	}
	wg.Wait()
	if n := won.Load(); n != 1 {
		e.Errorf("%d of 6 changed the same gate, want 1", n)
	}
}
