package backends

import (
	"testing"
	"testing/synctest"

	_ "github.com/fencelock/fencelock/backend/file"
	"github.com/fencelock/fencelock/conformance"
)

func memoryHarness(t *testing.T) conformance.Harness {
	t.Helper()
	h, err := conformance.FromURL("memory://")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestMemory(t *testing.T) {
	t.Parallel()
	conformance.Run(t, memoryHarness(t))
}

// TestMemoryInVirtualTime runs the rules in a bubble: every bound is exact there.
func TestMemoryInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memoryHarness(t)
		h.Short = true
		for res := range conformance.Report(t.Context(), h) {
			if res.Err != nil {
				t.Error(res.Err)
			}
		}
	})
}

func TestFile(t *testing.T) {
	t.Parallel()
	h, err := conformance.FromURL("file://" + t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	conformance.Run(t, h)
}
