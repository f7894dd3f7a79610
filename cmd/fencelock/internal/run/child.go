package run

import (
	"io"
	"os/exec"
	"runtime"
)

// child is the command under way.
type child struct {
	cmd    *exec.Cmd
	group  int           // its process group
	events chan childEnd // what became of the command itself
	term   *terminal     // nil unless stdin is one
}

// childEnd says that the command has ended, or that it was stopped by its terminal.
type childEnd struct {
	stopped bool
	code    int // as a shell would say it
}

// startChild starts cmd in a process group of its own, which gets the terminal
// if in is one and it was ours. born is told the group before the command
// itself runs, and may refuse. The caller reads events until the command has ended, and then calls
// end.
func startChild(cmd *exec.Cmd, in io.Reader, born func(group int) error) (*child, error) {
	c := &child{cmd: cmd, events: make(chan childEnd, 1), term: terminalOf(in)}
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
	return c, nil
}
