package backends

import (
	"context"
	"net/url"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/fencelock/fencelock/backend"
	_ "github.com/fencelock/fencelock/backend/file"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/conformance"
)

func memoryHarness(t *testing.T) conformance.Harness {
	t.Helper()
	h, err := conformance.FromURL("memory://")
	if err != nil {
		t.Fatal(err)
	}
	var stores [2]*memory.Driver
	for i := range stores {
		if stores[i], err = memory.New(); err != nil {
			t.Fatal(err)
		}
	}
	h.Apart = []conformance.Apart{{
		What: "two stores of one process",
		Driver: func(_ context.Context, side int, prefix string) (backend.Driver, error) {
			return stores[side].Client(prefix)
		},
	}}
	return h
}

func TestMemory(t *testing.T) {
	t.Parallel()
	run(t, memoryHarness(t))
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
	dirs := [2]string{t.TempDir(), t.TempDir()}
	h.Apart = []conformance.Apart{{
		What: "two directories",
		Driver: func(ctx context.Context, side int, prefix string) (backend.Driver, error) {
			return backend.Open(ctx, "file://"+dirs[side]+"?prefix="+url.QueryEscape(prefix), nil)
		},
	}, {
		What: "a directory in the other",
		Driver: func(ctx context.Context, side int, prefix string) (backend.Driver, error) {
			dir := [2]string{dirs[0], filepath.Join(dirs[0], "in")}[side]
			return backend.Open(ctx, "file://"+dir+"?prefix="+url.QueryEscape("in:"+prefix), nil)
		},
	}}
	run(t, h)
}
