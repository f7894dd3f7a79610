package gatetest

import (
	"errors"

	"github.com/fencelock/fencelock/backend"
)

func raise(e *env) {
	source := func() backend.Token {
		e.Helper()
		s, err := e.d.Source(e.Context())
		if err != nil {
			e.Fatalf("Source: %v", err)
		}
		return s
	}
	first := e.passes(e.name("a"), "").Token
	if s := source(); s < first {
		e.Errorf("source %d after token %d", s, first)
	}
	floor := first + 1e9 // some 17 minutes ahead of the clock
	if err := e.d.Raise(e.Context(), floor); err != nil {
		e.Fatalf("Raise: %v", err)
	}
	if s := source(); s < floor {
		e.Errorf("source %d after a raise to %d", s, floor)
	}
	if err := e.d.Raise(e.Context(), first); err != nil {
		e.Fatalf("a lower Raise: %v", err)
	}
	d := e.client()
	for _, name := range []string{"a", "b", "c"} {
		h := e.held(d, e.request(e.name(name), ""))
		if h.Token <= floor {
			e.Errorf("name %s: token %d after a raise to %d", name, h.Token, floor)
		}
		if s := source(); s < h.Token {
			e.Errorf("source %d after token %d", s, h.Token)
		}
		e.release(d, h)
	}
}

func raiseHeld(e *env) {
	h := e.held(e.d, e.request(e.name("a"), backend.PhaseBoth))
	floor := h.Token + 2e9
	if err := e.d.RaiseHeld(e.Context(), h, floor); err != nil {
		e.Fatalf("RaiseHeld: %v", err)
	}
	if err := e.d.RaiseHeld(e.Context(), h, floor); err != nil {
		e.Fatalf("RaiseHeld again: %v", err)
	}
	e.release(e.d, h)
	other := e.client()
	next := e.held(other, e.request(e.name("a"), backend.PhaseBoth))
	if next.Token <= floor {
		e.Errorf("token %d after a raise to %d", next.Token, floor)
	}
	// The old holder is not the holder any more.
	if err := e.d.RaiseHeld(e.Context(), h, next.Token+5e9); !errors.Is(err, backend.ErrLost) {
		e.Errorf("RaiseHeld by the one before: got %v, want ErrLost", err)
	}
	e.release(other, next)
	if third := e.passes(e.name("a"), backend.PhaseBoth).Token; third <= next.Token || third > next.Token+5e9 {
		e.Errorf("token %d after %d: want more, and not what the refused raise asked for", third, next.Token)
	}
	if err := other.RaiseHeld(e.Context(), next, 1); !errors.Is(err, backend.ErrLost) {
		e.Errorf("RaiseHeld of a free lock: got %v, want ErrLost", err)
	}
}
