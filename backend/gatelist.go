package backend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// gateOf returns the place of a migration's gate in a list, or -1.
func gateOf(gates []Gate, move string) int {
	return slices.IndexFunc(gates, func(g Gate) bool { return g.Move == move })
}

// same reports whether two gates say the same.
func (g Gate) same(o Gate) bool {
	return g.State == o.State && g.Epoch == o.Epoch && slices.Equal(g.Scope, o.Scope)
}

// ChangeGate reports whether a place with these gates has to write g for SetGate(g, was): not where it stands already.
// The error is ErrGateMoved.
func ChangeGate(gates []Gate, g Gate, was int64) (changed bool, err error) {
	var old Gate
	if i := gateOf(gates, g.Move); i >= 0 {
		old = gates[i]
	}
	switch {
	case old.same(g):
		return false, nil
	case was == Lower && old.Epoch >= g.Epoch, was != Lower && old.Epoch != was:
		return false, ErrGateMoved
	}
	return true, nil
}

// EncodeGates writes a list of gates for a driver that keeps all of them in one value of its store:
// JSON, "[]" for none.
func EncodeGates(gates []Gate) []byte {
	if gates == nil {
		gates = []Gate{}
	}
	raw, _ := json.Marshal(gates) // of strings and numbers: never fails
	return raw
}

// DecodeGates reads what EncodeGates wrote, and nothing else: no field that it does not know or
// that stands there twice, no null, no gate that [CheckGate] refuses, no second gate of a
// migration, nothing before or behind the list; only spaces between its parts. What a driver does
// not understand must let nobody in. The error matches [ErrInvalid] and shows the beginning of raw;
// its caller says where that stands.
func DecodeGates(raw []byte) ([]Gate, error) {
	gates, err := decodeGates(raw)
	if err != nil {
		return nil, Invalid("%.40q is no list of gates (%w): some other program, "+
			"or a newer version, has written it", raw, err)
	}
	return gates, nil
}

func decodeGates(raw []byte) ([]Gate, error) {
	var gates []Gate
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&gates); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the list")
	}
	for i, g := range gates {
		if err := CheckGate(g); err != nil {
			return nil, err
		}
		if g.Torn {
			return nil, fmt.Errorf("the gate of migration %q is torn, which is never written", g.Move)
		}
		if gateOf(gates, g.Move) < i {
			return nil, fmt.Errorf("migration %q has two gates", g.Move)
		}
	}
	var text bytes.Buffer
	if err := json.Compact(&text, raw); err != nil || !bytes.Equal(text.Bytes(), EncodeGates(gates)) {
		return nil, errors.New("it is not written as a list of gates is: a field is unknown, there twice, or null")
	}
	return gates, nil
}

// MergeGates makes one list of what the parts of a store hold that keeps its gates in
// several places: a gate that is not the same in all of them is Torn.
func MergeGates(parts [][]Gate) []Gate {
	var merged []Gate
	seen := map[string]int{} // how many parts have it
	for _, gates := range parts {
		for _, g := range gates {
			seen[g.Move]++
			i := gateOf(merged, g.Move)
			if i < 0 {
				merged = append(merged, g)
				continue
			}
			m := &merged[i]
			m.Torn = m.Torn || !m.same(g)
			m.Epoch = max(m.Epoch, g.Epoch)
		}
	}
	for i := range merged {
		m := &merged[i]
		m.Torn = m.Torn || seen[m.Move] < len(parts)
		if m.Torn {
			m.State = GateBoth
		}
	}
	return merged
}
