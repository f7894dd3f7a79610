package memory_test

import (
	"errors"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
)

// A record is written only over the version that its writer has seen.
func TestSwapOfAnotherVersion(t *testing.T) {
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	write := func(was, data string) error {
		return d.Swap(t.Context(), []backend.Record{
			{Key: "first", Data: []byte("any"), Version: backend.AnyVersion},
			{Key: "x", Data: []byte(data), Version: was},
		}, 0)
	}
	for _, tt := range []struct {
		was, data string
		want      error
	}{{"", "1", nil}, {"", "2", backend.ErrGates}, {"1", "3", nil}, {"1", "4", backend.ErrGates}} {
		if err := write(tt.was, tt.data); !errors.Is(err, tt.want) {
			t.Errorf("%s over %q: got %v, want %v", tt.data, tt.was, err, tt.want)
		}
	}
	for r, err := range d.Load(t.Context(), "x") {
		if err != nil || string(r.Data) != "3" {
			t.Errorf("got %q, %v; want 3", r.Data, err)
		}
	}
}
