package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// pty is a pseudo-terminal with a fencelock process on it.
type pty struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd

	mu  sync.Mutex
	out strings.Builder
}

// onTerminal starts `fencelock ARGS` as the leader of a session on a terminal of its own.
func onTerminal(t *testing.T, url string, args ...string) *pty {
	t.Helper()
	return commandOnTerminal(t, url, exec.Command(os.Args[0], args...))
}

// commandOnTerminal starts any command so; what it starts of this test binary is a fencelock.
func commandOnTerminal(t *testing.T, url string, cmd *exec.Cmd) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo-terminals here:", err)
	}
	fd := int(master.Fd())
	must(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	must(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	defer slave.Close()
	p := &pty{t: t, master: master, cmd: cmd}
	p.cmd.Env = append(os.Environ(), envCommand+"=1", "FENCELOCK_URL="+url, "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, p.cmd.Start())
	read := make(chan struct{})
	go func() { // until the last process on it has ended
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			if err != nil {
				return
			}
			p.mu.Lock()
			p.out.Write(buf[:n])
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		if t.Failed() {
			ps, _ := exec.Command("ps", "-s", fmt.Sprint(p.cmd.Process.Pid), "-o",
				"pid,ppid,pgid,tpgid,stat,wchan:20,args").CombinedOutput()
			t.Logf("terminal %q of\n%s", p.text(), ps)
		}
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		<-read
		_ = master.Close()
	})
	return p
}

func (p *pty) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// shows waits until the terminal shows something.
func (p *pty) shows(what string) {
	p.t.Helper()
	await(p.t, "the terminal shows "+what, func() bool { return strings.Contains(p.text(), what) })
}

// types presses keys.
func (p *pty) types(keys string) {
	p.t.Helper()
	_, err := p.master.WriteString(keys)
	must(p.t, err)
}

// exits waits for the end of the process and checks its exit code.
func (p *pty) exits(want int) {
	p.t.Helper()
	_ = p.cmd.Wait()
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		p.t.Errorf("exit code %d, want %d; terminal:\n%s", got, want, p.text())
	}
}

func TestTerminalBelongsToTheCommand(t *testing.T) {
	t.Parallel()
	p := onTerminal(t, fileStore(t), "run", "n", "--", "sh", "-c", `echo ready; read x; echo "got-$x"; exit 5`)
	p.shows("ready")
	p.types("hello\n")
	p.shows("got-hello")
	p.exits(5)
}

func TestTerminalInterrupt(t *testing.T) {
	t.Parallel()
	p := onTerminal(t, fileStore(t), "run", "n", "--", "sh", "-c", `echo ready; exec sleep 100`)
	p.shows("ready")
	p.types("\x03")
	p.exits(130)
}

func TestTerminalSuspend(t *testing.T) {
	t.Parallel()
	// There is no shell that could continue us, so Ctrl-Z must not hang.
	p := onTerminal(t, fileStore(t), "run", "n", "--", "sh", "-c",
		`trap "echo continued" CONT; echo ready; while ! read x; do :; done; echo "got-$x"`)
	p.shows("ready")
	p.types("\x1a")
	p.shows("continued")
	p.types("hello\n")
	p.shows("got-hello")
	p.exits(0)
}

// Others of a pipeline may want the terminal: the command gets it when it asks.
func TestTerminalOfAPipeline(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{
		"the next one reads it": `fencelock run n -- sh -c 'echo ready; until [ -e DONE ]; do sleep .02; done' | ` +
			`{ read r; echo "$r"; read x </dev/tty; echo "got-$x"; : >DONE; }`,
		"the command reads it": `echo data | fencelock run n -- ` +
			`sh -c 'cat; echo ready; read x </dev/tty; echo "got-$x"'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done := filepath.Join(t.TempDir(), "done")
			line := strings.NewReplacer("fencelock", os.Args[0], "DONE", done).Replace(line)
			p := commandOnTerminal(t, fileStore(t), exec.Command("sh", "-c", line))
			p.types("hello\n")
			p.shows("ready")
			p.shows("got-hello")
			p.exits(0)
		})
	}
}

func TestTerminalBreakAsks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer string
		code   int
		shows  string
		broken bool
	}{
		{"y\n", 0, "broke n", true},
		{"no\n", 1, "not confirmed", false},
		{"\n", 1, "not confirmed", false},
		{"\x03", 130, "", false},
	} {
		url := fileStore(t)
		hold(t, url, "n")
		p := onTerminal(t, url, "break", "n")
		p.shows("Break it? [y/N]")
		p.types(c.answer)
		p.shows(c.shows)
		p.exits(c.code)
		info, err := client(t, url).Inspect(t.Context(), "n")
		if err != nil || info.Held == c.broken {
			t.Errorf("answer %q: %+v, %v; want broken %v", c.answer, info, err, c.broken)
		}
	}
}

// The answer is about the holder that was shown, not the next one.
func TestTerminalBreakOfTheNextHolder(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	first := hold(t, url, "n")
	p := onTerminal(t, url, "break", "n")
	p.shows("Break it? [y/N]")
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := hold(t, url, "n")
	p.types("y\n")
	p.shows("it was left as it is")
	p.exits(1)
	if err := next.Renew(t.Context()); err != nil {
		t.Errorf("the next holder: %v", err)
	}
}
