//go:build unix

package conformance

import (
	"errors"
	"os/exec"
	"syscall"
	"time"
)

// canStop reports whether a process can be stopped here.
const canStop = true

// ownGroup puts a process in a group of its own. The kernel continues what is stopped in a group whose
// shell has ended (POSIX, orphaned process groups).
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// Stop stops the process until Continue. It returns when the process stands still, which on a busy machine may be
// a while after the signal.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for range 5000 {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
		switch {
		case err != nil && !errors.Is(err, syscall.EINTR):
			return err
		case pid > 0 && status.Stopped():
			return nil
		case pid > 0:
			return errors.New("the process has ended")
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("the process did not stop")
}

// Continue lets it go on.
func (p *Process) Continue() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
