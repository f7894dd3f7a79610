package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Op is a kind of operation to measure.
type Op string

// The operations; the package comment describes each.
const (
	Cycle     Op = "cycle"
	Contended Op = "contended"
	Handover  Op = "handover"
	Held      Op = "held"
	Readers   Op = "readers"
	Turns     Op = "turns"
	Permits   Op = "permits"
)

// Ops returns the operations in the order in which they are measured.
func Ops() []Op { return []Op{Cycle, Contended, Handover, Held, Readers, Turns, Permits} }

// handsOver reports whether two clients pass a name to and fro.
func (o Op) handsOver() bool { return o == Handover || o == Turns }

const (
	crowd       = 16                     // goroutines that want one name
	section     = 200 * time.Microsecond // the critical section that is not empty
	connections = 32                     // leases at a time where each costs a connection
	readers     = 200                    // goroutines that read one name
	processes   = 8                      // clients that share them
	permits     = 10                     // of a semaphore
	seekers     = 100                    // goroutines that want one
)

// A Case is one row to measure.
type Case struct {
	Op         Op
	Goroutines int           // that lock; for held, the leases
	Section    time.Duration // the critical section of contended
	Clients    int           // that share the goroutines; 0: one
}

// Name returns the case as benchstat and --only want it: "cycle/goroutines=64".
func (c Case) Name() string {
	switch c.Op {
	case Contended:
		us := c.Section.Microseconds()
		return fmt.Sprintf("%s/goroutines=%d/section=%dus", c.Op, c.Goroutines, us)
	case Handover, Turns:
		return string(c.Op)
	case Readers:
		if c.Clients > 0 {
			return fmt.Sprintf("%s/goroutines=%d/clients=%d", c.Op, c.Goroutines, c.Clients)
		}
	case Permits:
		return fmt.Sprintf("%s/goroutines=%d/permits=%d", c.Op, c.Goroutines, permits)
	case Held:
		return fmt.Sprintf("%s/leases=%d", c.Op, c.Goroutines)
	}
	return fmt.Sprintf("%s/goroutines=%d", c.Op, c.Goroutines)
}

// index is the number of the name that a goroutine locks.
func (c Case) index(goroutine int) int {
	if c.Op == Contended {
		return 0
	}
	return goroutine
}

// Cases returns the rows of a backend with these traits. held is how many leases are held. Where a
// lease costs a connection there are fewer goroutines and leases.
func Cases(t backend.Traits, held int) []Case {
	goroutines := []int{1, 64, 512}
	if t.LeasePerConn {
		goroutines, held = []int{1, connections}, min(held, connections)
	}
	var all []Case
	for _, n := range goroutines {
		all = append(all, Case{Op: Cycle, Goroutines: n})
	}
	all = append(
		all,
		Case{Op: Contended, Goroutines: crowd},
		Case{Op: Contended, Goroutines: crowd, Section: section},
		Case{Op: Handover, Goroutines: 1},
		Case{Op: Held, Goroutines: held},
	)
	if t.Readers {
		all = append(
			all,
			Case{Op: Readers, Goroutines: readers},
			Case{Op: Readers, Goroutines: readers, Clients: processes},
			Case{Op: Turns, Goroutines: 1},
		)
	}
	if t.Permits >= permits {
		all = append(all, Case{Op: Permits, Goroutines: seekers})
	}
	return all
}

// checkOnly returns an error that matches fencelock.ErrInvalid if one of only names nothing that
// any backend has.
func checkOnly(only []string, held int) error {
	allowed := []string{}
	for _, op := range Ops() {
		allowed = append(allowed, string(op))
	}
	for _, t := range []backend.Traits{{Readers: true, Permits: permits}, {LeasePerConn: true}} {
		for _, c := range Cases(t, held) {
			if n := c.Name(); !slices.Contains(allowed, n) {
				allowed = append(allowed, n)
			}
		}
	}
	for _, o := range only {
		if !slices.Contains(allowed, o) {
			want := strings.Join(allowed, ", ")
			return backend.Invalid("the row %q is not known: want some of %s", o, want)
		}
	}
	return nil
}
