package run

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
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
	locks, err := fencelock.Open(t.Context(), "memory://")
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Mutex("n").TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
		var said bytes.Buffer
		h := holding{
			a: &cli.App{Err: &said, JSON: true}, lease: lease, lost: &fencelock.LostError{},
			child: &child{group: c.group},
		}
		if h.look(); !strings.HasPrefix(said.String(), `{"warning":"n: `) {
			t.Errorf("run --json says %q, want JSON", said.String())
		}
	}()
	<-done
	c := &child{group: cmd.Process.Pid}
	if c.kill(); c.denied {
		t.Error("our own is denied")
	}
}
