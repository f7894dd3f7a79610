//go:build unix

package run

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// The command is started in two steps, so that its keeper knows its group before it can do
// anything. A starter, which is this program again, starts with the command's streams, group and
// environment, waits for a byte on a socket, and becomes the command. If this process dies before it
// has told the keeper, the starter sees the end of the socket and exits.

// starterName is argv[0] of a starter; its other arguments are the socket's
// number and the path and arguments of the command.
const starterName = "fencelock-starter"

// BecomeOther runs this process as a keeper or a starter if it was started as
// one. Then it does not return.
func BecomeOther(args []string) {
	switch {
	case len(args) == 1 && args[0] == keeperName:
		keep()
		os.Exit(0)
	case len(args) >= 4 && args[0] == starterName:
		becomeCommand(args[1], args[2], args[3:])
		os.Exit(cli.ExitNotFound)
	}
}

// becomeCommand is the starter's whole life.
func becomeCommand(socket, path string, argv []string) {
	fd, err := strconv.Atoi(socket)
	if err != nil {
		return
	}
	unix.CloseOnExec(fd)
	n, err := retry(func() (int, error) { return unix.Read(fd, make([]byte, 1)) })
	if n != 1 || err != nil {
		return
	}
	var errno syscall.Errno
	if errors.As(unix.Exec(path, argv, os.Environ()), &errno) {
		_, _ = unix.Write(fd, []byte(strconv.Itoa(int(errno))))
	}
}

// itself returns the path of this very program.
func itself() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil // also if the file was replaced meanwhile
	}
	return os.Executable()
}

// launch starts cmd in two steps and calls ready with its process id in
// between. If that returns an error, there is no second step.
func launch(cmd *exec.Cmd, ready func(pid int) error) error {
	exe, err := itself()
	if err != nil {
		return err
	}
	ours, theirs, err := socketpair()
	if err != nil {
		return err
	}
	defer unix.Close(ours)
	cmd.Args = append([]string{starterName, strconv.Itoa(theirs), cmd.Path}, cmd.Args...)
	cmd.Path = exe
	err = cmd.Start()
	_ = unix.Close(theirs)
	if err != nil {
		return err
	}
	if err := ready(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		return err
	}
	// If the starter is gone, its end will be seen as the command's.
	_, _ = unix.Write(ours, []byte{1})
	answer := make([]byte, 16)
	n, _ := retry(func() (int, error) { return unix.Read(ours, answer) })
	if n <= 0 { // closed: it is the command now
		return nil
	}
	_ = cmd.Wait() // it ends at once
	errno, _ := strconv.Atoi(string(answer[:n]))
	return syscall.Errno(errno)
}

// socketpair returns two ends, the second of which a child inherits.
func socketpair() (ours, theirs int, err error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, 0, os.NewSyscallError("socketpair", err)
	}
	// Far from the numbers that the user's shell may have opened for the command.
	theirs, err = unix.FcntlInt(uintptr(fds[1]), unix.F_DUPFD, 100)
	_ = unix.Close(fds[1])
	if err != nil {
		_ = unix.Close(fds[0])
		return 0, 0, os.NewSyscallError("fcntl", err)
	}
	return fds[0], theirs, nil
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
