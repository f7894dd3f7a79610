//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"
)

// Ctrl-C shows what was measured, and leaves nothing behind.
func TestBenchThatIsInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out bytes.Buffer
	progress := make(chan string, 1)
	cmd := exec.Command(os.Args[0], "bench", "--duration", "100ms", "--rounds", "2", "--only",
		"cycle/goroutines=1,held", "file://"+dir)
	cmd.Env = append(os.Environ(), envCommand+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.Stdout, cmd.Stderr = &out, written(func(s string) {
		if strings.Contains(s, "row 2 of 2") {
			progress <- s
		}
	})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	<-progress
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code tells
	if got := cmd.ProcessState.ExitCode(); got != 130 {
		t.Errorf("got code %d, want 130", got)
	}
	if !strings.Contains(out.String(), "cycle/goroutines=1") || !strings.Contains(out.String(), "promises") {
		t.Errorf("got %q, want the row that was measured", out.String())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			t.Errorf("%s is left", e.Name())
		}
	}
	if got := invoke(t, on("file://"+dir+"?prefix="), "ls"); strings.Count(got.out, "\n") != 1 {
		t.Errorf("got %q, want no lock left in the store", got.out)
	}
}

// A store that hangs makes the cleaning up long. A second Ctrl-C ends that.
func TestBenchThatIsInterruptedTwice(t *testing.T) {
	t.Parallel()
	redis := servers.Redis(t, servers.RedisOptions{})
	p := start(t, redis.URL(), "bench", "--rounds", "1000", "--only", "cycle/goroutines=1")
	await(t, "the first round", func() bool { return strings.Contains(p.text(), "row 1 of 1") })
	must(t, redis.Pause())
	await(t, "its end", func() bool {
		_ = p.cmd.Process.Signal(syscall.SIGINT) // it may have ended
		select {
		case <-p.done:
			return true
		case <-time.After(20 * time.Millisecond):
			return false
		}
	})
	if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() {
		t.Errorf("got code %d, want the end by a signal", p.code)
	}
}

// written calls a function with what is written.
type written func(string)

func (l written) Write(p []byte) (int, error) { l(string(p)); return len(p), nil }
