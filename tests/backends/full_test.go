package backends

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/fencelock/fencelock/conformance"
)

// TestFileOnAFullDisk: the rule about a store that is full needs a disk of its own.
func TestFileOnAFullDisk(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("needs root on Linux, to mount")
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "size=8m,mode=0700",
		"fencelock-test", dir).CombinedOutput(); err != nil {
		t.Skipf("mounting is not allowed here: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", dir).Run() })
	h, err := conformance.FromURL("file://" + dir)
	if err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	h.Fill = func(context.Context) (func(context.Context) error, error) {
		f, err := os.Create(filler)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return nil, err
		}
		return func(context.Context) error { return os.Remove(filler) }, nil
	}
	for res := range conformance.Report(t.Context(), h, "K33") {
		if res.Err != nil || res.Excluded != "" {
			t.Errorf("%v, excluded: %q", res.Err, res.Excluded)
		}
	}
}
