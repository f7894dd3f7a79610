package backend_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

// What is missing is named, with who has it: some backend of this version, or none.
func TestNeedIsMissed(t *testing.T) {
	for says, n := range map[string]backend.Need{
		"have it: ":                         {Transactional: true},
		"no backend of this version has it": {Permits: backend.MostPermits + 1},
	} {
		err := n.Check(backend.TraitsOf("redis"))
		if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: got %v, want ErrUnsupported that says %q", n, err, says)
		}
	}
}

func TestModeInAWord(t *testing.T) {
	for m, want := range map[backend.Mode]string{
		backend.Exclusive: "exclusive", backend.Reader: "reader", backend.Permit: "permit", 3: "mode 3",
	} {
		if got := m.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
