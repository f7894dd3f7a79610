package memory_test

import (
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/gatetest"
	"github.com/fencelock/fencelock/backend/memory"
)

func TestGates(t *testing.T) {
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	gatetest.Run(t, func(t *testing.T) backend.Driver {
		t.Helper()
		c, err := d.Client("gates:")
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
}
