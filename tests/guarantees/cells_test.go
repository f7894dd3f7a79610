//go:build linux

package guarantees_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/fencelock/fencelock/tests/guarantees"
)

// The environment of make faults.
const (
	envRounds = "ROUNDS" // trials of each cell; without it one, and no record
	envOnly   = "ONLY"   // words such as etcd, server-killed or etcd/server-killed: the cells that run
	envRecord = "RECORD" // the file to which what was found is added
	envSave   = "SAVE"   // the folder for histories that break a promise
)

// TestFaults runs every cell of the table on real servers, a backend's one after the other.
//
// Without ROUNDS it runs each once, in some 3 minutes, and a cell that is to show a second holder
// until it has shown one, twelve times at the most.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: no faults")
	}
	for _, b := range Backends() {
		if !chosen(b.Backend, "") {
			continue
		}
		t.Run(b.Backend, func(t *testing.T) {
			t.Parallel()
			s := start(t, b.Backend)
			f, err := newFleet(t.Context(), s,
				load{Names: 16, Shared: 1, Goroutines: 3, Think: 60 * time.Millisecond}, t.TempDir())
			defer func() {
				if err := f.close(); err != nil {
					t.Error(err)
				}
			}()
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range Table() {
				if c.Backend == b.Backend && c.Holds != NA && chosen(b.Backend, c.Fault) && s.can(c.Fault) {
					t.Run(string(c.Fault), func(t *testing.T) { f.trials(t, c) })
				}
			}
		})
	}
}

// chosen reports whether ONLY has a cell, or one of a backend.
func chosen(backend string, f Fault) bool {
	only := strings.Fields(os.Getenv(envOnly))
	for _, w := range only {
		b, fault, both := strings.Cut(w, "/")
		switch {
		case both && b == backend && (f == "" || fault == string(f)),
			!both && (w == backend || f == "" && injects[Fault(w)] != nil || w == string(f)):
			return true
		}
	}
	return len(only) == 0
}

// can reports whether the fault can be made here.
func (s *stack) can(f Fault) bool {
	switch {
	case injects[f] == nil, s.replicated() && !isolated() &&
		(f == Replies || f == Requests || f == Latency || f == ClientCut || f == HolderNode):
		return false
	case f == ClockMoved:
		return s.lab.shim != ""
	case f == PowerLoss:
		return s.lab.size == 0 || s.lab.disks()
	case f == DiskFull:
		return s.lab.disks()
	case f == LeaderCut:
		return isolated()
	}
	return true
}

const (
	// most is how many trials may pass without the second holder that a cell is to show. Under
	// Sentinel both clients hear of the new master at once, and in four trials of ten the first has
	// looked and knows before the second has the lock.
	most = 12
	// mishapsMost is how many rounds may tell nothing.
	mishapsMost = 5
)

// trials runs a cell and records what came of it.
//
// Where the lease ends with the connection, the next holder can be told sooner than the first: then
// its promise is about what is written, and so is the judgement.
func (f *fleet) trials(t *testing.T, c Cell) {
	n, show := 1, c.Holds == Tokens && c.Why == ""
	if text := os.Getenv(envRounds); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", envRounds, err)
		}
	}
	found := Found{Fault: c.Fault, Backend: c.Backend, Date: Today(), Servers: f.version()}
	again := 0
	for found.Trials < n || show && found.Second == 0 && found.Trials < max(n, most) {
		began := time.Now()
		out, broken, mishaps := f.run(t.Context(), c.Fault, judge{c.Holds == Tokens || f.tx, show},
			injects[c.Fault], saves(c.Backend))
		if broken == nil && mishaps == nil {
			broken = f.inTime(c, out)
		}
		t.Logf("%v: %+v", time.Since(began).Round(time.Millisecond), out)
		if broken == nil && mishaps != nil {
			t.Errorf("the round tells nothing: %v", mishaps)
			if again++; again == mishapsMost {
				t.FailNow()
			}
			if err := f.revive(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		found.Trials++
		found.Locks += out.Locks
		found.Slowest = max(found.Slowest, out.Slowest.Milliseconds())
		if out.Twice > 0 {
			found.Second++
		}
		if broken != nil {
			found.Broken++
			t.Error(errors.Join(broken, mishaps))
			if err := f.revive(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if show && found.Second == 0 {
		t.Errorf("no second holder in %d trials: the table says that there can be one", found.Trials)
	}
	if path := os.Getenv(envRecord); path != "" {
		recording.Lock()
		defer recording.Unlock()
		if err := Record(path, []Found{found}); err != nil {
			t.Error(err)
		}
	}
}

// saves is where histories that break a promise are kept; empty: nowhere.
func saves(backend string) string {
	dir := os.Getenv(envSave)
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, backend)
}

// inTime checks a cell's bound, which takes a machine with nothing else to do: with ROUNDS.
func (f *fleet) inTime(c Cell, out outcome) error {
	bound := c.Within
	if c.PlusTTL {
		bound += f.ttl
	}
	if c.Within == 0 || out.Slowest <= bound || os.Getenv(envRounds) == "" {
		return nil
	}
	return fmt.Errorf("what the fault took was there again after %v, want within %v", out.Slowest, bound)
}
