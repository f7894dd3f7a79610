//go:build unix

package file

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// handOver lets b take a lock that a releases, and returns how long it took.
func handOver(t *testing.T, a, b *Driver) time.Duration {
	t.Helper()
	h := take(t, a, try("x", time.Minute))
	next := later(t.Context(), b, wait("x", time.Minute))
	queued(t, a, "x", 1)
	began := time.Now()
	release(t, a, h)
	h = soon(t, next)
	took := time.Since(began)
	release(t, b, h)
	return took
}

func TestPush(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	if took := handOver(t, a, b); took > time.Second {
		t.Errorf("handed over after %v, want a push", took)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir, "wake-*"); len(left) != 0 {
		t.Errorf("sockets after Close: %q", left)
	}
}

func TestPushInALongDirectory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("sockets need a short path here: waiters look every 50 ms")
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120), strings.Repeat("e", 120))
	if took := handOver(t, newDriver(t, dir), newDriver(t, dir)); took > time.Second {
		t.Errorf("handed over after %v, want a push", took)
	}
	if found := files(t, dir, "wake-*"); len(found) != 1 {
		t.Errorf("sockets: %q, want one", found)
	}
}

func TestWithoutSockets(t *testing.T) {
	dir := t.TempDir()
	if took := handOver(t, newDriver(t, dir), newQuiet(t, dir)); took > time.Second {
		t.Errorf("handed over after %v, want a look every 50 ms", took)
	}
	if found := files(t, dir, "wake-*"); len(found) != 0 {
		t.Errorf("sockets: %q, want none", found)
	}
}

func TestSocketThatWasRemoved(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	handOver(t, a, b)
	old := b.ears.address()
	if err := os.Remove(filepath.Join(dir, old)); err != nil {
		t.Fatal(err)
	}
	if took := handOver(t, a, b); took > time.Second {
		t.Errorf("handed over after %v, want a push", took)
	}
	if now := b.ears.address(); now == old || now == "" {
		t.Errorf("socket: got %q after %q was removed", now, old)
	}
}

func TestBreakIsPushed(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	h := take(t, a, try("x", time.Minute))
	lost := make(chan error, 1)
	r := wait("x", time.Minute)
	r.Lost = func(err error) { lost <- err }
	next := later(t.Context(), b, r) // it waits, so it has a socket
	queued(t, a, "x", 1)
	release(t, a, h)
	soon(t, next)
	if err := a.Break(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-lost:
		wantErr(t, "Lost", err, backend.ErrLost)
	case <-time.After(10 * time.Second):
		t.Error("the holder was not told")
	}
}

func TestRumourIsNoLoss(t *testing.T) {
	dir := t.TempDir()
	a := newDriver(t, dir)
	r := try("x", time.Minute)
	r.Lost = func(err error) { t.Errorf("Lost(%v) of a live hold", err) }
	h := take(t, a, r)
	if !a.ears.hear(sayLost, r.Nonce) || a.ears.hear(sayLost, nonce()) {
		t.Error("hear does not know who is here")
	}
	release(t, a, h)
	if n := len(a.ears.holds) + len(a.ears.waits); n != 0 {
		t.Errorf("%d requests are still known", n)
	}
}

func TestLeftSockets(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"wake-1-00.sock", "wake-2-00.sock", "wake-3-00.sock", "mine.sock"} {
		path := filepath.Join(dir, name)
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		if name != "wake-2-00.sock" { // it lives
			_ = c.Close()
		} else {
			t.Cleanup(func() { _ = c.Close() })
		}
		if name != "wake-3-00.sock" { // it is young
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	d := newDriver(t, dir)
	d.ears.open()
	for name, want := range map[string]int{"wake-1-*": 0, "wake-2-*": 1, "wake-3-*": 1, "mine.sock": 1, "wake-*-*": 3} {
		if got := files(t, dir, name); len(got) != want {
			t.Errorf("%s: got %q, want %d", name, got, want)
		}
	}
}

func TestLookIsBounded(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	h := take(t, a, try("x", time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	next := later(ctx, b, wait("x", time.Minute))
	queued(t, a, "x", 1)
	before, err := os.Stat(a.bucket("x").path)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // six looks, if it polled
	after, err := os.Stat(a.bucket("x").path)
	if err != nil || !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
		t.Errorf("somebody wrote while a live holder held: %v", err)
	}
	cancel()
	<-next
	release(t, a, h)
}
