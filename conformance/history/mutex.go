package history

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A mutex is the second judge's model: the non-reentrant fenced mutex of Hazelcast's CP Subsystem, written from its
// published description. That is "Non-reentrant fenced lock" among the test cases of Hazelcast's Jepsen suite
// (hazelcast/README.md of jepsen-io/jepsen, 2019), and the documentation of FencedLock:
//
//   - one endpoint holds the lock at a time, and only the holder can release it;
//   - the holder cannot acquire it again before it has released it;
//   - each change from free to held has a greater fencing token than the one before;
//   - the lock of an endpoint whose session was closed is released without it.
//
// It shares no code with [State], nor does [tenures], which brings a history into its terms, with [operations]. An
// endpoint here is one lease, not one process. So a process that has a new lease and releases its old one counts as
// one that releases another's lock.
type mutex struct {
	owner string        // empty: it is free
	fence backend.Token // of the last change from free to held
}

func (m *mutex) acquire(owner string, fence backend.Token) error {
	switch {
	case m.owner != "":
		return fmt.Errorf("%s acquired what %s holds", owner, m.owner)
	case fence <= m.fence:
		return fmt.Errorf("%s acquired it with fence %d after one with fence %d", owner, fence, m.fence)
	}
	m.owner, m.fence = owner, fence
	return nil
}

func (m *mutex) release(owner string) error {
	if m.owner != owner {
		return fmt.Errorf("%s released what it does not hold", owner)
	}
	m.owner = ""
	return nil
}

// A window is when a call was under way.
type window struct{ from, to Moment }

// A tenure is one lease as a Jepsen history of a lock has it: an acquire and its release.
//
// Hazelcast's sessions do not end while its locks are tested; our leases do. A release whose window has no end is a
// Jepsen :info: it happened at some moment since from, or never. So the ways a lease ends become:
//
//   - Unlock returned nil: a release within that call, and no other.
//   - Nobody unlocked it, or it died before: an :info since the last deadline that the history knows. The store may
//     take the lock away at the deadline or at any moment after it, never before.
//   - Unlock has no known outcome, or the process died in it: an :info since that call began, or since the deadline if
//     that was sooner.
//   - Unlock was called again after one without a known outcome: if a later one returned nil, a release between the
//     start of the first and the end of that one. A loss that a later one reported says nothing: the first may have
//     been done. Nor do calls after one with a known outcome.
//   - Unlock reported a loss after the deadline: the same. It may be what freed the lock, and its reply have come late.
//   - Unlock reported a loss before the deadline: a :fail, which did not happen, and an :info since the deadline.
//   - [Options.Brittle], where leases end with a connection: after a loss, or a death, an :info since the grant, or
//     since the deadline if that was sooner.
//   - [Options.Plain], where two may have the lock at once: an :info since the acquire began. Only fences are judged.
//
// A renewal is no operation: it moves the deadline. An acquire without an answer could only take the lock from others:
// it is left out, unless the store named its holder at the end. Answers of a store or a guarded resource have no
// operation in a lock workload.
type tenure struct {
	process string
	fence   backend.Token
	acquire window
	release window
	failed  window // the Unlock that is a :fail; zero: there is none
}

// endpoint names the lease.
func (t tenure) endpoint() string { return t.process + "#" + strconv.FormatInt(t.fence, 10) }

// tenures returns the leases of each name.
func tenures(events []Event, o Options) map[string][]tenure {
	ended, freed := map[lease]Event{}, map[lease][]Event{}
	type fence struct {
		name  string
		token backend.Token
	}
	told := map[fence]bool{}
	for _, e := range events {
		switch e.Kind {
		case Ended:
			ended[lease{e.Process, e.Name, e.Token}] = e
		case Freed:
			key := lease{e.Process, e.Name, e.Token}
			freed[key] = append(freed[key], e)
		case Granted:
			told[fence{e.Name, e.Token}] = true
		}
	}
	all := map[string][]tenure{}
	for _, e := range events {
		switch e.Kind {
		case Granted:
			key := lease{e.Process, e.Name, e.Token}
			t := tenure{process: e.Process, fence: e.Token, acquire: window{e.Called, e.At}}
			t.end(e, ended[key], settled(freed[key]), o)
			all[e.Name] = append(all[e.Name], t)
		case Left:
			if e.Token == 0 || told[fence{e.Name, e.Token}] {
				continue
			}
			told[fence{e.Name, e.Token}] = true
			since := e.Called
			for _, a := range events {
				if a.Kind == Asked && a.Name == e.Name && program(a.Process) == program(e.Process) {
					since = min(since, a.Called)
				}
			}
			all[e.Name] = append(all[e.Name], tenure{
				process: e.Process, fence: e.Token, acquire: window{since, e.At}, release: window{forever, forever},
			})
		}
	}
	return all
}

// settled is the one release that the calls of a lease's Unlock come to: see [tenure].
func settled(calls []Event) Event {
	if len(calls) == 0 {
		return Event{}
	}
	slices.SortStableFunc(calls, func(a, b Event) int { return cmp.Compare(a.Called, b.Called) })
	first := calls[0]
	done := slices.IndexFunc(calls, func(e Event) bool { return e.Result == OK })
	if first.Result == Unclear && done > 0 {
		first.Result, first.At = OK, calls[done].At
	}
	return first
}

// end sets the release of a lease as the history tells its end: see [tenure].
func (t *tenure) end(granted, ended, freed Event, o Options) {
	died := freed.Kind == "" && ended.Kind == ""
	deadline := max(granted.Until, ended.Until)
	since := deadline
	switch {
	case o.Plain:
		since = granted.Called
	case freed.Result == OK && freed.Kind != "":
		t.release = window{freed.Called, freed.At}
		return
	case o.Brittle && (died || freed.Result == Refused):
		since = min(deadline, granted.At)
	case died:
	case freed.Kind == "": // it died in Unlock
		since = min(deadline, ended.At)
	case freed.Result == Refused && freed.At < deadline:
		t.failed = window{freed.Called, freed.At}
	default:
		since = min(deadline, freed.Called)
	}
	t.release = window{since, forever}
}

// FencedMutex is the second judge alone: it returns an error for each lock of which no order of the acquisitions and
// releases is one of Hazelcast's fenced mutex. It takes n log n steps for n events.
func FencedMutex(events []Event, o Options) error {
	all := tenures(exclusiveOnly(events), o)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		errs = append(errs, obeys(name, all[name]))
	}
	return errors.Join(errs...)
}

// obeys returns why no order of the calls is one of a fenced mutex; nil if one is.
//
// There is nothing to search for: the fences say in which order the lock was acquired, and each release lies between
// two acquires. So there is one order, and it is legal if each call can take place at a moment of its window that is
// not before the last one's, and the model accepts it.
func obeys(name string, ts []tenure) error {
	ts = slices.Clone(ts)
	slices.SortStableFunc(ts, func(a, b tenure) int {
		return cmp.Or(cmp.Compare(a.fence, b.fence), cmp.Compare(a.acquire.from, b.acquire.from))
	})
	var m mutex
	var now Moment
	var because string // the call that took place at now
	at := func(w window, who, what string) error {
		if len(because) == 0 || w.from > now {
			now, because = w.from, who+" "+what
		}
		if now > w.to {
			return fmt.Errorf("%q: no order is one of a fenced mutex: %s %s by %v, and before that %s, at %v at the "+
				"earliest", name, who, what, time.Duration(w.to), because, time.Duration(now))
		}
		return nil
	}
	for _, t := range ts {
		who := t.endpoint()
		if err := at(t.acquire, who, "acquired it"); err != nil {
			return err
		}
		if err := m.acquire(who, t.fence); err != nil {
			return fmt.Errorf("%q: no order is one of a fenced mutex: %w", name, err)
		}
		if err := at(t.release, who, "released or lost it"); err != nil {
			return err
		}
		if err := m.release(who); err != nil {
			return fmt.Errorf("%q: no order is one of a fenced mutex: %w", name, err)
		}
	}
	return nil
}
