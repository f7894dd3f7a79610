package backends

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
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
	skipShort(t)
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

// fileStore reads what is left in the state files.
type fileStore struct {
	conformance.Store
	dir string
}

func (s fileStore) Left(_ context.Context, prefix string) (left []string, err error) {
	paths, err := filepath.Glob(filepath.Join(s.dir, "*.state"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "lock "+url.PathEscape(prefix)+" ") {
				left = append(left, line)
			}
		}
	}
	return left, err
}

func TestFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h, err := conformance.FromURL("file://" + dir)
	if err != nil {
		t.Fatal(err)
	}
	h.Store = fileStore{h.Store, dir}
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
