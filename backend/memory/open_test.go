package memory_test

import (
	"errors"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
)

func TestOpen(t *testing.T) {
	for _, url := range []string{
		"memory://", "memory:///", "MEMORY://", "memory://?prefix=", "memory://?prefix=a%2Fb",
	} {
		d, err := backend.Open(t.Context(), url, nil)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got, want := d.Traits(), backend.TraitsOf("memory"); got != want {
			t.Errorf("traits: got %+v, want the catalog's", got)
		}
		if _, ok := d.(*memory.Driver); !ok {
			t.Errorf("got a %T", d)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, url := range []string{
		"memory://host", "memory:///path", "memory://u:p@", "memory://?prefix=%00", "memory://?x=1",
	} {
		if d, err := backend.Open(t.Context(), url, nil); d != nil || !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: got %v, %v, want ErrInvalid", url, d, err)
		}
	}
}
