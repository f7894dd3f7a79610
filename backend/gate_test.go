package backend_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

func TestScope(t *testing.T) {
	scope := backend.Scope{
		{Match: "inventory/hot", Stays: true},
		{Match: "inventory/cold/*", Stays: true},
		{Match: "inventory/*"},
		{Match: "one"},
		{Match: "in*", Stays: true},
	}
	for name, want := range map[string]bool{
		"inventory/":       true,
		"inventory/a":      true,
		"inventory/hot":    false,
		"inventory/hotter": true,
		"inventory/cold/":  false,
		"inventory/cold":   true,
		"inventory":        false,
		"one":              true,
		"one/":             false,
		"in":               false,
		"x":                false,
		"inventory/*":      true,
	} {
		if got := scope.Moves(name); got != want {
			t.Errorf("Moves(%q): got %v, want %v", name, got, want)
		}
	}
	if !(backend.Scope{{Match: "*"}}).Moves("anything") || (backend.Scope{}).Moves("anything") {
		t.Error("* must match anything, and no pattern nothing")
	}
	if got, want := scope.String(), "!inventory/hot, !inventory/cold/*, inventory/*, one, !in*"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// gates is a store with one gate for a*.
func gates(state backend.GateState) []backend.Gate {
	return []backend.Gate{{Move: "m", Scope: backend.Scope{{Match: "a*"}}, State: state, Epoch: 5}}
}

func TestAdmit(t *testing.T) {
	for _, c := range []struct {
		what  string
		gates []backend.Gate
		move  string
		phase backend.Phase
		gated bool
		ok    bool
	}{
		{"plain, no gate", nil, "", "", false, true},
		{"from, no gate", nil, "m", backend.PhaseFrom, false, true},
		{"both, no gate", nil, "m", backend.PhaseBoth, false, true},
		{"to, no gate", nil, "m", backend.PhaseTo, false, false},
		{"plain, open", gates(backend.GateOpen), "", "", false, true},
		{"from, open", gates(backend.GateOpen), "m", backend.PhaseFrom, true, true},
		{"both, open", gates(backend.GateOpen), "m", backend.PhaseBoth, true, true},
		{"to, open", gates(backend.GateOpen), "m", backend.PhaseTo, true, true},
		{"to of another migration, open", gates(backend.GateOpen), "n", backend.PhaseTo, false, false},
		{"plain, both", gates(backend.GateBoth), "", "", false, false},
		{"from, both", gates(backend.GateBoth), "m", backend.PhaseFrom, true, false},
		{"both, both", gates(backend.GateBoth), "m", backend.PhaseBoth, true, true},
		{"to, both", gates(backend.GateBoth), "m", backend.PhaseTo, true, false},
		{"both of another migration", gates(backend.GateBoth), "n", backend.PhaseBoth, false, false},
		{"a state that nobody knows", gates("ajar"), "m", backend.PhaseFrom, true, false},
	} {
		r := &backend.Request{Name: "a", Move: c.move, Phase: c.phase}
		gated, err := backend.Admit(c.gates, r)
		if gated != c.gated || (err == nil) != c.ok || err != nil && !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: got %v, %v, want %v and a grant: %v", c.what, gated, err, c.gated, c.ok)
		}
		r.Name = "b"
		if gated, err := backend.Admit(c.gates, r); gated || (err == nil) != (c.phase != backend.PhaseTo) {
			t.Errorf("%s, another name: got %v, %v", c.what, gated, err)
		}
	}
}

func TestGateErrorSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		err  backend.GateError
		want []string
	}{
		{
			backend.GateError{Move: "m", Epoch: 7},
			[]string{`"m"`, "epoch 7", "know of no migration", "deploy phase both"},
		},
		{backend.GateError{Move: "m", Epoch: 7, Phase: backend.PhaseFrom}, []string{"in phase from", "migrate status"}},
		{
			backend.GateError{Move: "m", Phase: backend.PhaseTo},
			[]string{"has not opened", "in phase to", "phase both first"},
		},
	} {
		for _, w := range c.want {
			if got := c.err.Error(); !strings.Contains(got, w) {
				t.Errorf("got %q, want it to say %q", got, w)
			}
		}
	}
}
