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
func handOver(t *testing.T, a, b caller) time.Duration {
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

// A wake-up that gets lost, here since the one who releases has no sockets, costs a second or two.
func TestLostPush(t *testing.T) {
	dir := t.TempDir()
	if took := handOver(t, newQuiet(t, dir), newDriver(t, dir)); took > 3*time.Second {
		t.Errorf("handed over after %v, want a look within a second", took)
	}
}

func TestSocketThatWasRemoved(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	handOver(t, a, b)
	old := b.store.hub.name
	if err := os.Remove(filepath.Join(dir, old)); err != nil {
		t.Fatal(err)
	}
	if took := handOver(t, a, b); took > time.Second {
		t.Errorf("handed over after %v, want a push", took)
	}
	if now := b.store.hub.name; now == old || now == "" {
		t.Errorf("socket: got %q after %q was removed", now, old)
	}
}

func TestHubForgetsWaiters(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	handOver(t, a, b)
	h := take(t, a, try("x", time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	r := wait("x", time.Minute)
	next := later(ctx, b, r)
	queued(t, a, "x", 1)
	cancel()
	<-next
	wantErr(t, "Abandon", b.Abandon(t.Context(), r), nil)
	release(t, a, h)
	if n := len(a.store.hub.claims) + len(b.store.hub.claims); n != 0 {
		t.Errorf("%d waiters are still known", n)
	}
}

func TestLeftSockets(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"wake-1-00.sock", "wake-2-00.sock", "mine.sock"} {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		if name != "wake-2-00.sock" { // it lives
			_ = c.Close()
		} else {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	d := newDriver(t, dir)
	d.store.hub.enter(&backend.Claim{Request: wait("x", time.Minute)})
	for name, want := range map[string]int{"wake-1-*": 0, "wake-2-*": 1, "mine.sock": 1, "wake-*-*": 2} {
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
	before, err := os.Stat(a.store.bucket("x").path)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // six looks, if it polled
	after, err := os.Stat(a.store.bucket("x").path)
	if err != nil || !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
		t.Errorf("somebody wrote while a live holder held: %v", err)
	}
	cancel()
	<-next
	release(t, a, h)
}
