package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/history"
)

// endAfter is how long the programs of a world may take, in its time: none waits for ever.
const endAfter = 15 * time.Minute

// world is one run: a store, its network, clients, and what was seen.
type world struct {
	seed  uint64
	plan  plan
	flaw  flaw
	began time.Time
	ctx   context.Context // of everything; ends when the programs took too long
	stop  context.CancelFunc

	mu       sync.Mutex
	store    *store
	clients  []*client
	acqs     map[string]*acq   // by nonce
	byOwner  map[string][]*acq // of one call of Lock
	holds    []*hold           // those that are trusted
	called   map[string]string // calls under way, by program
	last     map[string]backend.Token
	accepted map[string]backend.Token // at the resources
	everHeld map[string]bool
	lastEnd  map[string]string
	handed   map[lease]*hold // what was handed out
	inLine   map[*call]bool
	shared   []*shared // leases on the common name that are trusted
	passed   []lease   // what was passed on within a process
	wipes    int
	trouble  time.Time // of the store
	steps    int
	log      []string
	found    []string
	verdicts []history.Verdict // for each lock, of a world that is judged twice
}

// run runs the world of a seed with a mistake, or none, and returns it with what it found.
func run(t *testing.T, seed uint64, f flaw) *world {
	t.Helper()
	return newPlan(seed).run(t, seed, f)
}

func (p plan) run(t *testing.T, seed uint64, f flaw) (w *world) {
	t.Helper()
	w = &world{seed: seed, flaw: f, plan: p}
	// A deadlock of the bubble is a panic that does not say whose; here it is a finding.
	defer func() {
		if r := recover(); r != nil {
			w.found = append(w.found, fmt.Sprint("the bubble: ", r))
		}
	}()
	synctest.Test(t, func(t *testing.T) { w.live(t) })
	w.judge() // outside of the bubble, in which no search would be ended by its timeout
	return w
}

func (w *world) live(t *testing.T) {
	cryptotest.SetGlobalRandom(t, w.seed) // the nonces
	w.began = time.Now()
	w.ctx, w.stop = context.WithCancel(t.Context())
	defer w.stop()
	w.acqs, w.byOwner, w.called = map[string]*acq{}, map[string][]*acq{}, map[string]string{}
	w.last, w.accepted = map[string]backend.Token{}, map[string]backend.Token{}
	w.everHeld, w.lastEnd, w.handed = map[string]bool{}, map[string]string{}, map[lease]*hold{}
	w.inLine = map[*call]bool{}
	w.store = &store{w: w, flaw: w.flaw, guards: map[string]backend.Token{}}
	w.store.reset()
	for i := range w.plan.clients {
		w.clients = append(w.clients, newClient(w, i))
	}
	w.outages()
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { w.watch(done) })
	var programs sync.WaitGroup
	for _, c := range w.clients {
		c.start(&programs)
	}
	programs.Wait()
	for _, c := range w.clients {
		c.close("end")
	}
	// What is still under way arrives, and what nobody freed expires.
	time.Sleep(2*w.plan.longest + 30*time.Second)
	close(done)
	watch.Wait()
	w.afterwards()
}

// watch looks at everything once a second, and ends what takes too long.
func (w *world) watch(done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		w.mu.Lock()
		w.look()
		w.leftBehind()
		w.silent()
		if w.at() > endAfter && w.ctx.Err() == nil {
			for who, what := range w.called {
				w.violation("%s hangs in %s", who, what)
			}
			w.stop()
		}
		w.mu.Unlock()
	}
}

// at is the world's time.
func (w *world) at() time.Duration { return time.Since(w.began) }

// note adds a line to the log; w.mu is held.
func (w *world) note(format string, args ...any) {
	w.steps++
	w.log = append(w.log, fmt.Sprintf("%12v ", w.at().Round(time.Microsecond))+fmt.Sprintf(format, args...))
}

// violation is what no run may show; w.mu is held.
func (w *world) violation(format string, args ...any) {
	w.note("VIOLATION: "+format, args...)
	if len(w.found) == 0 { // what comes after it may come of it
		w.found = append(w.found, fmt.Sprintf(format, args...))
	}
	if !w.plan.goesOn {
		w.stop()
	}
}

// fate is a source of random numbers for one thing that happens: the same in every run of the seed.
func (w *world) fate(what ...any) *rand.Rand {
	h := fnv.New64a()
	for _, x := range what {
		fmt.Fprint(h, x, "\x00")
	}
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// events is the log, with the lines of each instant in one order: goroutines that are ready at once run in any.
func (w *world) events() []string {
	at := func(line string) string { return line[:min(12, len(line))] }
	lines := slices.Clone(w.log)
	for from := 0; from < len(lines); {
		to := from + 1
		for to < len(lines) && at(lines[to]) == at(lines[from]) {
			to++
		}
		slices.Sort(lines[from:to])
		from = to
	}
	return lines
}

// outages plays the store's part of the plan.
func (w *world) outages() {
	for _, o := range w.plan.outages {
		time.AfterFunc(o.from, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.note("store down")
			w.troubled(o.to)
		})
		time.AfterFunc(o.to, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.note("store up again, data lost: %v", o.wiped)
			w.store.restart(o.wiped)
			w.look()
		})
	}
}

// troubled: the store has not been itself until then, on the world's time.
func (w *world) troubled(until time.Duration) {
	if at := w.began.Add(until); at.After(w.trouble) {
		w.trouble = at
	}
}

// bare reports whether the drivers send each thing once. The mistakes of the others are not theirs.
func (w *world) bare() bool { return w.flaw == "" && w.plan.bare || w.flaw == unsureForgotten }

// down reports whether the store is.
func (w *world) down() bool {
	at := w.at()
	for _, o := range w.plan.outages {
		if at >= o.from && at < o.to {
			return true
		}
	}
	return false
}
