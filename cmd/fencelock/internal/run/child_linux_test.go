package run

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// A command of another user is known not to have ended.
func TestCommandOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("starts a process that another user may not signal")
	}
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends as nobody
		const nobody = 65534
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
			t.Errorf("setresuid: %v", e)
			return
		}
		c := &child{group: cmd.Process.Pid}
		if c.kill(); !c.denied || !c.alive() {
			t.Errorf("denied: %v, alive: %v, want both", c.denied, c.alive())
		}
	}()
	<-done
	c := &child{group: cmd.Process.Pid}
	if c.kill(); c.denied {
		t.Error("our own is denied")
	}
}
