//go:build unix

package file

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// stop stops the child, and returns when it stands still.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || !status.Stopped():
			t.Fatalf("the child did not stop: %v, %v", status, err)
		default:
			return
		}
	}
}

func TestProcessesExclude(t *testing.T) {
	dir := t.TempDir()
	const processes = 4
	var ps []*process
	for range processes {
		ps = append(ps, start(t, dir, "count"))
	}
	count(t.Context(), newDriver(t, dir), 4, 25)
	for _, p := range ps {
		p.end(t)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "counter"))
	if got, want := string(raw), strconv.Itoa((processes+1)*4*25); err != nil || got != want {
		t.Errorf("counter: got %q, %v, want %s", got, err, want)
	}
	if left := files(t, dir, "wake-*"); len(left) > 1 { // our own driver's
		t.Errorf("sockets left: %q", left)
	}
}

func TestKilledHolder(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir, "hold")
	token := p.token(t)
	d := newDriver(t, dir)
	next := later(t.Context(), d, wait("x", time.Minute))
	queued(t, d, "x", 1)
	p.signal(t, syscall.SIGKILL)
	p.end(t)
	expire(t, d, "x", token)
	h := soon(t, next)
	if h.Token <= token {
		t.Errorf("token: got %d after %d", h.Token, token)
	}
}

func TestKilledWaiter(t *testing.T) {
	dir := t.TempDir()
	d := newDriver(t, dir)
	h := take(t, d, try("x", time.Minute))
	p := start(t, dir, "wait")
	queued(t, d, "x", 1)
	next := sleep(t, d, wait("x", time.Minute))
	p.signal(t, syscall.SIGKILL)
	p.end(t)
	release(t, d, h)
	next.takes(t) // and does not wait for the turn of the dead one to be over
	if left := files(t, dir, "wake-*"); len(left) != 1 {
		t.Errorf("sockets left: %q, want that of the living process", left)
	}
}

func TestStoppedWaiter(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 2 s")
	}
	t.Parallel()
	dir := t.TempDir()
	d := newDriver(t, dir)
	h := take(t, d, try("x", time.Minute))
	p := start(t, dir, "wait")
	queued(t, d, "x", 1)
	next := sleep(t, d, wait("x", time.Minute))
	p.stop(t)
	release(t, d, h)
	if in := next.told(t); in > turn {
		t.Errorf("told to look in %v, want it when the turn of the stopped one is over, after %v", in, turn)
	}
	eventually(t, "the next", func() bool { return next.look(t) == nil })
	p.signal(t, syscall.SIGCONT)
	queued(t, d, "x", 1) // it waits again
	next.Held = true
	next.leave(t)
	p.token(t)
}

func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir, "hold")
	token := p.token(t)
	d := newDriver(t, dir)
	next := later(t.Context(), d, wait("x", time.Minute))
	queued(t, d, "x", 1)
	p.stop(t)
	expire(t, d, "x", token)
	h := soon(t, next)
	if h.Token <= token {
		t.Errorf("token: got %d after %d", h.Token, token)
	}
	p.signal(t, syscall.SIGCONT)
	p.line(t, "lost")
	wantErr(t, "Check of the new holder", d.Check(t.Context(), []*core.Hold{h})[0], nil)
}

// Readers, writers and permits of several processes never see what they must not.
func TestProcessesShare(t *testing.T) {
	dir := t.TempDir()
	var ps []*process
	for range 3 {
		ps = append(ps, start(t, dir, "share"))
	}
	d := newDriver(t, dir)
	t.Logf("the longest wait here: %v", share(t.Context(), d, 4, 25))
	for _, p := range ps {
		p.end(t)
	}
	wantEmpty(t, d, "share")
}

// Writers that wait behind a reader are killed: the next look of a reader behind them, which looks every second, lets
// all of these in beside it.
func TestKilledWritersBeforeReaders(t *testing.T) {
	dir := t.TempDir()
	d := newDriver(t, dir)
	reader := take(t, d, reading(try("x", time.Minute)))
	var writers []*process
	var readers []*sleeper
	for i := range 2 {
		writers = append(writers, start(t, dir, "wait"))
		queued(t, d, "x", i+1)
	}
	for range 3 {
		r := sleep(t, newDriver(t, dir), reading(wait("x", time.Minute)))
		if r.Next > lostEvery {
			t.Errorf("a reader looks again in %v, want %v", r.Next, lostEvery)
		}
		readers = append(readers, r)
	}
	for _, w := range writers {
		w.signal(t, syscall.SIGKILL)
		w.end(t)
	}
	wantErr(t, "the look that finds out", readers[0].look(t), backend.ErrLocked)
	for _, r := range readers {
		if r.takes(t); r.Token != reader.Token {
			t.Errorf("token: got %d beside a reader with %d", r.Token, reader.Token)
		}
	}
	if i := inspect(t, d, "x"); i.Holders != 4 || i.Waiters != 0 {
		t.Errorf("Inspect: got %+v, want 4 readers", i)
	}
	release(t, d, reader)
}

// A holder of a permit, and one that was woken for the other, are killed: both permits come free.
func TestKilledPermits(t *testing.T) {
	dir := t.TempDir()
	d := newDriver(t, dir)
	p := start(t, dir, "permit")
	token := p.token(t)
	h := take(t, d, permit(2, try("x", time.Minute)))
	waiter := start(t, dir, "permit")
	queued(t, d, "x", 1)
	one := later(t.Context(), d, permit(2, wait("x", time.Minute)))
	two := later(t.Context(), d, permit(2, wait("x", time.Minute)))
	queued(t, d, "x", 3)
	waiter.signal(t, syscall.SIGKILL)
	waiter.end(t)
	p.signal(t, syscall.SIGKILL)
	p.end(t)
	expire(t, d, "x", token)
	release(t, d, h)
	a, b := soon(t, one), soon(t, two)
	if a.Slot == b.Slot || a.Slot+b.Slot != 1 {
		t.Errorf("slots: got %d and %d, want 0 and 1", a.Slot, b.Slot)
	}
	release(t, d, a)
	release(t, d, b)
	wantEmpty(t, d, "x")
}

func TestHandOverBetweenProcesses(t *testing.T) {
	dir := t.TempDir()
	d := newDriver(t, dir)
	h := take(t, d, try("x", time.Minute))
	p := start(t, dir, "wait")
	queued(t, d, "x", 1)
	release(t, d, h)
	if token := p.token(t); token <= h.Token {
		t.Errorf("token: got %d after %d", token, h.Token)
	}
	if err := d.Break(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the break", func() bool { return !inspect(t, d, "x").Held })
}

func TestStoppedInside(t *testing.T) {
	for _, job := range []string{"stuck", "half"} {
		t.Run(job, func(t *testing.T) {
			dir := t.TempDir()
			d := newDriver(t, dir)
			h := take(t, d, try("x", time.Minute))
			p := start(t, dir, job)
			p.line(t, "inside")
			p.stop(t)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := d.Acquire(ctx, try("x", time.Minute))
			wantErr(t, "Acquire", err, context.DeadlineExceeded)
			_, err = d.Acquire(ctx, wait("x", time.Minute))
			wantErr(t, "Acquire with Wait", err, context.DeadlineExceeded)
			wantErr(t, "Release", d.Release(ctx, h), context.DeadlineExceeded)
			if i := inspect(t, d, "x"); i.Token != h.Token {
				t.Errorf("Inspect: got %+v, want token %d", i, h.Token)
			}
			p.signal(t, syscall.SIGKILL)
			release(t, d, h)
		})
	}
}

// Writers are killed at random moments; whatever they leave must read back, exclude, and be
// free when its time is over.
func TestKilledWriters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDriver(t, dir)
	end := time.Now().Add(3 * time.Second)
	if testing.Short() {
		end = time.Now().Add(500 * time.Millisecond)
	}
	kills := 0
	for ; time.Now().Before(end); kills++ {
		p, q := start(t, dir, "write"), start(t, dir, "write")
		p.line(t, "writing")
		q.line(t, "writing")
		for stop := time.Now().Add(time.Duration(rand.IntN(30)) * time.Millisecond); time.Now().Before(stop); {
			for _, err := range d.List(t.Context(), "") {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		p.signal(t, syscall.SIGKILL)
		q.signal(t, syscall.SIGKILL)
		p.end(t)
		q.end(t)
	}
	for i := range 5 {
		name := "n" + strconv.Itoa(i)
		before := inspect(t, d, name).Token
		h := take(t, d, wait(name, time.Minute))
		if h.Token <= before {
			t.Errorf("%s: got token %d after %d", name, h.Token, before)
		}
		_, err := d.Acquire(t.Context(), try(name, time.Minute))
		wantErr(t, name, err, backend.ErrLocked)
	}
	t.Logf("%d pairs of writers were killed", kills)
}

func TestLateReplyIsKnown(t *testing.T) {
	dir := t.TempDir()
	d := newDriver(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Acquire(ctx, try("x", time.Minute))
	wantErr(t, "a ctx that is done", err, context.Canceled)
	if errors.Is(err, backend.ErrLocked) || len(files(t, dir, "*.state")) != 0 {
		t.Errorf("a ctx that is done reached the directory: %v", err)
	}
}

// A disk that is full when a directory is opened for the first time spoils nothing for later.
func TestFullDiskAtTheFirstOpen(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("/bin/sh", "-c", `trap '' XFSZ; ulimit -f 0; exec "$0"`, exe) // no file may have a byte
	cmd.Env = append(os.Environ(), jobEnv+"=stuck", dirEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "error: ") {
		t.Fatalf("opened on a full disk: %v, %s", err, out)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	d, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = d.Close()
}
