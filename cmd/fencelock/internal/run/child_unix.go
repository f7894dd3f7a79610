//go:build unix

package run

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// prepare sets how the command is to be started.
func (c *child) prepare() {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if c.term != nil && c.term.whole && c.term.mine() {
		attr.Foreground, attr.Ctty = true, c.term.fd
		c.term.given = true
	}
	dieWithParent(attr)
	c.cmd.SysProcAttr = attr
}

// await reports the end of the command, and when it is stopped. It runs on the
// thread that started it.
func (c *child) await() {
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(c.cmd.Process.Pid, &ws, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // another part of the process has reaped it, and its code is gone
			c.events <- childEnd{code: cli.ExitSignal + int(syscall.SIGKILL)}
			return
		case ws.Stopped():
			job := []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}
			if c.term != nil && slices.Contains(job, ws.StopSignal()) {
				c.events <- childEnd{stopped: true, asks: ws.StopSignal() != syscall.SIGTSTP}
			}
		case ws.Signaled():
			c.echo(ws.Signal())
			c.events <- childEnd{code: cli.ExitSignal + int(ws.Signal())}
			return
		default:
			c.events <- childEnd{code: ws.ExitStatus()}
			return
		}
	}
}

// echo gives our own process group the signal that was typed on the terminal
// and that only the command's group got: a script that called us ends too, as it would
// without us.
func (c *child) echo(sig syscall.Signal) {
	if !c.term.isGiven() || (sig != syscall.SIGINT && sig != syscall.SIGQUIT) {
		return
	}
	signal.Ignore(sig)
	_ = syscall.Kill(0, sig)
}

// signal sends a signal to the whole group.
func (c *child) signal(s os.Signal) { _ = syscall.Kill(-c.group, s.(syscall.Signal)) }

// forward sends a signal of ours to the whole group. A stopped process must run to end by it.
func (c *child) forward(s os.Signal) {
	c.signal(s)
	if s != syscall.SIGUSR1 && s != syscall.SIGUSR2 {
		c.signal(syscall.SIGCONT)
	}
}

// terminate asks the whole group to end.
func (c *child) terminate() { c.forward(syscall.SIGTERM) }

// kill kills the processes of the group that belong to our user.
func (c *child) kill() { c.denied = syscall.Kill(-c.group, syscall.SIGKILL) == syscall.EPERM }

// alive reports whether anything is left of the group.
func (c *child) alive() bool { return syscall.Kill(-c.group, 0) != syscall.ESRCH }

// end takes the terminal back and waits until the command's output has been copied.
func (c *child) end() {
	c.term.take()
	_ = c.cmd.Wait() // await has its status already
}

// suspend handles a stop of the command by its terminal. If the command asks for the terminal and we have it, the
// command gets it. Otherwise (Ctrl-Z) our own job stops too, so that the shell sees it. When the shell continues our
// job, the command goes on, if look finds that the lease allows it.
func (c *child) suspend(asks bool, look func() time.Duration) {
	asks = asks && !c.term.given
	if !asks || !c.term.mine() {
		c.term.take()
		signal.Stop(c.typed)
		cli.Suspend()
		c.listen()
		look()
	}
	switch {
	case !asks && !c.term.whole:
	case c.term.mine():
		c.term.give(c.group)
	default: // a job that no shell can stop: it asks again at once
		time.Sleep(100 * time.Millisecond)
	}
	c.signal(syscall.SIGCONT)
}

// listen begins to take Ctrl-Z, which reaches us if the command has no terminal.
func (c *child) listen() {
	if c.term != nil && !signal.Ignored(syscall.SIGTSTP) {
		signal.Notify(c.typed, syscall.SIGTSTP)
	}
}
