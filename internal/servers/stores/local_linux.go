package stores

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
func arePaused(pids ...int) error { return are("TZ", pids) }

// areGone returns nil when every one of the processes has ended.
func areGone(pids []int) error { return are("Z", pids) }

// are returns nil when every process that there is yet has one of the states.
func are(states string, pids []int) error {
	for _, p := range pids {
		if s, err := stat(p); err == nil && !strings.Contains(states, s.state) {
			return fmt.Errorf("process %d is in state %s", p, s.state)
		}
	}
	return nil
}

// isGroupGone returns nil when every process of the group has ended: a child of a program that was
// killed can outlive it for a moment, and has its files open.
func isGroupGone(group int) error {
	return areGone(processes(func(s status) bool { return s.group == group }))
}

// childrenOf lists the children of a process. It reads every process's parent, since not every kernel is built with
// the list of children.
func childrenOf(pid int) []int {
	return processes(func(s status) bool { return s.parent == pid })
}

func processes(wanted func(status) bool) []int {
	names, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	var all []int
	for _, name := range names {
		p, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			continue
		}
		if s, err := stat(p); err == nil && wanted(s) {
			all = append(all, p)
		}
	}
	return all
}

// status is the kernel's state of a process.
type status struct {
	state         string
	parent, group int
}

func stat(pid int) (status, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return status{}, err
	}
	// The program's name is in parentheses and may hold anything, so the fields are counted from the last one.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 3 {
		return status{}, fmt.Errorf("process %d: unreadable state %q", pid, b)
	}
	parent, err := strconv.Atoi(string(fields[1]))
	group, err2 := strconv.Atoi(string(fields[2]))
	return status{string(fields[0]), parent, group}, errors.Join(err, err2)
}
