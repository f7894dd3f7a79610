package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A container can be given a boot id of its own: processes with different ones use no directory at the same time.
func TestTwoBootIDs(t *testing.T) {
	dir := t.TempDir()
	enter := func(boot string, want error) func() {
		t.Helper()
		f, err := inhabit(t.Context(), dir, boot)
		if !errors.Is(err, want) {
			t.Errorf("boot id %s: got %v, want %v", boot, err, want)
		}
		return func() { _ = f.Close() }
	}
	first, second := enter("a", nil), enter("a", nil)
	enter("bb", backend.ErrInvalid)
	first()
	enter("bb", backend.ErrInvalid)
	second()
	defer enter("bb", nil)() // as after a reboot
	enter("a", backend.ErrInvalid)
}

// Of processes that open at the same time the first decides which boot id the others must have.
func TestTwoBootIDsAtOnce(t *testing.T) {
	for range 100 {
		dir := t.TempDir()
		type entry struct {
			boot string
			file *os.File
			err  error
		}
		entries := make(chan entry, 4)
		for _, boot := range []string{"a", "b", "a", "b"} {
			go func() {
				f, err := inhabit(t.Context(), dir, boot)
				entries <- entry{boot, f, err}
			}()
		}
		in := map[string]bool{}
		for range cap(entries) {
			e := <-entries
			defer e.file.Close()
			in[e.boot] = in[e.boot] || e.err == nil
		}
		if in["a"] == in["b"] {
			t.Fatalf("got in: %v, want those of one boot id", in)
		}
	}
}

// A process that is stopped while it opens the directory keeps others out for as long as they care to wait.
func TestOpenEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "BOOT"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ours, err := tryLock(f); err != nil || !ours {
		t.Fatalf("tryLock: got %v, %v", ours, err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := backend.Open(ctx, "file://"+dir, nil)
		wantErr(t, "Open", err, backend.ErrUnavailable)
		if took := time.Since(began); took != 20*time.Millisecond {
			t.Errorf("Open returned after %v, want it to end with its ctx after 20ms", took)
		}
		began = time.Now()
		_, err = New(dir)
		wantErr(t, "New", err, backend.ErrUnavailable)
		if took := time.Since(began); took != inhabitMost {
			t.Errorf("New returned after %v, want %v", took, inhabitMost)
		}
	})
}

// A directory that is removed and made again lets no other boot id in beside the drivers that have it open.
func TestTwoBootIDsInADirectoryMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	d := newQuiet(t, dir)
	anew := func() {
		t.Helper()
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	anew()
	take(t, d, try("x", time.Minute))
	_, err := inhabit(t.Context(), dir, "another")
	wantErr(t, "another boot id beside an open driver", err, backend.ErrInvalid)
	anew()
	f, err := inhabit(t.Context(), dir, "another")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = d.Acquire(t.Context(), try("x", time.Minute))
	wantErr(t, "an open driver beside another boot id", err, backend.ErrInvalid)
}
