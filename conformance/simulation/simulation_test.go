package simulation

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"
)

var (
	oneSeed  = flag.Int64("seed", -1, "run the world of this seed alone, and print its log with -v")
	howMany  = flag.Int("seeds", 0, "run the worlds of so many seeds; 0: 2,000, or fewer with -short or the race detector")
	oneFlaw  = flag.String("mistake", "", "with -seed: make this mistake of the table")
	fromSeed = flag.Uint64("from", 0, "the first seed")
	times    = flag.Int("times", 1, "with -seed: run it up to so often, until something is found")
)

// seeds is how many a run has.
func seeds() int {
	switch {
	case *howMany > 0:
		return *howMany
	case testing.Short():
		return 100
	case underRace:
		return 500
	}
	return 2000
}

// TestSimulation runs the engine in the world of each seed and wants nothing found.
func TestSimulation(t *testing.T) {
	if *oneSeed >= 0 {
		w := run(t, uint64(*oneSeed), flaw(*oneFlaw))
		for i := 1; i < *times && len(w.found) == 0; i++ {
			w = run(t, uint64(*oneSeed), flaw(*oneFlaw))
		}
		if len(w.found) == 0 {
			t.Log(strings.Join(w.log, "\n"))
		}
		report(t, w)
		return
	}
	began := time.Now()
	steps, grants := 0, 0
	for i := range seeds() {
		w := run(t, *fromSeed+uint64(i), "")
		steps += len(w.log)
		grants += len(w.byAcq)
		report(t, w)
	}
	t.Logf("%d seeds, %d events, %d leases, in %v", seeds(), steps, grants, time.Since(began).Round(time.Millisecond))
}

// report fails the test with what a world found, and says how to see it again.
func report(t *testing.T, w *world) {
	t.Helper()
	if len(w.found) == 0 {
		return
	}
	t.Errorf("seed %d: %s\n%s\n\tagain: go test ./conformance/simulation -run '^TestSimulation$' -v -seed %d -times 1000", w.seed, strings.Join(w.found, "\n\t"), strings.Join(w.log, "\n"), w.seed)
}

// TestSameSeedSameRun runs seeds twice. Where the engine draws nothing, the same must happen at the same times. In a whole world
// its jitter is not the seed's: how many are the same by chance is printed.
func TestSameSeedSameRun(t *testing.T) {
	n := min(seeds(), 50)
	same := 0
	for seed := range uint64(n) {
		p := newPlan(seed).stilled()
		if d := difference(p.run(t, seed, ""), p.run(t, seed, "")); d != "" {
			t.Errorf("without the engine's jitter, seed %d was not the same twice:\n%s", seed, d)
		}
		if difference(run(t, seed, ""), run(t, seed, "")) == "" {
			same++
		}
	}
	t.Logf("%d seeds twice: all the same without the engine's jitter, %d with it", n, same)
}

// difference shows where two runs part; empty: nowhere.
func difference(one, other *world) string {
	a, b := one.events(), other.events()
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return a[i] + "\n" + b[i]
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d events, then %d", len(a), len(b))
	}
	return ""
}
