//go:build unix

package run

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal. nil is none.
type terminal struct {
	file  *os.File
	fd    int
	whole bool // it is stdin and stdout: no other command of a pipeline wants it
	given bool // the command's group has it
}

// terminalOf returns the controlling terminal of a process with these streams, or nil.
func terminalOf(in, out any) *terminal {
	if t := terminalAt(in); t != nil {
		t.whole = terminalAt(out) != nil
		return t
	}
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return terminalAt(f)
}

// terminalAt returns a stream as the controlling terminal, or nil if it is not one.
func terminalAt(stream any) *terminal {
	f, ok := stream.(*os.File)
	if !ok {
		return nil
	}
	t := &terminal{file: f, fd: int(f.Fd())}
	if _, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err != nil {
		return nil
	}
	return t
}

// mine reports whether our own group is in the foreground.
func (t *terminal) mine() bool {
	if t == nil {
		return false
	}
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func (t *terminal) isGiven() bool { return t != nil && t.given }

// give puts a group into the foreground.
func (t *terminal) give(group int) {
	t.set(group)
	t.given = true
}

// take puts our own group into the foreground if the command's group was there.
func (t *terminal) take() {
	if t.isGiven() {
		t.set(unix.Getpgrp())
		t.given = false
	}
}

func (t *terminal) set(group int) {
	// From the background this would stop us.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) // the terminal may be gone
}
