package gatetest

import (
	"errors"
	"slices"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// seal is what package migrate ends the scope of a gate with that only an operator changes.
var seal = backend.Pattern{Match: "*", Stays: true}

// sealed: a seal is written with its gate, read back, and changes nothing for names; a change that
// expects the gate from before it is refused, however great its own epoch is.
func sealed(e *env) {
	for _, state := range []backend.GateState{backend.GateOpen, backend.GateBoth} {
		was, _ := e.gate(e.d)
		plain := e.set(state, was.Epoch)
		g := plain
		g.Scope, g.Epoch = append(slices.Clone(e.scope), seal), plain.Epoch+1
		if err := e.d.SetGate(e.Context(), g, plain.Epoch); err != nil {
			e.Fatalf("sealing a gate that is %s: %v", state, err)
		}
		if got, _ := e.gate(e.client()); got.Scope.String() != g.Scope.String() ||
			got.State != state || got.Epoch != g.Epoch || got.Torn {
			e.Errorf("got %+v, want %+v", got, g)
		}
		late := plain
		late.State, late.Epoch = backend.GateBoth, g.Epoch+1e6
		if err := e.d.SetGate(e.Context(), late, plain.Epoch); !errors.Is(err, backend.ErrGateMoved) {
			e.Errorf("a change that expects the gate from before the seal: got %v, want ErrGateMoved", err)
		}
		if state == backend.GateOpen {
			e.passes(e.name("a"), "")
			e.passes(e.name("a"), backend.PhaseTo)
		} else {
			e.refused(e.request(e.name("a"), ""), g.Epoch)
			e.passes(e.name("a"), backend.PhaseBoth)
		}
		e.passes(e.name("stays/a"), "")
	}
}

// movesNothing: a gate whose patterns all stay lets in whom a store without a gate lets in, and still has its epoch.
func movesNothing(e *env) {
	closed := e.set(backend.GateBoth, 0)
	waiting := e.held(e.d, e.request(e.name("b"), backend.PhaseBoth))
	for _, state := range []backend.GateState{backend.GateOpen, backend.GateBoth} {
		was, _ := e.gate(e.d)
		g := was
		g.Scope, g.State, g.Epoch = backend.Scope{seal}, state, was.Epoch+1
		if err := e.d.SetGate(e.Context(), g, was.Epoch); err != nil {
			e.Fatalf("a gate that moves nothing: %v", err)
		}
		if err := e.d.Renew(e.Context(), []*core.Hold{waiting})[0]; err != nil { // a cluster changes 16,384 slots
			e.Fatalf("a renewal beside a gate that moves nothing: %v", err)
		}
		for _, p := range []backend.Phase{"", backend.PhaseFrom, backend.PhaseBoth} {
			if got := e.passes(e.name("a"), p); p != "" && !got.Ungated {
				e.Errorf("phase %q: the grant is not marked Ungated", p)
			}
		}
		e.refused(e.request(e.name("a"), backend.PhaseTo), 0)
	}
	ahead := backend.Gate{
		Move: e.move, Scope: e.scope, State: backend.GateOpen, Epoch: closed.Epoch + 1e6,
	}
	if err := e.d.SetGate(e.Context(), ahead, closed.Epoch); !errors.Is(err, backend.ErrGateMoved) {
		e.Errorf("opening what was cancelled, by a switch from before: got %v, want ErrGateMoved", err)
	}
	e.release(e.d, waiting)
}
