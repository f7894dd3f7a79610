//go:build linux

package guarantees_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// clocks starts servers on this machine whose wall clocks can be moved, and whose disks can be filled.
type clocks struct {
	stores.Local
	dir   string
	shim  string // empty: no compiler
	files []string

	small  bool // servers get a small disk of their own
	mounts []string
}

func newClocks(t *testing.T) *clocks {
	t.Helper()
	dir, err := os.MkdirTemp("", "fencelock-clocks-") // t.TempDir is ours alone, and Postgres is run by another account
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := &clocks{dir: dir}
	if _, err := exec.LookPath("cc"); err != nil {
		return c
	}
	c.shim = filepath.Join(c.dir, "clock.so")
	if out, err := exec.CommandContext(t.Context(), "cc", "-O2", "-shared", "-fPIC", "-o", c.shim, "../../redlock/testdata/clock.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return c
}

// Prepare is that of Local, with the clock preloaded.
func (c *clocks) Prepare(ctx context.Context, s stores.Spec) (stores.Process, error) {
	if c.shim != "" {
		file := filepath.Join(c.dir, fmt.Sprintf("clock-%d", len(c.files)))
		if err := os.WriteFile(file, make([]byte, 8), 0o644); err != nil {
			return nil, err
		}
		c.files = append(c.files, file)
		s.Env = append(s.Env, "LD_PRELOAD="+c.shim, "CLOCK_FILE="+file)
	}
	if c.small {
		if err := os.MkdirAll(s.Data, 0o700); err != nil {
			return nil, err
		}
		// Where it may not be mounted, the fault cannot be made.
		if err := unix.Mount("none", s.Data, "tmpfs", 0, "size=16m"); err == nil {
			c.mounts = append(c.mounts, s.Data)
		}
	}
	return c.Local.Prepare(ctx, s)
}

// unmount gives the disks back after the test, before the servers are closed.
func (c *clocks) unmount(t *testing.T) {
	t.Cleanup(func() {
		for _, path := range c.mounts {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	})
}

// move moves the clock of a server, counted as they were started.
func (c *clocks) move(server int, by time.Duration) error {
	f, err := os.OpenFile(c.files[server], os.O_WRONLY, 0) // in place: the server has it mapped
	if err != nil {
		return err
	}
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(by)))
	return errors.Join(err, f.Close())
}

// startWith starts servers, closes them after the test, and skips the test where their programs are missing, unless
// FENCELOCK_REQUIRE lists them.
func startWith[S interface{ Close() error }](t *testing.T, store string, f func(context.Context) (S, error)) (S, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := f(ctx)
	if errors.Is(err, stores.ErrMissing) {
		list := "," + strings.ReplaceAll(os.Getenv("FENCELOCK_REQUIRE"), " ", ",") + ","
		if strings.Contains(list, ",all,") || strings.Contains(list, ","+store+",") {
			t.Fatalf("%s is required and missing: %v", store, err)
		}
		t.Skipf("%s runs as a local program here: %v", store, err)
	}
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s, err
}
