package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// Run checks every rule as a subtest of t: FENCELOCK's own backends and any other
// driver's tests call it.
//
//	func TestMain(m *testing.M) { conformance.Child(); os.Exit(m.Run()) }
//	func TestConformance(t *testing.T) { conformance.Run(t, harness(t)) }
//
// Tests of several backends may be parallel. A rule that measures waits until only such rules are left, of any backend,
// and a rule that counts what the process has waits until no other runs.
//
// Rules that the backend's Traits or the harness exclude are skipped, with the reason. -short sets h.Short, and the
// environment variable FENCELOCK_FULL sets h.Full.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if os.Getenv(childEnv) != "" {
		t.Fatal("conformance: the second process came to Run: call conformance.Child first thing in TestMain")
	}
	h.Short = h.Short || testing.Short()
	h.Full = h.Full || os.Getenv("FENCELOCK_FULL") != ""
	traits, err := h.traits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one := func(t *testing.T, r Rule) {
		res := r.check(t.Context(), &h, traits)
		for _, n := range res.Notes {
			t.Log(n)
		}
		if res.Excluded != "" {
			t.Skipf("excluded: %s", res.Excluded)
		}
		if res.Known != "" {
			t.Skipf("known to fail: %s", res.Known)
		}
		if res.Err != nil {
			t.Error(res.Err)
		}
	}
	var places chan struct{}
	if h.Parallel > 0 {
		places = make(chan struct{}, h.Parallel)
	}
	process.RLock()
	loads.RLock()
	seats <- struct{}{}
	t.Run("rules", func(t *testing.T) {
		for _, r := range Rules() {
			if !r.Alone {
				t.Run(r.Name, func(t *testing.T) {
					t.Parallel()
					if places != nil {
						places <- struct{}{}
						defer func() { <-places }()
					}
					one(t, r)
				})
			}
		}
	})
	<-seats
	alone := func(name string, which Solo) {
		t.Run(name, func(t *testing.T) {
			for _, r := range Rules() {
				if r.Alone && r.solo(h.Short) == which {
					t.Run(r.Name, func(t *testing.T) { one(t, r) })
				}
			}
		})
	}
	alone("alone", Never)
	loads.RUnlock()
	measures.enter()
	alone("measured", ForMeasure)
	measures.leave()
	process.RUnlock()
	process.Lock()
	defer process.Unlock()
	alone("solo", Always)
}

var (
	// process is read-locked while rules of a backend run, and locked while a rule runs that counts what it has.
	process sync.RWMutex
	// loads is read-locked while rules run that do not measure, and locked while rules measure.
	loads    sync.RWMutex
	measures = group{seats: make(chan struct{}, 1+runtime.GOMAXPROCS(0))}
)

// group is backends that have loads locked together: the first one locks it, and the last one unlocks it. seats are how
// many of them run at once.
type group struct {
	seats chan struct{}
	mu    sync.Mutex
	in    int
}

func (g *group) enter() {
	g.mu.Lock()
	if g.in++; g.in == 1 {
		loads.Lock()
	}
	g.mu.Unlock()
	g.seats <- struct{}{}
}

func (g *group) leave() {
	<-g.seats
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in--; g.in == 0 {
		loads.Unlock()
	}
}

// seats has a place for each backend whose rules may run beside each other. With more backends they would wait for the
// processor longer than a store may take to answer.
var seats = make(chan struct{}, 1+3*runtime.GOMAXPROCS(0))

// Check checks every rule and joins the errors of those that are broken.
func Check(ctx context.Context, h Harness) error {
	var errs []error
	for res := range Report(ctx, h) {
		errs = append(errs, res.Err)
	}
	return errors.Join(errs...)
}

// NoHarness is the Rule of a result that says that the harness cannot be used, or that ctx ended.
const NoHarness = "harness"

// Report checks the rules that only names (rules such as "B2" or groups such as "B"; all if
// there are none), and yields the result of each as soon as it is there. A harness
// that cannot be used is one result, with Rule NoHarness, and so is, after the others, a ctx that ended.
func Report(ctx context.Context, h Harness, only ...string) func(yield func(Result) bool) {
	return func(yield func(Result) bool) {
		traits, err := h.traits(ctx)
		if err != nil {
			yield(Result{Rule: NoHarness, What: "a first client", Err: err, Error: err.Error()})
			return
		}
		whole := ctx
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var alone []Rule
		results := make(chan Result)
		places := make(chan struct{}, h.parallel())
		var wg sync.WaitGroup
		for _, r := range Rules() {
			switch {
			case !r.matches(only):
			case r.Alone:
				alone = append(alone, r)
			default:
				wg.Go(func() {
					select {
					case places <- struct{}{}:
					case <-ctx.Done():
						return
					}
					defer func() { <-places }()
					res := r.check(ctx, &h, traits)
					select {
					case results <- res:
					case <-ctx.Done():
					}
				})
			}
		}
		go func() { wg.Wait(); close(results) }()
		for res := range results {
			if !yield(res) {
				cancel()
				wg.Wait()
				return
			}
		}
		for _, r := range alone {
			if whole.Err() == nil && !yield(r.check(ctx, &h, traits)) {
				return
			}
		}
		if err := whole.Err(); err != nil {
			yield(Result{Rule: NoHarness, What: "all rules", Err: err, Error: err.Error()})
		}
	}
}

func (h *Harness) parallel() int {
	if h.Parallel > 0 {
		return h.Parallel
	}
	return 8
}

// traits opens a first client and asks what the backend promises, and whether it counts waiters.
func (h *Harness) traits(ctx context.Context) (backend.Traits, error) {
	if h.Driver == nil {
		return backend.Traits{}, errors.New("conformance: Harness.Driver is not set")
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var t backend.Traits
	var info backend.Info
	err := finished(ctx, running(func() error {
		d, err := h.Driver(ctx, Client{Prefix: fmt.Sprintf("conf-%x-first:", started)})
		if err != nil {
			return err
		}
		t = d.Traits()
		info, err = core.Of(d).Inspect(ctx, "free")
		return errors.Join(err, d.Close())
	}))
	if err != nil {
		return backend.Traits{}, fmt.Errorf("conformance: a first client: %w", err)
	}
	h.uncounted = info.Waiters < 0
	return t, nil
}
