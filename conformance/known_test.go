package conformance

import (
	"strings"
	"testing"
	"testing/synctest"
)

// TestKnown: a mark excuses the failure that it names, and fails once the rule is kept.
func TestKnown(t *testing.T) {
	for _, c := range []struct {
		name       string
		flaw       flaw
		known, err string
	}{
		{"broken", floorIgnored, "X1", ""},
		{"kept", "", "", "remove the mark"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(&mistake{name: c.name, flaw: c.flaw})
				defer close(r.store.stop)
				h := r.harness()
				h.Known = map[string]string{"E9": "X1"}
				for res := range Report(t.Context(), h, "E9") {
					if got := res.Known; !strings.Contains(got, c.known) || (got == "") != (c.known == "") {
						t.Errorf("Known: got %q, want %q", got, c.known)
					}
					if got := res.Error; !strings.Contains(got, c.err) || (got == "") != (c.err == "") {
						t.Errorf("Error: got %q, want %q", got, c.err)
					}
				}
			})
		})
	}
}
