package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// The tests start their own binary again as another process, with its job and directory
// in the environment. It prints a line for each thing that the test waits for.
const (
	jobEnv = "FENCELOCK_FILE_TEST_JOB"
	dirEnv = "FENCELOCK_FILE_TEST_DIR"
)

var jobs = map[string]func(ctx context.Context, d caller){
	"count": func(ctx context.Context, d caller) { count(ctx, d, 4, 25) },
	"hold":  func(ctx context.Context, d caller) { childHold(ctx, d, try("x", time.Minute)) },
	"wait":  func(ctx context.Context, d caller) { childHold(ctx, d, wait("x", time.Minute)) },
	"share": func(ctx context.Context, d caller) { share(ctx, d, 4, 25) },
	"permit": func(ctx context.Context, d caller) {
		childHold(ctx, d, permit(2, wait("x", time.Minute)))
	},
	"write": childWrite,
	"stuck": func(ctx context.Context, d caller) {
		if err := d.store.bucket("x").enter(ctx); err != nil {
			fail(err)
		}
		fmt.Println("inside")
		select {}
	},
	"half": func(ctx context.Context, d caller) { // a kill in the middle of a write
		b := d.store.bucket("x")
		if err := b.enter(ctx); err != nil {
			fail(err)
		}
		if err := os.WriteFile(b.spare, []byte("fencelock sta"), 0o600); err != nil {
			fail(err)
		}
		fmt.Println("inside")
		select {}
	},
}

func child(job string) {
	d, err := New(os.Getenv(dirEnv))
	if err != nil {
		fail(err)
	}
	jobs[job](context.Background(), call(d))
	if err := d.Close(); err != nil {
		fail(err)
	}
	os.Exit(0)
}

func fail(err error) {
	fmt.Println("error:", err)
	os.Exit(1)
}

// childHold acquires, prints the token, and says when the lock is lost. Until then it only reads, so that it is never
// inside a bucket when it is stopped.
func childHold(ctx context.Context, d caller, r *backend.Request) {
	g, err := d.Acquire(ctx, r)
	if err != nil {
		fail(err)
	}
	fmt.Println("token", g.Token)
	h := &core.Hold{Request: r, Grant: g}
	for range time.Tick(20 * time.Millisecond) {
		if i, err := d.Inspect(ctx, r.Name); err != nil || i.Token == g.Token {
			continue
		}
		if err := d.Renew(ctx, []*core.Hold{h})[0]; errors.Is(err, backend.ErrLost) {
			fmt.Println("lost")
			return
		}
	}
}

// count adds to a number in a file, which only the lock guards.
func count(ctx context.Context, d caller, workers, rounds int) {
	path := filepath.Join(d.store.hub.dir, "counter")
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range rounds {
				r := wait("counter", 10*time.Second)
				g, err := d.Acquire(ctx, r)
				if err != nil {
					fail(err)
				}
				raw, _ := os.ReadFile(path) // missing at first
				n, _ := strconv.Atoi(string(raw))
				if err := os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600); err != nil {
					fail(err)
				}
				if err := d.Release(ctx, &core.Hold{Request: r, Grant: g}); err != nil {
					fail(err)
				}
			}
		})
	}
	all.Wait()
}

// share lets readers, writers and permits look at two files, which writers change one after the other, and permits make
// a file of their slot, which nobody else may have. It returns the longest wait.
func share(ctx context.Context, d caller, workers, rounds int) time.Duration {
	const limit = 3
	left, right := filepath.Join(d.store.hub.dir, "left"), filepath.Join(d.store.hub.dir, "right")
	var longest atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range rounds {
				r := wait("share", 10*time.Second)
				switch rand.IntN(5) {
				case 0, 1:
					r = reading(r)
				case 2, 3:
					r = permit(limit, r)
				}
				began := time.Now()
				g, err := d.Acquire(ctx, r)
				if err != nil {
					fail(err)
				}
				longest.Store(max(longest.Load(), int64(time.Since(began))))
				one, _ := os.ReadFile(left) // missing at first
				two, _ := os.ReadFile(right)
				if string(one) != string(two) {
					fail(fmt.Errorf("a %v sees %q and %q", r.Mode, one, two))
				}
				mark := filepath.Join(d.store.hub.dir, fmt.Sprint("slot", g.Slot))
				switch r.Mode {
				case backend.Exclusive:
					n, _ := strconv.Atoi(string(one))
					for _, path := range []string{left, right} {
						err = errors.Join(err, os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600))
					}
					if marks, _ := filepath.Glob(filepath.Join(d.store.hub.dir, "slot*")); len(marks) > 0 {
						err = fmt.Errorf("a writer sees the permits %q", marks)
					}
				case backend.Permit:
					f, e := os.OpenFile(mark, os.O_CREATE|os.O_EXCL, 0o600)
					if err = errors.Join(e, f.Close()); err == nil && g.Slot < limit {
						time.Sleep(time.Millisecond)
						err = os.Remove(mark)
					}
				}
				if err := errors.Join(err, d.Release(ctx, &core.Hold{Request: r, Grant: g})); err != nil {
					fail(err)
				}
			}
		})
	}
	all.Wait()
	return time.Duration(longest.Load())
}

// childWrite changes the state all the time, until it is killed.
func childWrite(ctx context.Context, d caller) {
	fmt.Println("writing")
	for {
		name := "n" + strconv.Itoa(rand.IntN(5))
		r := try(name, 100*time.Millisecond)
		r.Wait = rand.IntN(4) == 0
		switch rand.IntN(4) {
		case 0:
			r = reading(r)
		case 1:
			r = permit(2, r)
		}
		g, err := d.Acquire(ctx, r)
		h := &core.Hold{Request: r, Grant: g}
		switch {
		case errors.Is(err, backend.ErrLocked):
			err = d.Abandon(ctx, r)
		case err != nil:
		case rand.IntN(4) == 0:
			err = d.Break(ctx, name)
		case rand.IntN(2) == 0:
			err = errors.Join(d.Renew(ctx, []*core.Hold{h})[0], d.Release(ctx, h))
		default:
			err = d.Release(ctx, h)
		}
		if err != nil && !errors.Is(err, backend.ErrLost) {
			fail(err)
		}
	}
}

// process is a child that runs.
type process struct {
	cmd   *exec.Cmd
	lines chan string
}

func start(t testing.TB, dir, job string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), jobEnv+"="+job, dirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd, make(chan string, 100)}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		reader.Wait()
		_ = cmd.Wait() // it was killed
	})
	return p
}

// line returns the next line, which must begin with want.
func (p *process) line(t testing.TB, want string) string {
	t.Helper()
	select {
	case l, ok := <-p.lines:
		if !ok || !strings.HasPrefix(l, want) {
			t.Fatalf("the child said %q, want %q", l, want)
		}
		return l
	case <-time.After(20 * time.Second):
		t.Fatalf("the child did not say %q within 20 s", want)
	}
	return ""
}

// end waits until the child has ended by itself, without a word.
func (p *process) end(t testing.TB) {
	t.Helper()
	for l := range p.lines {
		t.Errorf("the child said %q", l)
	}
}

func (p *process) token(t testing.TB) backend.Token {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimPrefix(p.line(t, "token "), "token "), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
