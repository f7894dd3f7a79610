// Package history records the holds of locks in several processes of one machine, and checks the
// records: that no two leases were trusted at once, that tokens rose from grant to grant, that no lease
// was granted when its time was over, and that no acknowledged write to a guarded counter is missing.
// [Verify] asks more of the same history: whether one fenced lock could have done all of it, with the
// refused calls and those of unknown outcome. A second judge, [FencedMutex], is a model by others:
// Hazelcast's for its Jepsen tests. The two must agree. [EDN] writes a history as Jepsen's tools read
// it.
//
// Each process writes its part with a [Log], a line for each [Event], at once, so that a process
// that is killed leaves what it did. The program that started the processes reads the parts, puts them
// together in any order, and calls [Check].
//
// A recorded hold lies within the real one: a grant is stamped after the program was told of it, its
// end before the lock is given back. So every break that Check finds did happen. It can miss a break that happened
// between two stamps.
package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A Moment is a reading of the machine's monotonic clock, which all its processes share: comparable between
// them until the machine starts again. (On Windows it is the wall clock.)
type Moment time.Duration

// After returns the moment d later.
func (m Moment) After(d time.Duration) Moment { return m + Moment(d) }

// Kind is the kind of an Event.
type Kind string

// The kinds of events.
const (
	Granted Kind = "granted" // the program was told that it has the lock
	Ended   Kind = "ended"   // it stopped trusting it
	Wanted  Kind = "wanted"  // it is about to add one to a counter under the lock
	Added   Kind = "added"   // it was told that this was done
	Died    Kind = "died"    // the process was about to be killed: it held its locks until then
	Counted Kind = "counted" // the number in a counter at the end

	Asked Kind = "asked" // the lock was asked for, and nobody knows whether it was granted
	Freed Kind = "freed" // Unlock has returned; Result says what
	// a token was shown to the resource, for a read or a write; Result says what it answered
	Shown Kind = "shown"
	Left  Kind = "left" // at the end the store says that Token of Process holds the lock; 0: that it is free
	// the process was about to be stopped; or it was not run by the machine from At until Until
	Stopped   Kind = "stopped"
	Continued Kind = "continued" // and goes on
	Down      Kind = "down"      // from At until Until the store could not have granted anything

	// only in a file that Save wrote, and no event: Options.Plain and Brittle
	asksPlain   Kind = "plain"
	asksBrittle Kind = "brittle"
)

// Result is how a call ended.
type Result string

// The results of calls. If a process died before a call returned, the history has no result: it is unclear.
const (
	OK      Result = "ok"
	Refused Result = "refused" // Freed: it was lost before; Shown: the token is stale
	Unclear Result = "unclear" // it may have been done
)

// An Event is a line of a history.
type Event struct {
	Kind    Kind          `json:"kind"`
	Process string        `json:"process"`         // "w2", or "w2.1" for one of its goroutines
	Phase   string        `json:"phase,omitempty"` // of a migration
	Name    string        `json:"name,omitempty"`  // of the lock, or the counter
	Token   backend.Token `json:"token,omitempty"`
	Called  Moment        `json:"called,omitempty"` // Asked, Granted, Freed, Shown, Left: just before the call
	At      Moment        `json:"at,omitempty"`
	Until   Moment        `json:"until,omitempty"` // Granted, Ended: the lease's deadline as it was then
	Value   int64         `json:"value,omitempty"` // Added, Counted: of the counter
	Result  Result        `json:"result,omitempty"`

	// Granted: how the name is held; of Permit the slot, and of how many.
	Mode  backend.Mode `json:"mode,omitempty"`
	Slot  int          `json:"slot,omitempty"`
	Limit int          `json:"limit,omitempty"`
	// Granted: the token was to exceed it (fencelock.WithFloor). A reader with a floor may begin a new token beside
	// others.
	Floor backend.Token `json:"floor,omitempty"`
}

// Read returns the events of one part. A last line that its process did not finish is left out.
func Read(r io.Reader) ([]Event, error) {
	var events []Event
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF):
			return events, nil
		case err != nil:
			return nil, err
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("line %d of a history: %w: %s", len(events)+1, err, line)
		}
		events = append(events, e)
	}
}
