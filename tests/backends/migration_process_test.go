//go:build unix

package backends

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/history"
)

// process is a member, seen from its parent.
type process struct {
	f     *fleet
	name  string
	phase backend.Phase
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

// launch starts a process with an assignment.
func (f *fleet) launch(a assignment) *process {
	f.Helper()
	exe, err := os.Executable()
	if err != nil {
		f.Fatal(err)
	}
	raw, err := json.Marshal(a)
	if err != nil {
		f.Fatal(err)
	}
	p := &process{f: f, name: a.Name, phase: a.Phase, cmd: exec.Command(exe), lines: make(chan string, 16)}
	p.cmd.Env = append(os.Environ(), memberEnv+"="+string(raw))
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what is stopped stays so if our shell ends
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		f.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		f.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		f.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		_ = p.cmd.Wait() // how it ended, the lines and their end say
		close(p.lines)
	}()
	f.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // it may have ended
		_ = p.cmd.Process.Kill()
		for range p.lines {
		}
	})
	return p
}

// start starts a member, and returns when it may lock.
func (f *fleet) start(phase backend.Phase) *process {
	f.Helper()
	p := f.launch(f.assignment(phase))
	p.want("ready")
	f.members[p.name] = p
	return p
}

// line returns the next line; ok is false when the process has ended.
func (p *process) line() (line string, ok bool) {
	p.f.Helper()
	select {
	case line, ok = <-p.lines:
		return line, ok
	case <-time.After(40 * time.Second):
		p.f.Fatalf("%s in phase %s says nothing", p.name, p.phase)
		return "", false
	}
}

func (p *process) want(want string) {
	p.f.Helper()
	if got, _ := p.line(); got != want {
		p.f.Fatalf("%s in phase %s: got %q, want %q", p.name, p.phase, got, want)
	}
}

// ask gives a member a command and returns its answer.
func (p *process) ask(words ...string) string {
	p.f.Helper()
	p.tell(words...)
	line, _ := p.line()
	return line
}

// tell gives it a command whose answer is the next line.
func (p *process) tell(words ...string) {
	p.f.Helper()
	if _, err := fmt.Fprintln(p.in, strings.Join(words, " ")); err != nil {
		p.f.Fatalf("%s in phase %s: %v", p.name, p.phase, err)
	}
}

// counts is what has become of a member's load.
type counts struct {
	grants  int
	absent  int // acquisitions without an answer of a store
	refused int // by a gate
}

func (p *process) counts() (c counts) {
	p.f.Helper()
	line := p.ask("counts")
	if _, err := fmt.Sscan(line, &c.grants, &c.absent, &c.refused); err != nil {
		p.f.Fatalf("%s in phase %s: got %q, want three numbers", p.name, p.phase, line)
	}
	return c
}

// stop ends a member in an orderly way.
func (p *process) stop() {
	p.f.Helper()
	if got := p.ask("stop"); got != "stopped" {
		p.f.Fatalf("%s in phase %s: got %q, want it to stop", p.name, p.phase, got)
	}
	delete(p.f.members, p.name)
}

// kill ends a member as if by SIGKILL.
func (p *process) kill() {
	p.f.Helper()
	at := history.Now()
	if err := p.cmd.Process.Kill(); err != nil {
		p.f.Fatal(err)
	}
	for range p.lines {
	}
	delete(p.f.members, p.name)
	p.f.write(history.Event{Kind: history.Died, Process: p.name, At: at})
}
