package run

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// holding is a command under a lease. It sees to it that no process of the
// command's group lives when the lease ends.
//
// Time runs backwards from the Deadline, which renewals move:
//
//	         term             kill     Deadline
//	──────────┼────────────────┼──────────┤
//	           ≤ --kill-after    safety
//
// At term, if no renewal has moved the Deadline, the group gets TERM, at kill
// KILL. The keeper, another process, kills at that moment too, in case this one is
// stopped. A lease that is lost at once (broken by an operator) gives TERM
// at once, and KILL after --kill-after, but no later than above.
type holding struct {
	a         *cli.App
	lease     *fencelock.Lease
	killAfter time.Duration
	maxHold   time.Duration
	granted   time.Time // when the grant was seen here
	events    events
	renewals  *renewals

	lost *fencelock.LostError // why the command was ended; nil if it was not

	child    *child
	keeper   *keeper
	deadline time.Time     // as it was seen last
	span     time.Duration // the longest time for which the lease was seen to be trusted
	killAt   time.Time     // set with lost
	keeperAt time.Time     // when the keeper kills, as it was told last
}

const (
	// mostSafety is how long before the Deadline KILL is sent at the earliest.
	mostSafety = 250 * time.Millisecond
	// lookEvery bounds how long a sleep of the machine, or a moved Deadline, is
	// not noticed: timers stand still while the machine sleeps.
	lookEvery = 500 * time.Millisecond
)

// goesOn is said of a command that could not be ended.
const goesOn = "goes on without the lock"

// errKeeper: the command may not run, for nothing would end it in time.
var errKeeper = errors.New("the helper process that ends the command with this one does not start")

// margins says how long before the Deadline TERM and KILL are sent when a lease is
// trusted for span after each renewal: together at most a third of it, since the
// first try to renew comes after a third.
func margins(killAfter, span time.Duration) (term, kill time.Duration) {
	kill = min(mostSafety, span/10)
	return min(killAfter, max(span/3-kill, 0)) + kill, kill
}

// run starts the command, waits for its end and returns its exit code. An
// error means that it did not start. Signals from sigs are forwarded.
func (h *holding) run(cmd *exec.Cmd, sigs <-chan os.Signal) (int, error) {
	k, err := startKeeper()
	if err != nil {
		return 0, cli.WithCode(cli.ExitCannotRun, "%w: %w", errKeeper, err)
	}
	h.keeper = k
	defer k.dismiss()
	h.observe(time.Now())
	name := cmd.Args[0]
	h.child, err = startChild(cmd, k.watch)
	switch {
	case errors.Is(err, errKeeper):
		return 0, cli.WithCode(cli.ExitCannotRun, "%w", err)
	case err != nil:
		return 0, cannotRun(name, err)
	}
	done := h.lease.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case s := <-sigs:
			h.child.forward(s)
		case s := <-h.child.typed:
			h.child.signal(s)
		case <-done:
			done = nil
			timer.Reset(h.look())
		case <-timer.C:
			timer.Reset(h.look())
		case e := <-h.child.events:
			if e.stopped {
				h.child.suspend(e.asks, h.look)
				continue
			}
			h.kept(e.code, time.Now())
			h.look()
			h.endGroup()
			h.child.end()
			return e.code, nil
		}
	}
}

// look compares the lease with the clock, does what is due, and returns when to
// look again.
func (h *holding) look() time.Duration {
	now := time.Now()
	if h.lost == nil {
		h.observe(now)
		term, _ := margins(h.killAfter, h.span)
		if err := h.lease.Err(); err != nil {
			h.begin(now, err)
		} else if next := h.deadline.Add(-term).Sub(now); next > 0 {
			return min(next, lookEvery, max(h.span/10, 10*time.Millisecond))
		} else {
			h.begin(now, &fencelock.LostError{Reason: h.nearing()})
		}
	}
	if next := h.killAt.Sub(now); next > 0 {
		return next
	}
	told := h.child.denied
	if h.child.kill(); h.child.denied && !told {
		h.a.Warn("%s: %v; the command is another user's, and %s", cli.Safe(h.lease.Name()), h.lost, goesOn)
	}
	return 50 * time.Millisecond // again, for what was just being born
}

// observe takes in that a renewal has moved the Deadline, and tells the keeper.
func (h *holding) observe(now time.Time) {
	d := h.lease.Deadline()
	if d.Equal(h.deadline) {
		return
	}
	h.deadline, h.span = d, max(h.span, d.Sub(now))
	_, kill := margins(h.killAfter, h.span)
	h.keeperAt = d.Add(-kill)
	h.keeper.until(h.keeperAt)
}

// kept notes that the keeper has ended the command: it may not have been told in time that a renewal has
// moved the Deadline.
func (h *holding) kept(code int, now time.Time) {
	if h.lost == nil && code == cli.ExitSignal+int(syscall.SIGKILL) && now.After(h.keeperAt) {
		h.begin(now, &fencelock.LostError{Reason: h.nearing()})
	}
}

// nearing says why no renewal moves the Deadline any more.
func (h *holding) nearing() fencelock.Reason {
	const slack = 100 * time.Millisecond // between the engine's moment and granted
	if h.maxHold > 0 && h.deadline.After(h.granted.Add(h.maxHold-slack)) {
		return fencelock.MaxHold
	}
	return fencelock.Expired
}

// begin begins to end the command.
func (h *holding) begin(now time.Time, why error) {
	var ok bool
	if h.lost, ok = errors.AsType[*fencelock.LostError](why); !ok {
		h.lost = &fencelock.LostError{Reason: fencelock.Revoked}
	}
	_, kill := margins(h.killAfter, h.span)
	h.killAt = h.deadline.Add(-kill)
	if at := now.Add(h.killAfter); at.Before(h.killAt) {
		h.killAt = at
	}
	if h.killAt.After(now) {
		h.child.terminate()
	}
	h.events.lost(h.lost)
}

// endGroup ends, after the command itself, what is left of its group if the lease was lost.
func (h *holding) endGroup() {
	if h.lost == nil {
		return
	}
	for h.child.alive() && time.Now().Before(h.killAt) {
		time.Sleep(5 * time.Millisecond)
	}
	h.child.kill()
}
