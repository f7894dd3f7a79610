//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/run"
)

// proc is a fencelock process of its own.
type proc struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	code int           // then

	mu     sync.Mutex
	stderr []string
	events []run.Event
}

// start starts `fencelock ARGS` on a store.
func start(t *testing.T, url string, args ...string) *proc {
	t.Helper()
	p := &proc{t: t, done: make(chan struct{}), cmd: exec.Command(os.Args[0], args...)}
	p.cmd.Env = append(os.Environ(), envCommand+"=1", "FENCELOCK_URL="+url,
		"GORACE=atexit_sleep_ms=0") // the race detector's second at every exit
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			p.line(s.Text())
		}
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		left := time.AfterFunc(time.Second, func() { _ = stderr.Close() }) // a command that should be dead has it
		defer left.Stop()
		<-p.done
		if t.Failed() {
			t.Logf("%v: exit code %d, stderr:\n%s", args, p.code, strings.Join(p.stderr, "\n"))
		}
	})
	return p
}

// running starts `fencelock run --json FLAGS -- sh -c SCRIPT`.
func running(t *testing.T, url, script string, flags ...string) *proc {
	t.Helper()
	return start(t, url, append(append([]string{"run", "--json"}, flags...), "--", "sh", "-c", script)...)
}

func (p *proc) line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stderr = append(p.stderr, s)
	var e run.Event
	if json.Unmarshal([]byte(s), &e) == nil && e.Event != "" {
		p.events = append(p.events, e)
	}
}

// find returns the first event of a kind, or nil.
func (p *proc) find(kind string) *run.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.events {
		if p.events[i].Event == kind {
			return &p.events[i]
		}
	}
	return nil
}

// await waits for an event.
func (p *proc) await(kind string) run.Event {
	p.t.Helper()
	await(p.t, "event "+kind, func() bool { return p.find(kind) != nil })
	return *p.find(kind)
}

// wait waits for its end and returns the exit code.
func (p *proc) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("not ended after %v", patience)
	}
	return p.code
}

// exits checks its exit code.
func (p *proc) exits(want int) {
	p.t.Helper()
	if got := p.wait(); got != want {
		p.t.Errorf("exit code %d, want %d", got, want)
	}
}

func (p *proc) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// text is all of its stderr.
func (p *proc) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.stderr, "\n")
}

// lines returns the complete lines of a file, none if it does not exist.
func lines(path string) []string {
	data, _ := os.ReadFile(path)
	end := bytes.LastIndexByte(data, '\n')
	if end < 0 {
		return nil
	}
	return strings.Split(string(data[:end]), "\n")
}

// awaitLines waits until a file has n lines, and returns them.
func awaitLines(t *testing.T, path string, n int) []string {
	t.Helper()
	await(t, path, func() bool { return len(lines(path)) >= n })
	return lines(path)
}
