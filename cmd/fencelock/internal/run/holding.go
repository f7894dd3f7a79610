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

// holding is a command under a lease. It ends every process of the command's
// group before the lease ends.
//
// Time runs backwards from the Deadline, which renewals move:
//
//	         term             kill     Deadline
//	──────────┼────────────────┼──────────┤
//	           ≤ --kill-after    safety
//
// If no renewal has moved the Deadline, the group gets TERM at term, and KILL at
// kill. The keeper, another process, kills at that moment too, in case this process
// is stopped. If an operator breaks the lease, the group gets TERM at once, and KILL
// after --kill-after or a third of the TTL, but no later than above.
type holding struct {
	a         *cli.App
	lease     *fencelock.Lease
	killAfter time.Duration
	grace     bool // others are to be kept out after a loss
	maxHold   time.Duration
	granted   time.Time // when the grant was seen here
	events    events
	renewals  *renewals

	lost *fencelock.LostError // why the command was ended; nil if it was not

	child    *child
	keeper   *keeper
	deadline time.Time     // at the last look
	span     time.Duration // the longest time from a look to the Deadline
	killAt   time.Time     // set with lost
	keeperAt time.Time     // when the keeper kills, by the last message to it
	late     bool          // a message went out when the keeper had killed by the one before
}

const (
	// mostSafety is how long before the Deadline KILL is sent at the earliest.
	mostSafety = 250 * time.Millisecond
	// lookEvery bounds the time until run notices a moved Deadline, or a sleep of
	// the machine: timers stand still meanwhile.
	lookEvery = 500 * time.Millisecond
)

// goesOn is the message about a command that could not be ended.
const goesOn = "goes on without the lock"

// errKeeper means that the command must not run, because nothing would end it in time.
var errKeeper = errors.New("the helper process that ends the command with this one does not start")

// margins returns how long before the Deadline TERM and KILL are sent when a lease is
// trusted for span after each renewal. TERM is sent in the last third of span at the
// earliest, since the first try to renew comes after a third.
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
	name := cmd.Args[0]
	h.child, err = startChild(cmd, h.born)
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

// born puts the keeper on watch. The Deadline comes last: a keeper that starts slowly must not act by an old one.
func (h *holding) born(group int) error {
	err := h.keeper.watch(group)
	h.observe(time.Now())
	return err
}

// look compares the lease with the clock, sends the signals that are due, and
// returns the time until the next look.
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
	return 50 * time.Millisecond // again, for processes that were just being started
}

// observe reads the Deadline, and tells the keeper if a renewal has moved it.
func (h *holding) observe(now time.Time) {
	d := h.lease.Deadline()
	if d.Equal(h.deadline) {
		return
	}
	h.deadline, h.span = d, max(h.span, d.Sub(now))
	_, kill := margins(h.killAfter, h.span)
	h.late = h.late || !h.keeperAt.IsZero() && now.After(h.keeperAt)
	h.keeperAt = d.Add(-kill)
	h.keeper.until(h.keeperAt)
}

// kept notes that the keeper has ended the command: the message that a renewal has moved the Deadline may have
// reached it too late.
func (h *holding) kept(code int, now time.Time) {
	if h.lost == nil && code == cli.ExitSignal+int(syscall.SIGKILL) && (h.late || now.After(h.keeperAt)) {
		h.begin(now, &fencelock.LostError{Reason: h.nearing()})
	}
}

// nearing returns the reason why no renewal moves the Deadline.
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
	if at := now.Add(min(h.killAfter, h.span/3)); at.Before(h.killAt) {
		h.killAt = at
	}
	if h.killAt.After(now) {
		h.child.terminate()
	}
	h.events.lost(h.lost)
}

// endGroup ends the rest of the group after the end of the command itself, if the lease was lost.
func (h *holding) endGroup() {
	if h.lost == nil {
		return
	}
	for h.child.alive() && time.Now().Before(h.killAt) {
		time.Sleep(5 * time.Millisecond)
	}
	h.child.kill()
}

// events prints the events of a run as JSON lines on stderr, with --json.
type events struct {
	a     *cli.App
	lease *fencelock.Lease
}

// Event is one such line.
type Event struct {
	At       time.Time       `json:"at"`
	Event    string          `json:"event"`
	Name     string          `json:"name"`
	Token    fencelock.Token `json:"token"`
	Backend  string          `json:"backend,omitempty"`
	Owner    string          `json:"owner,omitempty"`
	Mode     fencelock.Mode  `json:"mode,omitempty"` // left out: exclusive
	Slot     *int            `json:"slot,omitempty"` // of a permit
	WaitedMS *int64          `json:"waited_ms,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Code     *int            `json:"code,omitempty"`
}

func (e events) emit(v Event) {
	if !e.a.JSON {
		return
	}
	v.At, v.Name, v.Token = time.Now(), e.lease.Name(), e.lease.Token()
	e.a.PrintErr(v)
}

func (e events) acquired(backend string, waited time.Duration) {
	ms := waited.Milliseconds()
	v := Event{Event: "acquired", Backend: backend, Owner: e.lease.Owner(), Mode: e.lease.Mode(), WaitedMS: &ms}
	if slot := e.lease.Slot(); v.Mode == fencelock.Permit {
		v.Slot = &slot
	}
	e.emit(v)
}

func (e events) lost(err *fencelock.LostError) {
	e.emit(Event{Event: "lost", Reason: err.Reason.String()})
}
