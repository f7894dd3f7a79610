package simulation

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/history"
)

// written is what a program knows of the end of a lease: with it the leases of a world are a history, as the processes
// of the fault table write one. w.mu guards it.
type written struct {
	process       string
	called, until time.Time // Lock was; the deadline as it was granted
	ended         time.Time // it was given up or lost; zero: neither
	freeing, over time.Time // the first Unlock was called, and the last one returned; zero: none did
	result        history.Result
	unclear       bool // an Unlock before the last one has no known outcome
}

// gaveUp notes that a hold is not trusted any more. w.mu is held.
func (h *hold) gaveUp(at time.Time) {
	if h.written.ended.IsZero() {
		h.written.ended = at
	}
}

// freed notes what an Unlock that was called at a moment came to. w.mu is held.
func (h *hold) freed(called time.Time, err error) {
	x := &h.written
	if x.freeing.IsZero() {
		x.freeing = called
	}
	x.over = time.Now()
	switch {
	case err == nil:
		x.result = history.OK
	case errors.Is(err, fencelock.ErrLost) && !x.unclear:
		x.result = history.Refused
	default:
		x.result, x.unclear = history.Unclear, true
	}
}

// history returns what the programs of a world have seen. A lease that an operator broke, that the store forgot as it
// was to, can have ended at any moment; one that Close ended, since then. Re-entries are no leases, and one by a
// Lock whose observer panicked is one that nobody learnt of. w.mu is held.
func (w *world) history() []history.Event {
	at := func(t time.Time) history.Moment { return history.Moment(t.Sub(w.began)) + 1 }
	var events []history.Event
	for l, h := range w.handed {
		x := h.written
		e := history.Event{
			Kind: history.Granted, Process: x.process, Name: h.a.name, Token: l.token,
			Called: at(x.called), At: at(h.granted), Until: at(x.until),
		}
		events = append(events, e)
		last := h.le.Deadline()
		h.gaveUp(last)
		end := history.Event{
			Kind: history.Ended, Process: e.Process, Name: e.Name, Token: e.Token,
			At: at(h.written.ended), Until: e.Until,
		}
		if h.a.excused != "" { // perhaps before the program was told of the grant
			end.At = e.Called
		} else if last.After(x.until) {
			end.Until = at(last)
		}
		events = append(events, end)
		if x.over.IsZero() || h.a.excused != "" || h.closed {
			continue
		}
		events = append(events, history.Event{
			Kind: history.Freed, Process: e.Process, Name: e.Name, Token: e.Token,
			Called: at(x.freeing), At: at(x.over), Result: x.result,
		})
	}
	slices.SortFunc(events, func(a, b history.Event) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Token, b.Token), cmp.Compare(a.Kind, b.Kind))
	})
	return events
}

// judgedTwice is every which seed's history has the search of the lease model too, which takes longer than its world
// now and then.
const judgedTwice = 20

// judge judges what the programs have seen: by the fenced mutex, and of some seeds by the lease model as well.
func (w *world) judge() {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.history()
	err := history.FencedMutex(events, history.Options{})
	if w.plan.goesOn || w.seed%judgedTwice == 0 {
		w.verdicts = history.Judge(events, history.Options{Timeout: 100 * time.Millisecond})
		for _, v := range w.verdicts {
			if !errors.Is(v.Lease, history.ErrUnknown) {
				err = errors.Join(err, v.Lease, v.Disagree)
			}
		}
	}
	if err != nil {
		w.violation("the history: %v", err)
	}
}

// disagreement is the error of the first lock about which the judges disagree, or nil.
func (w *world) disagreement() error {
	for _, v := range w.verdicts {
		if v.Disagree != nil {
			return fmt.Errorf("seed %d, mistake %q: %w\nlease model: %v\nfenced mutex: %v", w.seed, w.flaw, v.Disagree,
				v.Lease, v.Mutex)
		}
	}
	return nil
}

// seen are the mistakes that show in acquisitions and releases alone, within the seeds of TestJudges: both judges must
// find them in what the programs have seen. Of the others the engine keeps the programs from harm, or they are a matter
// of something else than who has the lock.
var seen = []flaw{
	releaseAnybody, counterPlain, abandonAnybody, waitEndsHold, checkThenSet, sessionShares, expiresEarly,
	unknownIsLost, heartbeatOfWait, releaseByOwner, releasedTwiceLost, counterPerLock, tokenConstant, tokenRandom,
	tokenSeconds, tokenEarly, floorIgnored, reserveAgain,
}

// TestJudges lets worlds with a mistake go on when it has shown, and compares what the judges say of what came of it.
func TestJudges(t *testing.T) {
	const enough = 30
	n := enough
	if testing.Short() || underRace {
		n = 10
	}
	var table strings.Builder
	for _, f := range mistakes {
		lease, mutex := 0, 0
		for seed := range uint64(n) {
			p := newPlan(seed)
			p.goesOn = true
			w := p.run(t, seed, f)
			if err := w.disagreement(); err != nil {
				t.Error(err)
			}
			if slices.ContainsFunc(w.verdicts, func(v history.Verdict) bool {
				return v.Lease != nil && !errors.Is(v.Lease, history.ErrUnknown)
			}) {
				lease++
			}
			if slices.ContainsFunc(w.verdicts, func(v history.Verdict) bool { return v.Mutex != nil }) {
				mutex++
			}
		}
		if mutex == 0 && n == enough && slices.Contains(seen, f) {
			t.Errorf("%s: the fenced mutex accepts all of %d histories", f, n)
		}
		if lease+mutex > 0 {
			fmt.Fprintf(&table, "%-34s %5d %5d\n", f, lease, mutex)
		}
	}
	t.Logf("mistakes that programs see, and of %d histories those that the lease model and the fenced mutex refuse\n%s",
		n, table.String())
}
