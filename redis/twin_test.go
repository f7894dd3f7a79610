package redis_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// What the scripts grant, in which order, and with which slots and tokens, is what the memory driver
// grants, whatever is asked: random runs of exclusive claims, readers and permits of several limits on
// one name. No time passes, so a waiter that is woken asks at once.
func TestTwins(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	ds := [2]backend.Driver{}
	var err error
	ds[0], err = memory.New()
	must(t, err)
	ds[1], err = redis.New(c, nil)
	must(t, err)
	for _, d := range ds {
		t.Cleanup(func() { must(t, d.Close()) })
	}
	runs := 300
	if testing.Short() {
		runs = 60
	}
	grants := map[backend.Mode]int{}
	for seed := range runs {
		tw := &twins{ds: ds, seed: seed, random: rand.New(rand.NewPCG(uint64(seed), 7)), grants: grants}
		tw.name = fmt.Sprint("twin-", seed)
		if err := tw.run(t.Context()); err != nil {
			t.Fatalf("seed %d: %v after:\n\t%s", seed, err, strings.Join(tw.did, "\n\t"))
		}
	}
	t.Logf("grants: %v", grants)
	awaitTombstones(t, c, time.Second) // those of Break
}

// twin is one claim, with both drivers.
type twin struct {
	cs   [2]*backend.Claim
	held bool
	at   int // its place in the order of those that came
}

func (w *twin) String() string {
	c := w.cs[0]
	return fmt.Sprintf("%d, %v of %d", w.at, c.Mode, c.Limit)
}

type twins struct {
	ds     [2]backend.Driver
	seed   int
	name   string
	random *rand.Rand
	live   []*twin // that hold or wait, as they came
	came   int
	last   [2]backend.Token // the greatest so far
	grants map[backend.Mode]int
	did    []string
}

type unheard struct{}

func (unheard) Wake(time.Duration) {}

func (tw *twins) note(format string, args ...any) {
	tw.did = append(tw.did, fmt.Sprintf(format, args...))
}

// run makes random steps, and ends all.
func (tw *twins) run(ctx context.Context) error {
	for range 40 {
		if err := tw.step(ctx); err != nil {
			return err
		}
		if err := tw.alike(ctx); err != nil {
			return err
		}
	}
	for len(tw.live) > 0 {
		if err := tw.leave(ctx, tw.random.IntN(len(tw.live))); err != nil {
			return err
		}
	}
	return tw.alike(ctx)
}

func (tw *twins) step(ctx context.Context) error {
	n := len(tw.live)
	switch what := tw.random.IntN(20); {
	case n == 0 || what < 9 && n < 9:
		return tw.come(ctx, tw.random.IntN(4) > 0)
	case what < 16:
		return tw.leave(ctx, tw.random.IntN(n))
	case what < 19:
		return tw.keep(ctx, tw.live[tw.random.IntN(n)])
	default:
		return tw.breakIt(ctx)
	}
}

// come asks for a new claim.
func (tw *twins) come(ctx context.Context, wait bool) error {
	tw.came++
	w := &twin{at: tw.came}
	mode := backend.Mode(tw.random.IntN(3))
	limit := 0
	if mode == backend.Permit {
		limit = 2 + tw.random.IntN(3)
	}
	auto := tw.random.IntN(3) > 0
	for i, d := range tw.ds {
		w.cs[i] = &backend.Claim{Waker: unheard{}, Request: &backend.Request{
			Name: tw.name, Nonce: fmt.Sprintf("%016x%016x", tw.seed, tw.came),
			Owner: fmt.Sprint("owner ", tw.came), TTL: time.Minute, Mode: mode, Limit: limit, Wait: wait, Auto: auto,
			Lost: func(error) {},
		}}
		if wait {
			if err := d.Enter(ctx, w.cs[i]); err != nil {
				return err
			}
		}
	}
	tw.note("%v comes, wait %v", w, wait)
	if err := tw.ask(ctx, w); err != nil {
		return err
	}
	if w.held || wait {
		tw.live = append(tw.live, w)
	}
	return tw.settle(ctx)
}

// ask asks both, whose answers must be alike.
func (tw *twins) ask(ctx context.Context, w *twin) error {
	for i, d := range tw.ds {
		c := w.cs[i]
		c.Err, c.Queued, c.Next = nil, false, 0
		d.Ask(ctx, []*backend.Claim{c})
		if c.Err != nil && !errors.Is(c.Err, backend.ErrLocked) {
			return fmt.Errorf("%v: %w", w, c.Err)
		}
	}
	a, b := w.cs[0], w.cs[1]
	if (a.Err == nil) != (b.Err == nil) || a.Queued != b.Queued {
		return fmt.Errorf("%v: want %v, queued %v; got %v, queued %v", w, a.Err, a.Queued, b.Err, b.Queued)
	}
	if a.Err != nil || w.held {
		return nil
	}
	w.held = true
	tw.grants[a.Mode]++
	tw.note("\t%v has it, slot %d and %d, tokens %d and %d", w, a.Slot, b.Slot, a.Token, b.Token)
	if a.Slot != b.Slot {
		return fmt.Errorf("%v: want slot %d, got %d", w, a.Slot, b.Slot)
	}
	for i, c := range w.cs {
		if same := c.Token == tw.last[i]; c.Token < tw.last[i] || same && c.Mode != backend.Reader {
			return fmt.Errorf("%v: driver %d: token %d after %d", w, i, c.Token, tw.last[i])
		}
	}
	if same := a.Token == tw.last[0]; same != (b.Token == tw.last[1]) {
		return fmt.Errorf("%v: has the token of the last grant: want %v, got %v", w, same, !same)
	}
	tw.last = [2]backend.Token{a.Token, b.Token}
	for i, c := range w.cs {
		c.Held = true
		if c.Short == 0 {
			continue
		}
		if err := tw.ds[i].Keep(ctx, []*backend.Claim{c}, true)[0]; err != nil {
			return fmt.Errorf("%v: the renewal of what a push gave: %w", w, err)
		}
	}
	return nil
}

// settle lets the waiters ask, in their order, until nobody is granted any more.
func (tw *twins) settle(ctx context.Context) error {
	for again := true; again; {
		again = false
		for _, w := range tw.live {
			if w.held {
				continue
			}
			if err := tw.ask(ctx, w); err != nil {
				return err
			}
			again = again || w.held
		}
	}
	return nil
}

func (tw *twins) leave(ctx context.Context, at int) error {
	w := tw.live[at]
	tw.note("%v leaves, held %v", w, w.held)
	tw.live = slices.Delete(tw.live, at, at+1)
	for i, d := range tw.ds {
		c := w.cs[i]
		c.Err, c.Queued, c.Next, c.Leaving = nil, false, 0, true
		if d.Calls().Mixed {
			d.Ask(ctx, []*backend.Claim{c})
		} else {
			d.Leave(ctx, []*backend.Claim{c})
		}
		if c.Err != nil {
			return fmt.Errorf("%v leaves: %w", w, c.Err)
		}
	}
	return tw.settle(ctx)
}

func (tw *twins) keep(ctx context.Context, w *twin) error {
	extend := tw.random.IntN(2) == 0
	for i, d := range tw.ds {
		if err := d.Keep(ctx, []*backend.Claim{w.cs[i]}, extend)[0]; (err == nil) != w.held {
			return fmt.Errorf("%v, held %v: driver %d keeps it: %w", w, w.held, i, err)
		}
	}
	return nil
}

// breakIt ends all holds, and each holder learns that it has lost the lock.
func (tw *twins) breakIt(ctx context.Context) error {
	tw.note("Break")
	var held []*twin
	tw.live = slices.DeleteFunc(tw.live, func(w *twin) bool {
		if w.held {
			held = append(held, w)
		}
		return w.held
	})
	for i, d := range tw.ds {
		if err := d.Break(ctx, tw.name); err != nil {
			return err
		}
		for _, w := range held {
			for _, extend := range []bool{false, true} {
				if err := d.Keep(ctx, []*backend.Claim{w.cs[i]}, extend)[0]; !errors.Is(err, backend.ErrLost) {
					return fmt.Errorf("%v after Break: driver %d keeps it: %v", w, i, err)
				}
			}
		}
	}
	return tw.settle(ctx)
}

// alike compares what a look tells, and the tokens of those that hold.
func (tw *twins) alike(ctx context.Context) error {
	var infos [2]backend.Info
	for i, d := range tw.ds {
		for info, err := range d.Look(ctx, backend.Range{Name: tw.name}) {
			if err != nil {
				return err
			}
			infos[i] = info
		}
	}
	a, b := infos[0], infos[1]
	if a.Held != b.Held || a.Mode != b.Mode || a.Holders != b.Holders || a.Waiters != b.Waiters || a.Owner != b.Owner ||
		a.Pending != b.Pending {
		return fmt.Errorf("a look: want %+v, got %+v", a, b)
	}
	var held []*twin
	for _, w := range tw.live {
		if w.held {
			held = append(held, w)
		}
	}
	top := [2]backend.Token{}
	for _, w := range held {
		for i, c := range w.cs {
			top[i] = max(top[i], c.Token)
		}
		for _, o := range held {
			if x, y := cmp.Compare(w.cs[0].Token, o.cs[0].Token), cmp.Compare(w.cs[1].Token, o.cs[1].Token); x != y {
				return fmt.Errorf("the tokens of %v and %v: want order %d, got %d", w, o, x, y)
			}
		}
	}
	for i, info := range infos {
		if info.Token != top[i] {
			return fmt.Errorf("a look at driver %d: got token %d, want %d", i, info.Token, top[i])
		}
	}
	return nil
}
