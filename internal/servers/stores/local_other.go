//go:build !linux

package stores

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// Elsewhere than on Linux a server can be started and killed; pausing it is refused.
const (
	pauseSignal  = syscall.Signal(0x7e)
	resumeSignal = syscall.Signal(0x7f)
)

func attributes(user *User) *syscall.SysProcAttr { return credentials(user) }

func credentials(*User) *syscall.SysProcAttr { return nil }

func signalGroup(pid int, sig syscall.Signal) error { return signalProcess(pid, sig) }

func signalProcess(pid int, sig syscall.Signal) error {
	switch sig {
	case pauseSignal:
		return fmt.Errorf("pause: not supported on %s", runtime.GOOS)
	case resumeSignal:
		return nil // nothing is ever paused here
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil
	}
	_ = p.Kill() // it may have ended already
	return nil
}

func arePaused(...int) error { return fmt.Errorf("pause: not supported on %s", runtime.GOOS) }

func childrenOf(int) []int { return nil }

func areGone([]int) error { return nil }

func isGroupGone(int) error { return nil }
