//go:build !unix

package run

import (
	"os"
	"os/exec"
	"time"
)

func (c *child) prepare() {}

func launch(cmd *exec.Cmd, ready func(pid int) error) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	return ready(cmd.Process.Pid)
}

// await reports the end of the command.
func (c *child) await() {
	_ = c.cmd.Wait() // the exit code tells
	c.events <- childEnd{code: c.cmd.ProcessState.ExitCode()}
}

// signal does nothing: the system has no signals to send.
func (c *child) signal(os.Signal) {}

func (c *child) forward(os.Signal) {}

// terminate has no gentle form here.
func (c *child) terminate() {}

// kill ends the command itself, but not its children.
func (c *child) kill() { _ = c.cmd.Process.Kill() }

func (c *child) alive() bool { return false }

func (c *child) end() {}

func (c *child) suspend(bool, func() time.Duration) {}

func (c *child) listen() {}

// keeper does nothing here: the command outlives a run that is killed.
type keeper struct{}

// BecomeOther does nothing here.
func BecomeOther([]string) {}

func startKeeper() (*keeper, error) { return nil, nil }

func (k *keeper) watch(int) error { return nil }

func (k *keeper) until(time.Time) {}

func (k *keeper) dismiss() {}

// terminal has no foreground group here.
type terminal struct{}

func terminalOf(any, any) *terminal { return nil }

func (t *terminal) take() {}
