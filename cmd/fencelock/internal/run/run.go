// Package run has the subcommand run, which holds a lock while a command runs.
package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// form is the right form of a run, for messages.
const form = "fencelock run [flags] NAME -- COMMAND [ARG…]"

// flags are the flags of run.
type flags struct {
	ttl, wait, grace, minHold, maxHold, killAfter cli.Duration

	owner    string
	shared   bool
	permits  int
	verbose  bool
	conflict int
	renewals renewals
}

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
	f := &flags{
		ttl:       cli.Duration{D: fencelock.DefaultTTL, Least: 1},
		wait:      cli.Duration{Forever: true},
		maxHold:   cli.Duration{Least: 1},
		killAfter: cli.Duration{D: 2 * time.Second},
		conflict:  cli.ExitNotObtained,
	}
	cmd := &cobra.Command{
		Use:   strings.TrimPrefix(form, "fencelock "),
		Short: "Hold a lock while a command runs",
		Long: `Hold the lock NAME while COMMAND runs. COMMAND gets FENCING_TOKEN and
FENCELOCK_NAME in its environment, with --permits FENCELOCK_SLOT, and runs in a process group of its own, to
which HUP, INT, QUIT, TERM, USR1 and USR2 are forwarded. On a terminal it gets
the terminal.

The lease is renewed while COMMAND runs. Should it be lost, or should its end
come near without a renewal, the group gets TERM, and KILL after --kill-after,
so early that it is dead when the lease ends; to leave time for renewals,
--kill-after counts for a third of the TTL at most. If run itself is killed or
stopped, a helper process kills the group. What leaves the group (setsid),
becomes another user's (sudo), or runs on in the background when COMMAND has
ended, is not followed. On systems
other than Unix only COMMAND itself is killed, and only while run lives.

With --min-hold others are kept out until the lease's end in the store, which is
at least so long after the grant and at most TTL and grace after COMMAND's end:
for jobs that end sooner than the clocks of their hosts agree.

A wait of more than half a second is told on stderr, with the holder, if that is a
terminal or with --verbose.

With --json events are lines on stderr: "waiting" with owner and token, if --verbose
is given; {"event":"acquired",…} with token, backend, waited_ms; then "lost" with
reason, or "released"; then "exit" with code, if COMMAND was started. An error is
{"error":…,"code":…}. The standard output is COMMAND's.

Exit code: COMMAND's; 128+n if signal n ended it, or the waiting; 64 usage or
configuration; 69 store unavailable; 70 lease lost (COMMAND was ended, or may
have overlapped with another holder's); 75, or --conflict-exit-code, not obtained
in time; 126 COMMAND cannot be run; 127 not found.`,
		Example: `  fencelock run backup -- ./backup.sh /data
  fencelock run --wait 0 --ttl 10s jobs/nightly -- sh -c 'report --fence "$FENCING_TOKEN"'
  fencelock run --json --max-hold 1h migrate -- make migrate`,
		ValidArgsFunction: a.CompleteName,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.conflict < 0 || f.conflict > 255:
				return cli.Usagef("--conflict-exit-code is %d: want 0 to 255", f.conflict)
			case f.shared && f.permits != 1:
				return cli.Usagef("--shared and --permits exclude each other")
			}
			return run(cmd, a, f, args)
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false) // the flags after NAME are COMMAND's
	fl.Var(&f.ttl, "ttl", "how long the lease lasts without a renewal; wins over ttl= of the URL")
	fl.Var(&f.wait, "wait", "how long to wait for the lock; 0 tries once")
	fl.Var(&f.grace, "grace", "how much longer than the lease the store keeps others out")
	fl.Var(&f.minHold, "min-hold", "keep others out for at least this, also when COMMAND ends sooner; TTL and grace "+
		"at most; not on zookeeper and postgres row and advisory")
	fl.Var(&f.maxHold, "max-hold", "end COMMAND so that the lock is held no longer than this")
	fl.Var(&f.killAfter, "kill-after", "time from TERM to KILL when the lease is lost")
	fl.BoolVar(&f.shared, "shared", false, "hold the lock for reading, beside others that do")
	fl.IntVar(&f.permits, "permits", 1, "hold one of so many permits of NAME; the least of all holders' numbers binds")
	fl.StringVar(&f.owner, "owner", "", "what others see of the holder (default host:pid)")
	fl.IntVarP(&f.conflict, "conflict-exit-code", "E", f.conflict,
		"the exit code when the lock is not obtained in time, as flock's")
	fl.BoolVarP(&f.verbose, "verbose", "v", false,
		"say on stderr who holds the lock while run waits, also where that is no terminal")
	a.JSONFlag(cmd, "print events and errors as JSON lines on stderr")
	return cmd
}

// options are the library's for these flags.
func (f *flags) options(changed func(string) bool) []fencelock.Option {
	opts := []fencelock.Option{fencelock.WithObserver(&f.renewals)}
	if changed("ttl") {
		opts = append(opts, fencelock.WithTTL(f.ttl.D))
	}
	if f.grace.D > 0 {
		opts = append(opts, fencelock.WithGrace(f.grace.D))
	}
	if f.minHold.D > 0 {
		opts = append(opts, fencelock.WithMinHold(f.minHold.D))
	}
	if f.maxHold.D > 0 {
		opts = append(opts, fencelock.WithMaxHold(f.maxHold.D))
	}
	if changed("owner") {
		opts = append(opts, fencelock.WithOwner(f.owner))
	}
	return opts
}

// Split takes the arguments apart: NAME [--] COMMAND [ARG…].
func Split(args []string) (name string, argv []string, err error) {
	if len(args) == 0 {
		return "", nil, cli.Usagef("no NAME and no COMMAND: want %s", form)
	}
	name, argv = args[0], args[1:]
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	} else if len(argv) > 0 && strings.HasPrefix(argv[0], "-") {
		flag, _, _ := strings.Cut(argv[0], "=")
		return "", nil, cli.Usagef("%s stands after NAME: flags go before it: %s", flag, form)
	}
	if len(argv) == 0 || argv[0] == "" {
		return "", nil, cli.Usagef("no COMMAND: want %s", form)
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
		return cli.WithCode(cli.ExitNotFound, "command %q: %w", command, err)
	}
	return cli.WithCode(cli.ExitCannotRun, "command %q cannot be run: %w", command, err)
}

// run is the command.
func run(cmd *cobra.Command, a *cli.App, f *flags, args []string) error {
	if cmd.ArgsLenAtDash() == 0 && len(args) == 1 {
		return cli.Usagef("no NAME before the --: want %s", form)
	}
	name, argv, err := Split(args)
	if err != nil {
		return err
	}
	path, err := lookPath(argv[0])
	if err != nil {
		return err
	}
	sigs, quit := cli.Notify()
	defer quit()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a log that has gone ends no job
	began := time.Now()
	ctx, stop := cli.UntilSignal(cmd.Context(), sigs)
	locks, lease, err := acquire(ctx, a, name, f, f.options(cmd.Flags().Changed))
	stop()
	if err != nil {
		if locks != nil {
			cli.Close(locks)
		}
		return err
	}
	defer func() {
		// While a lease is left, Close would only try again to free it: the store
		// does so by itself.
		if errors.Is(lease.Err(), fencelock.ErrReleased) {
			cli.Close(locks)
		}
	}()
	if sig := cli.Signalled(ctx); sig != nil {
		_ = lease.Unlock(ctx) // if that fails, the lock expires
		return sig
	}
	if locks.Traits().Name == "memory" {
		a.Warn("memory:// excludes nobody outside this process: use file:// or a server")
	}
	ev := events{a: a, lease: lease}
	granted := time.Now()
	ev.acquired(locks.Traits().Name, granted.Sub(began))
	h := &holding{
		a: a, lease: lease, killAfter: f.killAfter.D, grace: f.grace.D > 0, maxHold: f.maxHold.D, granted: granted,
		events: ev, renewals: &f.renewals,
	}
	code, err := h.run(command(a, path, argv, lease, !f.shared && cmd.Flags().Changed("permits")), sigs)
	return h.finish(code, err)
}

// acquire opens the backend and takes the lock. The Locker is returned also
// with an error: closing it takes the request out of the queue.
func acquire(
	ctx context.Context, a *cli.App, name string, f *flags, opts []fencelock.Option,
) (*fencelock.Locker, *fencelock.Lease, error) {
	opening, cancel := ctx, context.CancelFunc(func() {})
	if !f.wait.Forever { // a store that does not answer ends Open sooner, with an error that says more
		opening, cancel = context.WithTimeout(ctx, max(f.wait.D, cli.OpenMost+time.Second))
	}
	locks, err := a.Open(opening, name, false, opts...)
	cancel()
	if err != nil {
		return nil, nil, cli.Interrupted(ctx, err)
	}
	waitEnd := time.Now().Add(f.wait.D)
	tells := f.verbose || !a.JSON && cli.IsTerminal(a.Err)
	permits := locks.Semaphore(name, f.permits)
	lock, try := permits.Acquire, permits.TryAcquire
	if f.shared {
		m := locks.RWMutex(name)
		lock, try = m.RLock, m.TryRLock
	}
	var lease *fencelock.Lease
	switch {
	case f.wait.Forever:
		lease, err = waitLock(ctx, a, locks, name, lock, tells)
	case f.wait.D == 0:
		lease, err = try(ctx)
	default:
		limited, cancel := context.WithDeadline(ctx, waitEnd)
		lease, err = waitLock(limited, a, locks, name, lock, tells)
		cancel()
	}
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, fencelock.ErrUnavailable):
	case f.wait.D == 0 && errors.Is(err, fencelock.ErrLocked):
		err = cli.WithCode(f.conflict, "%s was not obtained: %s",
			cli.Safe(name), holderOf(ctx, locks, name))
	case a.Moving && errors.Is(err, fencelock.ErrUnsupported) && (f.shared || f.permits > 1):
		err = cli.WithCode(cli.ExitUsage, "%s moves from one store to another: --shared and --permits can be used "+
			"before its migration and after it", cli.Safe(name))
	case errors.Is(err, context.DeadlineExceeded):
		err = cli.WithCode(f.conflict, "%s was not obtained within %v: %s",
			cli.Safe(name), f.wait.D, holderOf(ctx, locks, name))
	}
	return locks, lease, cli.Interrupted(ctx, err)
}

// command returns the command to run under the lease. With --permits, also of one, its environment has the slot.
func command(a *cli.App, path string, argv []string, lease *fencelock.Lease, slotted bool) *exec.Cmd {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { // an outer run may have set it
		return strings.HasPrefix(v, "FENCELOCK_SLOT=")
	})
	env = append(env, fmt.Sprintf("FENCING_TOKEN=%d", lease.Token()), "FENCELOCK_NAME="+lease.Name())
	if slotted {
		env = append(env, fmt.Sprintf("FENCELOCK_SLOT=%d", lease.Slot()))
	}
	return &exec.Cmd{Path: path, Args: argv, Stdin: a.In, Stdout: a.Out, Stderr: a.Err, Env: env}
}

// finish unlocks after the command has ended with code, or did not start because of err. It returns
// the exit code of run as an error.
func (h *holding) finish(code int, err error) error {
	started, name := err == nil, cli.Safe(h.lease.Name())
	if h.lost == nil {
		code, err = h.unlock(code, err)
	} else {
		if h.lease.Err() == nil && !h.grace { // it was about to end: waiters need not wait for its expiry
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = h.lease.Unlock(ctx)
			cancel()
		}
		how := "was ended"
		if h.child.denied {
			how = goesOn
		}
		err = cli.WithCode(cli.ExitLost, "%s: %v; the command %s%s", name, h.lost, how, h.renewals.why(h.lost))
	}
	if err != nil {
		h.a.Report(err)
		code = h.a.Code(err)
	}
	if started {
		h.events.emit(Event{Event: "exit", Code: &code})
	}
	return cli.Exit(code)
}

// unlock frees the lock of a command that ended by itself or did not start.
func (h *holding) unlock(code int, err error) (int, error) {
	name := cli.Safe(h.lease.Name())
	failed := h.lease.Unlock(context.Background())
	switch lost, isLost := errors.AsType[*fencelock.LostError](failed); {
	case failed == nil:
		h.events.emit(Event{Event: "released"})
	case err != nil: // the command did not start, and err says why
	case isLost:
		h.events.lost(lost)
		return cli.ExitLost, cli.WithCode(cli.ExitLost, "%s: %v%s; the command had ended by itself "+
			"with code %d, but may have overlapped with another holder's",
			name, lost, h.renewals.why(lost), code)
	default:
		// The command ran under the lease from start to end: its code stands.
		h.a.Warn("the lock %s could not be freed, it will expire by itself: %v", name, failed)
	}
	return code, err
}
