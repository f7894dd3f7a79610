package backends

import (
	"os"
	"runtime"
	"testing"

	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/internal/machine"
)

// known are the rules that a backend is known to break, by the name of its harness, each with the reason.
var known = map[string]map[string]string{}

// marks is how many there are. It only ever falls.
const marks = 0

// run holds a backend to the suite, but for its marks.
func run(t *testing.T, h conformance.Harness) {
	t.Helper()
	h.Known = known[h.Name]
	h.Parallel = 2 + runtime.GOMAXPROCS(0)
	if machine.Slow() { // so busy otherwise that rules about time fail
		h.Parallel--
		h.Short = os.Getenv("FENCELOCK_FULL") == ""
	}
	conformance.Run(t, h)
}

func TestMarksAreCounted(t *testing.T) {
	got := 0
	rules := map[string]bool{}
	for _, r := range conformance.Rules() {
		rules[r.Name] = true
	}
	for name, of := range known {
		for rule, why := range of {
			got++
			if !rules[rule] || why == "" {
				t.Errorf("%s: mark of rule %q: got the reason %q, want a rule "+
					"of the suite and a reason", name, rule, why)
			}
		}
	}
	if got != marks {
		t.Errorf("rules that are known to fail: got %d marks, want %d", got, marks)
	}
}
