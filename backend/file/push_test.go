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
	"github.com/fencelock/fencelock/internal/core"
)

// pushes fails unless a waiter of b is told that a has released the lock.
func pushes(t *testing.T, a, b caller) {
	t.Helper()
	h := take(t, a, try("x", time.Minute))
	next := sleep(t, b, wait("x", time.Minute))
	release(t, a, h)
	next.takes(t)
	next.leave(t)
}

func TestPush(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	pushes(t, a, b)
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
	pushes(t, newDriver(t, dir), newDriver(t, dir))
	if found := files(t, dir, "wake-*"); len(found) != 1 {
		t.Errorf("sockets: %q, want one", found)
	}
}

func TestWithoutSockets(t *testing.T) {
	dir := t.TempDir()
	quiet, d := newQuiet(t, dir), newDriver(t, dir)
	h := take(t, d, try("x", time.Minute))
	s := sleep(t, quiet, wait("x", time.Minute))
	if s.Next > pollEvery {
		t.Errorf("looks again in %v, want %v", s.Next, pollEvery)
	}
	s.leave(t)
	release(t, d, h)
	if found := files(t, dir, "wake-*"); len(found) != 0 {
		t.Errorf("sockets: %q, want none", found)
	}
	pushes(t, quiet, d)
}

// A wake-up that gets lost costs a second: the first waiter looks so often.
func TestLostPush(t *testing.T) {
	d := newDriver(t, t.TempDir())
	take(t, d, try("x", time.Minute))
	if s := sleep(t, d, wait("x", time.Minute)); s.Next > lostEvery {
		t.Errorf("looks again in %v, want %v", s.Next, lostEvery)
	}
}

// A waiter and a holder in a directory that is removed and made again find each other in the new one.
func TestDirectoryMadeAgain(t *testing.T) {
	for _, below := range []string{"locks", filepath.Join(strings.Repeat("d", 120), strings.Repeat("e", 120))} {
		if runtime.GOOS != "linux" && len(below) > maxDir {
			continue // sockets need a short path here: waiters look every 50 ms
		}
		dir := filepath.Join(t.TempDir(), below)
		a, b := newDriver(t, dir), newDriver(t, dir)
		take(t, a, try("x", time.Minute))
		next := later(t.Context(), b, wait("x", time.Minute))
		queued(t, a, "x", 1)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		c := newDriver(t, dir)
		h, other := take(t, c, try("x", time.Minute)), take(t, a, try("y", time.Minute))
		queued(t, c, "x", 1)
		if found := files(t, dir, "wake-*"); len(found) != 1 {
			t.Errorf("%.9s…: sockets: %q, want that of the waiter", below, found)
		}
		lively := later(t.Context(), c, wait("y", time.Minute))
		queued(t, c, "y", 1)
		hub := c.store.hub
		hub.mu.Lock()
		w := wakeUp{waiter{nonce: "n", socket: hub.name}, 0}
		hub.mu.Unlock()
		if gone := a.store.hub.tell([]wakeUp{w}); len(gone) > 0 {
			t.Errorf("%.9s…: taken for dead: %q", below, gone)
		}
		release(t, c, h)
		soon(t, next)
		release(t, a, other)
		soon(t, lively)
	}
}

func TestSocketThatWasRemoved(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	pushes(t, a, b)
	old := b.store.hub.name
	if err := os.Remove(filepath.Join(dir, old)); err != nil {
		t.Fatal(err)
	}
	pushes(t, a, b)
	if now := b.store.hub.name; now == old || now == "" {
		t.Errorf("socket: got %q after %q was removed", now, old)
	}
}

func TestHubForgetsWaiters(t *testing.T) {
	dir := t.TempDir()
	a, b := newDriver(t, dir), newDriver(t, dir)
	pushes(t, a, b)
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

// The first waiter behind a live holder looks every second, the others every 5 s, and a look soon after the last one
// writes nothing.
func TestLooksAreFew(t *testing.T) {
	now := int64(time.Hour)
	l := &lock{holds: []holder{{nonce: "h", until: now + int64(time.Minute)}}}
	for _, want := range []time.Duration{lostEvery, pushEvery, pushEvery} {
		c := &backend.Claim{Request: wait("x", time.Minute), Place: "wake-1-w.sock"}
		if !l.wait(now, c) || l.wait(now+1, c) {
			t.Error("want a change by the first look, and none by the next")
		}
		if c.Next != want {
			t.Errorf("looks again in %v, want %v", c.Next, want)
		}
	}
}

// A waiter of another driver that becomes the first, for the one before it has gone, hears of it, and looks as often as
// the first does.
func TestNextBecomesFirst(t *testing.T) {
	dir := t.TempDir()
	a := newDriver(t, dir)
	take(t, a, try("x", time.Minute))
	first := sleep(t, a, wait("x", time.Minute))
	next := sleep(t, newDriver(t, dir), wait("x", time.Minute))
	first.leave(t)
	if in := next.told(t); in != 0 {
		t.Errorf("told to look in %v, want at once", in)
	}
	wantErr(t, "the next", next.look(t), backend.ErrLocked)
	if next.Next > lostEvery {
		t.Errorf("looks again in %v, want %v", next.Next, lostEvery)
	}
}

// A writer lets all the readers in at once, each in a driver of its own, and they have one token.
func TestReadersOfManyDrivers(t *testing.T) {
	dir := t.TempDir()
	d := newDriver(t, dir)
	w := take(t, d, try("x", time.Minute))
	var readers []*sleeper
	for range 5 {
		readers = append(readers, sleep(t, newDriver(t, dir), reading(wait("x", time.Minute))))
	}
	release(t, d, w)
	for _, r := range readers {
		r.takes(t)
		if r.Token <= w.Token || r.Token != readers[0].Token {
			t.Errorf("token: got %d after a writer's %d, want one for all: %d", r.Token, w.Token, readers[0].Token)
		}
	}
	wantErr(t, "Break", d.Break(t.Context(), "x"), nil)
	take(t, d, try("x", time.Minute))
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

// Waiters are not told again and again of a change that could not be written.
func TestNobodyIsToldOfWhatWasNotWritten(t *testing.T) {
	dir := t.TempDir()
	d := newDriver(t, dir)
	h := take(t, d, try("x", time.Minute))
	b := d.store.bucket("x")
	for i := range 3 {
		c := &backend.Claim{Request: wait("x", time.Minute), Place: fmt.Sprintf("wake-1-dead%d.sock", i)}
		d.store.Ask(t.Context(), []*backend.Claim{c})
		wantErr(t, "joining the queue", c.Err, backend.ErrLocked)
	}
	h.Request.TTL = time.Nanosecond // it expires, and nobody looks
	wantErr(t, "Renew", d.Renew(t.Context(), []*core.Hold{h})[0], nil)
	if err := errors.Join(os.RemoveAll(b.spare), os.Mkdir(b.spare, 0o700)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := d.store.Break(ctx, "x"); err == nil || ctx.Err() != nil {
		t.Errorf("got %v, and the context %v, want an error at once", err, ctx.Err())
	}
}
