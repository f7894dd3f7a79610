package file

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

func TestNewMakesTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	newDriver(t, dir)
	newDriver(t, dir)
	info, err := os.Stat(dir)
	if err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v, want mode 0700", info.Mode(), err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "FORMAT"))
	if got, want := string(raw), "fencelock file backend 1, 64 buckets\n"; err != nil || got != want {
		t.Errorf("FORMAT: got %q, %v, want %q", got, err, want)
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := put("plain", "")
	if err := os.MkdirAll(filepath.Join(dir, "marked", "FORMAT"), 0o700); err != nil {
		t.Fatal(err)
	}
	put("newer/FORMAT", "fencelock file backend 2, 64 buckets\n")
	put("foreign/FORMAT", "hello")
	cases := map[string]string{
		"":                            "empty",
		file:                          file,
		filepath.Join(file, "below"):  filepath.Join(file, "below"),
		"\x00":                        "cannot",
		filepath.Join(dir, "newer"):   "another version",
		filepath.Join(dir, "foreign"): "not of this library",
		filepath.Join(dir, "marked"):  "FORMAT",
	}
	if runtime.GOOS == "linux" {
		cases["/proc/self"] = "/proc/self"
	}
	if os.Getuid() > 0 {
		cases["/"] = `"/"`
	}
	for path, want := range cases {
		d, err := New(path)
		if d != nil || !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%q): got %v, %v, want ErrInvalid with %q", path, d, err, want)
		}
	}
}

// A loss of power can leave an empty FORMAT, of which nothing is to be known.
func TestEmptyFormat(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "FORMAT")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != format {
		t.Errorf("FORMAT: got %q, %v, want %q", raw, err, format)
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestURL(t *testing.T) {
	dir := t.TempDir()
	for raw, want := range map[string]string{
		"file://" + dir:                          "",
		"file://localhost" + dir + "?prefix=":    "",
		"file://" + dir + "/a%20b?prefix=app%3A": "",
		"file://" + dir + "?sockets=false":       "",
		"file://":                                "no path",
		"file:///":                               "no path",
		"file://relative/dir":                    "names a host",
		"file://user:secret@localhost/dir":       "names a host",
		"file:relative":                          "no scheme",
		"file://" + dir + "?nonsense=1":          "unknown key",
		"file://" + dir + "?sockets=perhaps":     "sockets",
		"file://" + dir + "?prefix=%00":          "NUL",
	} {
		d, err := backend.Open(t.Context(), raw, nil)
		if d != nil {
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		switch {
		case want == "":
			if err != nil {
				t.Errorf("Open(%q): %v", raw, err)
			}
		case !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "secret"):
			t.Errorf("Open(%q): got %v, want ErrInvalid with %q", raw, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a b")); err != nil {
		t.Errorf("the decoded path: %v", err)
	}
}

func TestPrefixIsChecked(t *testing.T) {
	_, err := NewWith(t.TempDir(), Options{Prefix: "\xff"})
	wantErr(t, "a bad prefix", err, backend.ErrInvalid)
}

func TestClosed(t *testing.T) {
	d := newQuiet(t, t.TempDir())
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := d.Acquire(t.Context(), try("x", time.Minute))
	wantErr(t, "after Close", err, backend.ErrClosed)
}

// size returns the number of files and of bytes in a directory.
func size(t *testing.T, dir string) (n int, bytes int64) {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		n++
		bytes += info.Size()
	}
	return n, bytes
}

func TestNamesLeaveConstantState(t *testing.T) {
	names := 21000
	if testing.Short() {
		names = 2000
	}
	dir := t.TempDir()
	d := newDriver(t, dir)
	for i := range names {
		release(t, d, take(t, d, try(fmt.Sprint("name ", i), time.Minute)))
	}
	for info, err := range d.List(t.Context(), "") {
		t.Errorf("List: got %+v, %v, want nothing", info, err)
	}
	// A lock file, a state and a spare for each bucket, with the last marks; FORMAT and BOOT, a line each.
	const mostFiles = 3*buckets + 2
	mostBytes := int64(2*buckets*room(100+70*maxReleased, 0) + 2*len(format))
	if n, b := size(t, dir); n > mostFiles || b > mostBytes {
		t.Errorf("state after %d names: %d files with %d bytes, want at most %d with %d",
			names, n, b, mostFiles, mostBytes)
	}
}

func TestDirectoryThatWasRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	a := newQuiet(t, dir)
	h := take(t, a, try("x", time.Minute))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Acquire(t.Context(), try("x", time.Minute)); err == nil || backend.Final(err) {
		t.Errorf("without the directory: got %v, want the system's error", err)
	}
	b := newQuiet(t, dir)
	h2 := take(t, b, try("x", time.Minute))
	if h2.Token <= h.Token {
		t.Errorf("token after the loss of all data: got %d after %d", h2.Token, h.Token)
	}
	_, err := a.Acquire(t.Context(), try("x", time.Minute))
	wantErr(t, "the old driver on the new directory", err, backend.ErrLocked)
	wantErr(t, "the old holder", a.Renew(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
}

// A state file that somebody removes is a bucket without locks: the holder learns it at the next renewal.
func TestStateThatWasRemoved(t *testing.T) {
	dir := t.TempDir()
	a, b := newQuiet(t, dir), newQuiet(t, dir)
	h := take(t, a, try("x", time.Minute))
	if err := os.Remove(a.store.bucket("x").path); err != nil {
		t.Fatal(err)
	}
	if h2 := take(t, b, try("x", time.Minute)); h2.Token <= h.Token {
		t.Errorf("token after the loss: got %d after %d", h2.Token, h.Token)
	}
	wantErr(t, "the old holder", a.Renew(t.Context(), []*core.Hold{h})[0], backend.ErrLost)
}

// Readers take no lock, and writers overwrite what a slow reader may have open.
func TestReadersSeeWholeStates(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	h := take(t, a, try("held", time.Minute))
	busy := ""
	for i := 0; busy == "" || b.store.bucket(busy) != b.store.bucket("held"); i++ {
		busy = fmt.Sprint("busy ", i)
	}
	var writer sync.WaitGroup
	done := make(chan struct{})
	writer.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				r := try(busy, time.Minute)
				r.Owner = strings.Repeat("o", rand.IntN(512)) // of any length
				release(t, b, take(t, b, r))
			}
		}
	})
	for range 2000 {
		if i, err := a.Inspect(t.Context(), "held"); err != nil || i.Token != h.Token {
			t.Errorf("Inspect of a live hold: got %+v, %v", i, err)
			break
		}
	}
	close(done)
	writer.Wait()
}
