//go:build unix

package file

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
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
	if left := files(t, dir, "wake-*"); len(left) != 1 { // our own driver's
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
	killed := time.Now()
	p.signal(t, syscall.SIGKILL)
	h := soon(t, next)
	if took := time.Since(killed); took > 1300*time.Millisecond {
		t.Errorf("granted %v after the kill, want within the TTL of 300ms and a second", took)
	}
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
	next := later(t.Context(), d, wait("x", time.Minute))
	queued(t, d, "x", 2)
	p.signal(t, syscall.SIGKILL)
	p.end(t)
	began := time.Now()
	release(t, d, h)
	soon(t, next)
	if took := time.Since(began); took > turn/2 {
		t.Errorf("a killed waiter delayed the next by %v, want none", took)
	}
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
	next := later(t.Context(), d, wait("x", time.Minute))
	queued(t, d, "x", 2)
	p.stop(t)
	began := time.Now()
	release(t, d, h)
	h = soon(t, next)
	if took, want := time.Since(began), d.Traits().DeadWaiter+time.Second; took > want {
		t.Errorf("a stopped waiter delayed the next by %v, want at most %v", took, want)
	}
	p.signal(t, syscall.SIGCONT)
	queued(t, d, "x", 1) // it waits again
	release(t, d, h)
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
	h := soon(t, next)
	if h.Token <= token {
		t.Errorf("token: got %d after %d", h.Token, token)
	}
	p.signal(t, syscall.SIGCONT)
	p.line(t, "lost")
	wantErr(t, "Check of the new holder", d.Check(t.Context(), []*core.Hold{h})[0], nil)
}

func TestHandOverBetweenProcesses(t *testing.T) {
	dir := t.TempDir()
	d := newDriver(t, dir)
	h := take(t, d, try("x", time.Minute))
	p := start(t, dir, "wait")
	queued(t, d, "x", 1)
	began := time.Now()
	release(t, d, h)
	if token := p.token(t); token <= h.Token {
		t.Errorf("token: got %d after %d", token, h.Token)
	}
	if took := time.Since(began); took > time.Second { // the floor is 5 s
		t.Errorf("handed over after %v, want a push", took)
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
