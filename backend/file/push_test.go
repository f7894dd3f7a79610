//go:build unix

package file

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	quiet, d := newQuiet(t, dir), newDriver(t, dir)
	if took := handOver(t, d, quiet); took > time.Second {
		t.Errorf("handed over after %v, want a look every 50 ms", took)
	}
	if found := files(t, dir, "wake-*"); len(found) != 0 {
		t.Errorf("sockets: %q, want none", found)
	}
	if took := handOver(t, quiet, d); took > time.Second {
		t.Errorf("handed over after %v to one that has a socket, want a push", took)
	}
}

// A wake-up that gets lost costs a second or two.
func TestLostPush(t *testing.T) {
	dir := t.TempDir()
	deaf := newDriver(t, dir)
	deaf.store.hub.base = ""
	if took := handOver(t, deaf, newDriver(t, dir)); took > 3*time.Second {
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

// A waiter of another driver that becomes the first, for the one before it has gone, looks as the first does: at the
// expiry of a hold whose process says nothing, not when that one's turn would be over.
func TestNextBecomesFirst(t *testing.T) {
	dir := t.TempDir()
	a := newDriver(t, dir)
	const ttl = 1500 * time.Millisecond
	began := time.Now()
	take(t, a, try("x", ttl))
	ctx, cancel := context.WithCancel(t.Context())
	gone := wait("x", time.Minute)
	first := later(ctx, a, gone)
	queued(t, a, "x", 1)
	next := later(t.Context(), newDriver(t, dir), wait("x", time.Minute))
	queued(t, a, "x", 2)
	cancel()
	<-first
	wantErr(t, "Abandon", a.Abandon(t.Context(), gone), nil)
	soon(t, next)
	if took := time.Since(began); took > ttl+turn/2 {
		t.Errorf("granted after %v, want at the expiry after %v", took, ttl)
	}
}

// However the looks of a waiter fall, each leaves its place alive until well after the next one.
func TestPlaceOutlastsTheNextLook(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		end := func() int64 { return int64(500*time.Millisecond) + rnd.Int64N(int64(10*time.Second)) }
		now := int64(time.Hour)
		l := &lock{holds: []holder{{nonce: "h", until: now + end()}}, queue: []waiter{{nonce: "w", until: now + end()}}}
		c := &backend.Claim{Request: wait("x", time.Minute), Place: "wake-1-w.sock"}
		for range 50 {
			l.wait(now, c)
			left := time.Duration(l.queue[1].until - now)
			if left < c.Next+time.Second {
				t.Fatalf("seed %d: looks again in %v, and its place ends in %v", seed, c.Next, left)
			}
			now += int64(c.Next)
			if early := rnd.Int64N(int64(c.Next)); rnd.IntN(3) == 0 {
				now -= early // it was told something
			}
			l.holds[0].until = max(l.holds[0].until, now+end())
			l.queue[0].until = now + int64(pushLife)
		}
	}
}

// Who is told of nothing, for it could not be written, is not told again and again.
func TestNobodyIsToldOfWhatWasNotWritten(t *testing.T) {
	dir := t.TempDir()
	d := newDriver(t, dir)
	take(t, d, try("x", 100*time.Millisecond))
	b := d.store.bucket("x")
	for i := range 3 {
		c := &backend.Claim{Request: wait("x", time.Minute), Place: fmt.Sprintf("wake-1-dead%d.sock", i)}
		d.store.Ask(t.Context(), []*backend.Claim{c})
		wantErr(t, "joining the queue", c.Err, backend.ErrLocked)
	}
	eventually(t, "the lock expires", func() bool { return !inspect(t, d, "x").Held })
	if err := errors.Join(os.RemoveAll(b.spare), os.Mkdir(b.spare, 0o700)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := d.store.Break(ctx, "x"); err == nil || ctx.Err() != nil {
		t.Errorf("got %v, and the context %v, want an error at once", err, ctx.Err())
	}
}
