package postgres

import (
	"encoding/hex"
	"testing"
)

// Whatever application_name a session has, it is a stranger's, or a token and a time that can be.
func FuzzLabel(f *testing.F) {
	for _, s := range []string{
		"", "psql", "fl 7 abcdef rs owner", "fl 0 abcdef rs ", "fl -7 abcdef rs owner", "fl 7 abcdef -rs o%20w",
		"fl 7 abcdef zzzzzzzzzzzz o", "fl 7 abcdef rs %zz", "fl 7", "fl 99999999999999999999 a b c",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if token, owner, timeout := readLabel(s); token < 0 || timeout < 0 {
			t.Errorf("%q: read as token %d of %q for %v", s, token, owner, timeout)
		}
	})
}

// Whatever answer there is about gates, it is an error or gates with a version that can be sent.
func FuzzGates(f *testing.F) {
	gate := hex.EncodeToString([]byte("m")) + ":" + hex.EncodeToString([]byte(`{"move":"m"}`))
	for _, s := range []string{
		"", "gates", "gates 0 ", "gates 7 " + gate, "gates 7 " + gate + ",,", "gates x 00:00", "gates 1 zz",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		g, err := readGates(s, "p")
		if (g == nil) == (err == nil) {
			t.Errorf("%q: read as %v and %v", s, g, err)
		}
	})
}
