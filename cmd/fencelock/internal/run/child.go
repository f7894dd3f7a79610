package run

import (
	"os"
	"os/exec"
	"runtime"
)

// child is the command under way.
type child struct {
	cmd    *exec.Cmd
	group  int           // its process group
	events chan childEnd // ends and stops of the command itself
	term   *terminal
	typed  chan os.Signal // Ctrl-Z, where it reaches us and not the command
	denied bool           // it is another user's, and a KILL reached none of it
}

// childEnd says that the command has ended, or that it was stopped by its terminal.
type childEnd struct {
	stopped, asks bool // asks: it stopped because it wants the terminal
	code          int  // as a shell would say it
}

// startChild starts cmd in a process group of its own. If the terminal was ours, the group gets it: at once if
// the command has it as stdin and stdout, and otherwise when the command asks for it, since other commands of a
// pipeline may ask. born gets the group before the command itself runs, and may refuse. The caller reads events
// until the command has ended, and then calls end.
func startChild(cmd *exec.Cmd, born func(group int) error) (*child, error) {
	c := &child{cmd: cmd, events: make(chan childEnd, 1), typed: make(chan os.Signal, 1)}
	c.term = terminalOf(cmd.Stdin, cmd.Stdout)
	c.prepare()
	started := make(chan error)
	go func() {
		// The signal that Linux sends at the death of the parent is sent at the
		// death of the parent's thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := launch(cmd, func(pid int) error {
			c.group = pid
			return born(pid)
		})
		started <- err
		if err == nil {
			c.await()
		}
	}()
	if err := <-started; err != nil {
		c.term.take()
		return nil, err
	}
	c.listen()
	return c, nil
}
