package backend_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

func TestChangeGate(t *testing.T) {
	old := gates(backend.GateBoth)
	next := backend.Gate{Move: "m", Scope: old[0].Scope, State: backend.GateOpen, Epoch: 6}
	other := next
	other.Move = "n"
	wider := old[0]
	wider.Scope = backend.Scope{{Match: "*"}}
	for _, c := range []struct {
		what  string
		gates []backend.Gate
		g     backend.Gate
		was   int64
		want  bool
		err   error
	}{
		{"the first", nil, next, 0, true, nil},
		{"the first, expecting another", nil, next, 5, false, backend.ErrGateMoved},
		{"expected", old, next, 5, true, nil},
		{"not expected", old, next, 4, false, backend.ErrGateMoved},
		{"expecting none", old, next, 0, false, backend.ErrGateMoved},
		{"there already", old, old[0], 0, false, nil},
		{"there already, lower", old, old[0], backend.Lower, false, nil},
		{"there with other names", old, wider, 0, false, backend.ErrGateMoved},
		{"there with other names, lower", old, wider, backend.Lower, false, backend.ErrGateMoved},
		{"lower", old, next, backend.Lower, true, nil},
		{"not lower", []backend.Gate{next}, old[0], backend.Lower, false, backend.ErrGateMoved},
		{"another migration's", old, other, 0, true, nil},
		{"the first of two", []backend.Gate{old[0], other}, next, 5, true, nil},
	} {
		got, err := backend.ChangeGate(c.gates, c.g, c.was)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: got %v, %v, want %v, %v", c.what, got, err, c.want, c.err)
		}
	}
}

func TestMergeGates(t *testing.T) {
	open, later := gates(backend.GateOpen), gates(backend.GateOpen)
	later[0].Epoch = 9
	for _, c := range []struct {
		what  string
		parts [][]backend.Gate
		torn  bool
		state backend.GateState
		epoch int64
	}{
		{"one", [][]backend.Gate{open}, false, backend.GateOpen, 5},
		{"all the same", [][]backend.Gate{open, open, open}, false, backend.GateOpen, 5},
		{"one later", [][]backend.Gate{open, later, open}, true, backend.GateBoth, 9},
		{"one without", [][]backend.Gate{open, nil}, true, backend.GateBoth, 5},
		{"the first without", [][]backend.Gate{nil, open}, true, backend.GateBoth, 5},
		{"one in another state", [][]backend.Gate{open, gates(backend.GateBoth), open}, true, backend.GateBoth, 5},
	} {
		got := backend.MergeGates(c.parts)
		if len(got) != 1 || got[0].Torn != c.torn || got[0].State != c.state || got[0].Epoch != c.epoch {
			t.Errorf("%s: got %+v, want torn %v, %s, %d", c.what, got, c.torn, c.state, c.epoch)
		}
	}
	if got := backend.MergeGates([][]backend.Gate{nil, nil}); got != nil {
		t.Errorf("no gates: got %+v", got)
	}
}

func TestGateListInOneValue(t *testing.T) {
	many := backend.Gate{
		Move:  "moving <house>/1:2",
		Scope: backend.Scope{{Match: "a\u2028ä/*", Stays: true}, {Match: "*"}},
		State: backend.GateOpen, Epoch: 1<<62 + 1,
	}
	for _, want := range [][]backend.Gate{{}, gates(backend.GateBoth), append(gates(backend.GateOpen), many)} {
		raw := backend.EncodeGates(want)
		got, err := backend.DecodeGates(raw)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", raw, got, err, want)
		}
	}
	if got := string(backend.EncodeGates(nil)); got != "[]" {
		t.Errorf("no gates: got %s, want []", got)
	}
	spaced := `
		[ {"move": "m", "scope": [{"match": "a*"}], "state": "both", "epoch": 5} ]
	`
	if got, err := backend.DecodeGates([]byte(spaced)); err != nil || !reflect.DeepEqual(got, gates(backend.GateBoth)) {
		t.Errorf("with spaces: got %+v, %v", got, err)
	}
}

func TestDecodeGatesRefuses(t *testing.T) {
	const one = `{"move":"m","scope":[{"match":"*"}],"state":"open","epoch":1}`
	for what, raw := range map[string]string{
		"nothing":            "",
		"no JSON":            "open",
		"null":               "null",
		"no list":            one,
		"a null in the list": "[null]",
		"half a list":        "[" + one,
		"two lists":          "[] []",
		"something behind":   "[" + one + "]x",
		"no scope":           `[{"move":"m","state":"open","epoch":1}]`,
		"a null scope":       `[{"move":"m","scope":null,"state":"open","epoch":1}]`,
		"a null in a field":  `[{"move":"m","scope":[{"match":"*","stays":null}],"state":"open","epoch":1}]`,
		"a state":            `[{"move":"m","scope":[{"match":"*"}],"state":"ajar","epoch":1}]`,
		"an epoch of 0":      `[{"move":"m","scope":[{"match":"*"}],"state":"open","epoch":0}]`,
		"an unknown field":   `[{"move":"m","scope":[{"match":"*"}],"state":"open","epoch":1,"but":"not on Sundays"}]`,
		"a field twice":      `[{"move":"m","scope":[{"match":"*"}],"state":"both","state":"open","epoch":1}]`,
		"another spelling":   `[{"Move":"m","scope":[{"match":"*"}],"state":"open","epoch":1}]`,
		"two gates":          "[" + one + "," + one + "]",
		"a torn one":         `[{"move":"m","scope":[{"match":"*"}],"state":"both","epoch":1,"torn":true}]`,
	} {
		if got, err := backend.DecodeGates([]byte(raw)); !errors.Is(err, backend.ErrInvalid) || got != nil {
			t.Errorf("%s: got %+v, %v, want ErrInvalid", what, got, err)
		}
	}
}

func FuzzDecodeGates(f *testing.F) {
	for _, state := range []backend.GateState{backend.GateOpen, backend.GateBoth} {
		f.Add(backend.EncodeGates(gates(state)))
	}
	f.Add([]byte("[]"))
	f.Add([]byte(`[{"move":"m"}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := backend.DecodeGates(raw)
		if err != nil {
			return
		}
		for _, g := range got {
			if bad := backend.CheckGate(g); bad != nil || g.Torn {
				t.Errorf("%q: got %+v: %v", raw, g, bad)
			}
		}
		if again, err := backend.DecodeGates(backend.EncodeGates(got)); err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%q: got %+v, and read again %+v, %v", raw, got, again, err)
		}
	})
}
