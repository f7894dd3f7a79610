package gatetest

import (
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

func noGate(e *env) {
	if g := e.passes(e.name("a"), ""); g.Ungated {
		e.Error("a plain grant is marked Ungated")
	}
	for _, p := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth} {
		if g := e.passes(e.name("a"), p); !g.Ungated {
			e.Errorf("phase %s: the grant is not marked Ungated", p)
		}
	}
	e.refused(e.request(e.name("a"), backend.PhaseTo), 0)
	if _, ok := e.gate(e.d); ok {
		e.Error("there is a gate that nobody set")
	}
}

func closed(e *env) {
	g := e.set(backend.GateBoth, 0)
	other := e.request(e.name("a"), backend.PhaseBoth)
	other.Move = "another"
	for _, r := range []*backend.Request{
		e.request(e.name("a"), ""), e.request(e.name("a"), backend.PhaseFrom),
		e.request(e.name("a"), backend.PhaseTo), other,
	} {
		e.refused(r, g.Epoch)
		again := *r
		again.Nonce, again.Wait = core.Nonce(), true
		e.refused(&again, g.Epoch)
	}
	if g := e.passes(e.name("a"), backend.PhaseBoth); g.Ungated {
		e.Error("the grant is marked Ungated")
	}
	// A client that was there before the gate, and one that comes after it.
	if got, ok := e.gate(e.client()); !ok || got.State != g.State || got.Epoch != g.Epoch ||
		got.Scope.String() != g.Scope.String() || got.Torn {
		e.Errorf("Gates: got %+v, want %+v", got, g)
	}
}

func opened(e *env) {
	e.set(backend.GateOpen, 0)
	for _, p := range []backend.Phase{"", backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo} {
		if g := e.passes(e.name("a"), p); g.Ungated {
			e.Errorf("phase %q: the grant is marked Ungated", p)
		}
	}
}

func stays(e *env) {
	before := e.passes(e.name("stays/a"), "").Token
	e.set(backend.GateBoth, 0)
	if after := e.passes(e.name("stays/a"), "").Token; after <= before {
		e.Errorf("tokens %d, then %d", before, after)
	}
	e.passes("x"+e.name("a"), "")
	e.passes(e.move, "") // the name before the slash
}

func sentAgain(e *env) {
	r := e.request(e.name("a"), backend.PhaseFrom)
	h := e.held(e.d, r)
	e.set(backend.GateBoth, 0)
	again := e.held(e.d, r)
	if again.Token != h.Token {
		e.Errorf("sent again: token %d, want %d", again.Token, h.Token)
	}
	e.release(e.d, again)
}

func renewAndRelease(e *env) {
	h := e.held(e.d, e.request(e.name("a"), ""))
	g := e.set(backend.GateBoth, 0)
	if err := e.d.Renew(e.Context(), []*core.Hold{h})[0]; err != nil {
		e.Errorf("renew: %v", err)
	}
	e.release(e.d, h)
	if left := e.undrained(g); len(left) > 0 {
		e.Errorf("undrained after the release: %v", left)
	}
}
