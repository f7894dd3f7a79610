package stores

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

const (
	pauseSignal  = syscall.SIGSTOP
	resumeSignal = syscall.SIGCONT
)

// attributes puts a child into a process group of its own and ties its life to the thread that starts it.
func attributes(user *User) *syscall.SysProcAttr {
	a := credentials(user)
	a.Setpgid = true
	a.Pdeathsig = syscall.SIGKILL
	return a
}

func credentials(user *User) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{}
	if user != nil {
		a.Credential = &syscall.Credential{Uid: uint32(user.UID), Gid: uint32(user.GID)}
	}
	return a
}

func signalGroup(pid int, sig syscall.Signal) error { return signalProcess(-pid, sig) }

// signalProcess signals one process; one that has ended already is no error.
func signalProcess(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %v to process %d: %w", sig, pid, err)
	}
	return nil
}

// arePaused returns nil when every one of the processes has stopped, or ended.
func arePaused(pids ...int) error {
	for _, p := range pids {
		state, _, err := stat(p)
		if err == nil && state != "T" && state != "Z" {
			return fmt.Errorf("process %d is in state %s", p, state)
		}
	}
	return nil
}

// areGone returns nil when every one of the processes has ended.
func areGone(pids []int) error {
	for _, p := range pids {
		if state, _, err := stat(p); err == nil && state != "Z" {
			return fmt.Errorf("process %d is in state %s", p, state)
		}
	}
	return nil
}

// childrenOf lists the children of a process. It reads every process's parent, since not every kernel is built with
// the list of children.
func childrenOf(pid int) []int {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var children []int
	for _, name := range names {
		child, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			continue
		}
		if _, parent, err := stat(child); err == nil && parent == pid {
			children = append(children, child)
		}
	}
	return children
}

// stat returns the state and the parent of a process.
func stat(pid int) (state string, parent int, err error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, err
	}
	// The program's name is in parentheses and may hold anything, so the fields are counted from the last one.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return "", 0, fmt.Errorf("process %d: unreadable state %q", pid, b)
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return string(fields[0]), parent, err
}
