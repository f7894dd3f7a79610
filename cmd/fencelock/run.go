package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
)

// runForm is the right form of a run, for messages.
const runForm = "fencelock run [flags] NAME -- COMMAND [ARG…]"

// runFlags are the flags of run.
type runFlags struct {
	ttl, wait, grace, maxHold, killAfter duration
	owner                                string
	ownerSet                             bool
}

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{
		ttl:       duration{d: fencelock.DefaultTTL, least: 1},
		wait:      duration{forever: true},
		maxHold:   duration{least: 1},
		killAfter: duration{d: 2 * time.Second},
	}
	cmd := &cobra.Command{
		Use:   strings.TrimPrefix(runForm, "fencelock "),
		Short: "Hold a lock while a command runs",
		Long: `Hold the lock NAME while COMMAND runs. COMMAND gets FENCING_TOKEN and
FENCELOCK_NAME in its environment and runs in a process group of its own, to
which HUP, INT, QUIT, TERM, USR1 and USR2 are forwarded. On a terminal it gets
the terminal.

The lease is renewed while COMMAND runs. Should it be lost, or should its end
come near without a renewal, the group gets TERM, and KILL after --kill-after,
so early that it is dead when the lease ends; to leave time for renewals,
--kill-after counts for a third of the TTL at most. If run itself is killed or
stopped, a helper process kills the group. What leaves the group (setsid), or
runs on in the background when COMMAND has ended, is not followed. On systems
other than Unix only COMMAND itself is killed, and only while run lives.

With --json events are lines on stderr: {"event":"acquired",…} with token,
backend, waited_ms; then "lost" with reason, or "released"; then "exit" with
code, if COMMAND was started. An error is {"error":…,"code":…}. The standard output is COMMAND's.

Exit code: COMMAND's; 128+n if signal n ended it, or the waiting; 64 usage or
configuration; 69 store unavailable; 70 lease lost (COMMAND was ended, or may
have overlapped with another holder's); 75 not obtained in time; 126 COMMAND
cannot be run; 127 not found.`,
		Example: `  fencelock run backup -- ./backup.sh /data
  fencelock run --wait 0 --ttl 10s jobs/nightly -- sh -c 'report --fence "$FENCING_TOKEN"'
  fencelock run --json --max-hold 1h migrate -- make migrate`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.ownerSet = cmd.Flags().Changed("owner")
			return a.run(cmd, f, args)
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false) // the flags after NAME are COMMAND's
	fl.Var(&f.ttl, "ttl", "how long the lease lasts without a renewal; wins over ttl= of the URL")
	fl.Var(&f.wait, "wait", "how long to wait for the lock; 0 tries once")
	fl.Var(&f.grace, "grace", "how much longer than the lease the store keeps others out")
	fl.Var(&f.maxHold, "max-hold", "end COMMAND so that the lock is held no longer than this")
	fl.Var(&f.killAfter, "kill-after", "time from TERM to KILL when the lease is lost")
	fl.StringVar(&f.owner, "owner", "", "what others see of the holder (default host:pid)")
	a.jsonFlag(cmd, "print events and errors as JSON lines on stderr")
	return cmd
}

// options are the library's for these flags.
func (f *runFlags) options(changed func(string) bool) []fencelock.Option {
	var opts []fencelock.Option
	if changed("ttl") {
		opts = append(opts, fencelock.WithTTL(f.ttl.d))
	}
	if f.grace.d > 0 {
		opts = append(opts, fencelock.WithGrace(f.grace.d))
	}
	if f.maxHold.d > 0 {
		opts = append(opts, fencelock.WithMaxHold(f.maxHold.d))
	}
	if f.ownerSet {
		opts = append(opts, fencelock.WithOwner(f.owner))
	}
	return opts
}

// splitRun takes the arguments apart: NAME [--] COMMAND [ARG…].
func splitRun(args []string) (name string, argv []string, err error) {
	if len(args) == 0 {
		return "", nil, usagef("no NAME and no COMMAND: want %s", runForm)
	}
	name, argv = args[0], args[1:]
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	} else if len(argv) > 0 && strings.HasPrefix(argv[0], "-") {
		return "", nil, usagef("%s stands after NAME: flags go before it: %s", strings.SplitN(argv[0], "=", 2)[0], runForm)
	}
	if len(argv) == 0 || argv[0] == "" {
		return "", nil, usagef("no COMMAND: want %s", runForm)
	}
	return name, argv, nil
}

// lookPath finds the command before any lock is taken for it.
func lookPath(command string) (string, error) {
	path, err := exec.LookPath(command)
	if err == nil || errors.Is(err, exec.ErrDot) { // . in PATH is the user's will, as for the shell
		return path, nil
	}
	return "", cannotRun(command, err)
}

// cannotRun is the error of a command that does not start.
func cannotRun(command string, err error) error {
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return withCode(exitNotFound, "command %q: %w", command, err)
	}
	return withCode(exitCannotRun, "command %q cannot be run: %w", command, err)
}

// run is the command.
func (a *app) run(cmd *cobra.Command, f *runFlags, args []string) error {
	name, argv, err := splitRun(args)
	if err != nil {
		return err
	}
	path, err := lookPath(argv[0])
	if err != nil {
		return err
	}
	sigs, quit := notify()
	defer quit()
	began := time.Now()
	ctx, stop := untilSignal(cmd.Context(), sigs)
	locks, lease, err := a.acquire(ctx, name, f, f.options(cmd.Flags().Changed))
	stop()
	if err != nil {
		if locks != nil {
			closeWithin(locks, closeTime)
		}
		return err
	}
	defer func() {
		// While a lease is left, Close would only try again to free it: the store
		// does so by itself.
		if errors.Is(lease.Err(), fencelock.ErrReleased) {
			closeWithin(locks, closeTime)
		}
	}()
	if sig, ok := errors.AsType[*signalError](context.Cause(ctx)); ok {
		_ = lease.Unlock(ctx) // if that fails, the lock expires
		return sig
	}
	if locks.Traits().Name == "memory" {
		a.warn("memory:// excludes nobody outside this process: use file:// or a server")
	}
	ev := events{a: a, lease: lease}
	granted := time.Now()
	ev.acquired(locks.Traits().Name, granted.Sub(began))
	h := &holding{a: a, lease: lease, killAfter: f.killAfter.d, maxHold: f.maxHold.d, granted: granted, events: ev}
	code, err := h.run(a.command(path, argv, lease), sigs)
	return a.finish(h, code, err)
}

// acquire opens the backend and takes the lock. The Locker is returned also
// with an error: closing it takes the request out of the queue.
func (a *app) acquire(ctx context.Context, name string, f *runFlags, opts []fencelock.Option) (*fencelock.Locker, *fencelock.Lease, error) {
	opening, cancel := ctx, context.CancelFunc(func() {})
	if !f.wait.forever {
		opening, cancel = context.WithTimeout(ctx, max(f.wait.d, time.Second))
	}
	waitEnd := time.Now().Add(f.wait.d)
	locks, err := a.open(opening, name, false, opts...)
	cancel()
	if err != nil {
		return nil, nil, interrupted(ctx, err)
	}
	m := locks.Mutex(name)
	var lease *fencelock.Lease
	switch {
	case f.wait.forever:
		lease, err = m.Lock(ctx)
	case f.wait.d == 0:
		lease, err = m.TryLock(ctx)
	default:
		limited, cancel := context.WithDeadline(ctx, waitEnd)
		lease, err = m.Lock(limited)
		cancel()
	}
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, fencelock.ErrUnavailable):
	case f.wait.d == 0 && errors.Is(err, fencelock.ErrLocked):
		err = withCode(exitNotObtained, "%s was not obtained: another holder has it", safe(name))
	case errors.Is(err, context.DeadlineExceeded):
		err = withCode(exitNotObtained, "%s was not obtained within %v", safe(name), f.wait.d)
	}
	return locks, lease, interrupted(ctx, err)
}

// command is what is to run under the lease.
func (a *app) command(path string, argv []string, lease *fencelock.Lease) *exec.Cmd {
	return &exec.Cmd{
		Path: path, Args: argv,
		Stdin: a.in, Stdout: a.out, Stderr: a.err,
		Env: append(os.Environ(),
			fmt.Sprintf("FENCING_TOKEN=%d", lease.Token()),
			"FENCELOCK_NAME="+lease.Name()),
	}
}

// finish unlocks after the command has ended with code, or did not start
// because of err, and says with which code run exits.
func (a *app) finish(h *holding, code int, err error) error {
	started := err == nil
	if h.lost == nil {
		code, err = a.unlock(h, code, err)
	} else {
		if h.lease.Err() == nil { // it was about to end: others need not wait for that
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = h.lease.Unlock(ctx)
			cancel()
		}
		err = withCode(exitLost, "%w; the command was ended", h.lost)
	}
	if err != nil {
		a.report(nil, err)
		code, _ = a.codeOf(err)
	}
	if started {
		h.events.exit(code)
	}
	return exit(code)
}

// unlock frees the lock of a command that ended by itself or did not start.
func (a *app) unlock(h *holding, code int, err error) (int, error) {
	uerr := h.lease.Unlock(context.Background())
	switch lost, isLost := errors.AsType[*fencelock.LostError](uerr); {
	case uerr == nil:
		h.events.released()
	case err != nil: // did not start: that is what there is to say
	case isLost:
		h.events.lost(lost)
		return exitLost, withCode(exitLost, "%w; the command had ended by itself with code %d, but may have overlapped with another holder's", lost, code)
	default:
		// The command ran under the lease from start to end: its code stands.
		a.warn("the lock could not be freed, it will expire by itself: %v", uerr)
	}
	return code, err
}
