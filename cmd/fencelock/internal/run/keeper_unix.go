//go:build unix

package run

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// A keeper is a second process that kills the command's group when this process
// cannot: at once when this process is gone, and just before the lease ends when
// this process is stopped. They share a pipe, and this process's death closes it.
// The keeper has a session of its own, so that keys of the terminal do not reach it.
//
// The messages are lines: "group N", and "until T" in nanoseconds of bootClock. The
// keeper answers the first of them with a byte: it is on watch.
type keeper struct {
	cmd   *exec.Cmd
	w     *os.File // messages
	ready *os.File // the answer
}

// keeperName is argv[0] of a keeper.
const keeperName = "fencelock-keeper"

// startKeeper starts one.
func startKeeper() (*keeper, error) {
	exe, err := itself()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	ready, answer, err := os.Pipe()
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	defer answer.Close()
	k := &keeper{w: w, ready: ready, cmd: &exec.Cmd{
		Path: exe, Args: []string{keeperName}, Dir: "/", Env: []string{"GOMAXPROCS=1"},
		Stdin: r, Stdout: answer, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}}
	if err := k.cmd.Start(); err != nil {
		_ = w.Close()
		_ = ready.Close()
		return nil, err
	}
	return k, nil
}

// watch tells the keeper the command's group, and returns when the keeper is on watch.
func (k *keeper) watch(group int) error {
	k.say("group %d", group)
	_ = k.ready.SetReadDeadline(time.Now().Add(mostStart))
	if _, err := k.ready.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("%w: %w", errKeeper, err)
	}
	return nil
}

// mostStart bounds how long a keeper may take to start.
const mostStart = 10 * time.Second

// until tells the keeper when the group must be dead.
func (k *keeper) until(t time.Time) { k.say("until %d", int64(bootClock()+time.Until(t))) }

// dismiss ends the keeper before it can see the end of the pipe.
func (k *keeper) dismiss() {
	_ = k.cmd.Process.Kill()
	_ = k.w.Close()
	_ = k.ready.Close()
	_ = k.cmd.Wait() // killed
}

// say sends one line if the pipe has room. It has room for hundreds. A keeper that
// is stopped must not stop this process too.
func (k *keeper) say(format string, args ...any) {
	line := fmt.Appendf(nil, format+"\n", args...)
	raw, err := k.w.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) bool {
		_, _ = retry(func() (int, error) { return unix.Write(int(fd), line) }) // does not block
		return true
	})
}

// keep is the keeper's whole life.
func keep() {
	// A kill by name must not reach the keeper before run has forwarded it.
	signal.Ignore(append(cli.Forwarded(), syscall.SIGTSTP, syscall.SIGPIPE)...)
	nameKeeper()
	var (
		w    watch
		buf  = make([]byte, 1<<16) // as much as a pipe holds
		in   = []unix.PollFd{{Fd: 0, Events: unix.POLLIN}}
		left = lookEvery
	)
	for {
		n, _ := unix.Poll(in, int(min(left, lookEvery)/time.Millisecond)+1)
		if n > 0 {
			// It reads all lines before it looks at the clock: a newer line
			// replaces an older one.
			n, err := retry(func() (int, error) { return unix.Read(0, buf) })
			if n <= 0 || err != nil {
				killGroup(w.group)
				return
			}
			told := w.group
			w.read(buf[:n])
			if told == 0 && w.group != 0 {
				_, _ = unix.Write(1, []byte{1}) // run may be gone
			}
		}
		// Timers stand still while the machine sleeps, so left is only part of the answer.
		left = lookEvery
		if w.until != 0 {
			if left = w.until - bootClock(); left <= 0 {
				killGroup(w.group)
				left = lookEvery
			}
		}
	}
}

// watch is the state of a keeper.
type watch struct {
	group int           // to be killed; 0: not known yet
	until time.Duration // when, by bootClock; 0: not known yet
	rest  []byte        // a line that is not complete yet
}

// read takes messages in.
func (w *watch) read(p []byte) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return
		}
		w.rest = rest
		word, value, _ := strings.Cut(string(line), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil: // not ours
		case word == "group":
			w.group = int(n)
		case word == "until":
			w.until = time.Duration(n)
		}
	}
}

// killGroup kills a process group; never our own.
func killGroup(group int) {
	if group > 1 {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}

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
