package stores

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// envChild makes the test program start a process, print its number and wait to be killed.
const envChild = "FENCELOCK_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(envChild); dir != "" {
		p, err := sleeper(dir)
		if err == nil {
			err = p.Start(context.Background())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(p.(*process).cmd.Process.Pid)
		select {}
	}
	os.Exit(m.Run())
}

// sleeper is a process that does nothing and keeps a mark in its data folder.
func sleeper(dir string) (Process, error) {
	data := filepath.Join(dir, "data")
	return Local{}.Prepare(context.Background(), Spec{
		Store: "none", Name: "sleeper", Dir: dir, Data: data,
		Args: []string{"sh", "-c", "echo started; exec sleep 600"},
		Setup: func(context.Context) error {
			return os.WriteFile(filepath.Join(data, "mark"), nil, 0o644)
		},
	})
}

func newSleeper(t *testing.T) *process {
	t.Helper()
	p, err := sleeper(t.TempDir())
	must(t, err)
	t.Cleanup(func() {
		must(t, p.Close())
		buf := make([]byte, 1<<20)
		if dump := string(buf[:runtime.Stack(buf, true)]); strings.Contains(dump, "(*process).Start.func") &&
			strings.Contains(dump, "exec.(*Cmd).Wait") {
			t.Errorf("a goroutine is left behind:\n%s", dump)
		}
	})
	return p.(*process)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must(t, await(ctx, nil, func(context.Context) error { return areGone([]int{pid}) }))
}

func TestProcessLifeCycle(t *testing.T) {
	p := newSleeper(t)
	must(t, p.Kill()) // not running: nil
	must(t, p.Stop(t.Context()))
	if err := p.Pause(); err == nil {
		t.Error("a process that does not run was paused")
	}
	must(t, p.Start(t.Context()))
	pid := p.cmd.Process.Pid
	if err := p.Start(t.Context()); err == nil {
		t.Error("it was started twice")
	}
	if err := p.Wipe(); err == nil {
		t.Error("the data of a running process was removed")
	}
	must(t, p.Pause())
	if s, err := stat(pid); err != nil || s.state != "T" {
		t.Errorf("paused: state %q, %v", s.state, err)
	}
	must(t, p.Resume())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must(t, await(ctx, p.Exited(), func(context.Context) error {
		if p.Tail() != "started\n" {
			return fmt.Errorf("the log is %q", p.Tail())
		}
		return nil
	}))
	must(t, p.Pause())
	must(t, p.Stop(t.Context())) // also while paused
	gone(t, pid)
	select {
	case <-p.Exited():
	default:
		t.Error("Exited is open after Stop")
	}
	must(t, p.Start(t.Context()))
	must(t, p.Kill())
	must(t, p.Wipe())
	if _, err := os.Stat(p.spec.Data); !os.IsNotExist(err) {
		t.Errorf("the data is still there: %v", err)
	}
}

func TestProcessDiesWithItsParent(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	parent := exec.Command(self)
	parent.Env = append(os.Environ(), envChild+"="+t.TempDir())
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	must(t, err)
	must(t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Error(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = parent.Wait() // killed, as wanted
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	must(t, err)
	gone(t, pid)
}

func TestMissingProgram(t *testing.T) {
	_, err := Local{}.Prepare(t.Context(), Spec{Store: "none", Args: []string{"fencelock-no-such-program"}})
	if err == nil || !strings.Contains(err.Error(), "not available here") {
		t.Errorf("got %v", err)
	}
}

// Without the source tree an etcd that is installed will do.
func TestInstalledEtcd(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	t.Setenv(envEtcd, "")
	if _, err := EtcdProgram(t.Context()); !errors.Is(err, ErrMissing) {
		t.Errorf("none: got %v, want %v", err, ErrMissing)
	}
	want := filepath.Join(bin, "etcd")
	if err := os.WriteFile(want, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := EtcdProgram(t.Context()); got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestPortsAreKept(t *testing.T) {
	p, err := takePorts(20, true)
	must(t, err)
	seen := map[int]bool{}
	for _, n := range p.numbers {
		if seen[n] {
			t.Errorf("port %d was given twice", n)
		}
		seen[n] = true
		l, err := net.Listen("tcp", loopback(n)) // free, but kept
		must(t, err)
		must(t, l.Close())
		if m, err := mark(n); err == nil {
			m.Close()
			t.Errorf("port %d could be taken by another process", n)
		}
	}
	must(t, p.release())
	m, err := mark(p.numbers[0])
	must(t, err)
	must(t, m.Close())
}

func TestAwaitEnds(t *testing.T) {
	never := func(context.Context) error { return fmt.Errorf("not yet") }
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := await(ctx, nil, never); err == nil || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("got %v, want the last answer", err)
	}
	ended := make(chan struct{})
	close(ended)
	if err := await(t.Context(), ended, never); err == nil || !strings.Contains(err.Error(), "the program ended") {
		t.Errorf("got %v, want the end of the program", err)
	}
}

func TestCachedIsMadeOnce(t *testing.T) {
	t.Setenv(envCache, t.TempDir())
	made := 0
	for range 2 {
		path, err := cached(t.Context(), "thing", func(path string) error {
			made++
			return os.WriteFile(path, []byte("x"), 0o644)
		})
		must(t, err)
		if b, err := os.ReadFile(path); err != nil || string(b) != "x" {
			t.Errorf("got %q, %v", b, err)
		}
	}
	if made != 1 {
		t.Errorf("made %d times", made)
	}
}
