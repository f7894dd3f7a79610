package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// names are the locks of a world.
var names = []string{"a", "a/b"}

const (
	programs = 2 // of one client
	turns    = 4 // of one program
)

// client is one process: a Locker with its own way to the store.
type client struct {
	w      *world
	i      int
	id     string
	faults []fault
	locker *fencelock.Locker
	saw    *saw

	// Guarded by w.mu.
	trouble time.Time // until when its network was not itself
	closing bool
	counts  map[string]int
	bursts  map[string]bool // their owners
	common  []*acq          // of the name that several hold at once
}

func newClient(w *world, i int) *client {
	c := &client{
		w: w, i: i, id: fmt.Sprint("c", i), faults: w.plan.faults[i], counts: map[string]int{},
		bursts: map[string]bool{}, saw: newSaw(),
	}
	for _, f := range c.faults {
		time.AfterFunc(f.from, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.note("%s: fault %d until %v", c.id, f.kind, f.to)
			c.ill(f.to - f.from + 2*w.plan.longest)
		})
	}
	d := newDriver(c)
	c.saw.c = c
	var drv backend.Driver = core.Composite{Caller: d}
	if w.bare() {
		drv = bare{d}
	}
	locker, err := fencelock.New(drv, fencelock.WithTTL(w.plan.ttl), fencelock.WithObserver(c.saw))
	if err != nil {
		panic(err) // a bug of the simulation
	}
	c.locker = locker
	return c
}

// next names the next message of one kind that is about no acquisition.
func (c *client) next(what string) string {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.counts[what]++
	return fmt.Sprintf("%s %s %d", c.id, what, c.counts[what])
}

// start starts the client's programs, and now and then what closes it under them.
func (c *client) start(wg *sync.WaitGroup) {
	for g := range programs {
		p := &program{c: c, w: c.w, id: fmt.Sprintf("%s/g%d", c.id, g)}
		p.rnd = c.w.fate("program", p.id)
		wg.Go(p.run)
	}
	if c.w.plan.shares {
		for i := range sharers {
			wg.Go(c.sharer(i).run)
		}
	}
	if c.w.plan.bursts {
		b := &burster{c: c, w: c.w, rnd: c.w.fate("bursts", c.id)}
		wg.Go(b.run)
	}
	r := c.w.fate("close", c.id)
	if r.IntN(4) == 0 {
		after := between(r, 10*time.Second, 90*time.Second)
		wg.Go(func() {
			time.Sleep(after)
			c.stall()
			c.close("early")
		})
	}
}

// close closes the Locker, and checks how long that takes.
func (c *client) close(when string) {
	w := c.w
	w.mu.Lock()
	first := !c.closing
	c.closing = true
	for _, h := range w.holds {
		if h.a.c == c {
			h.unlocked, h.closed = true, true
			h.gaveUp(time.Now())
		}
	}
	for _, h := range w.shared {
		h.unlocked = h.unlocked || h.c == c
	}
	w.note("%s: close, %s", c.id, when)
	w.mu.Unlock()
	var err error
	w.call(context.Background(), c, c.id+" "+when, "Close", 5*time.Second).
		run(func(context.Context) { err = c.locker.Close() })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("%s: closed: %v", c.id, err)
	if !first && err != nil {
		w.violation("a second Close of %s: %v", c.id, err)
	}
	if err != nil && w.plan.temper == calm && w.flaw == "" && !c.harmless(err) {
		w.violation("Close of %s, all is well: %v", c.id, err)
	}
	if first {
		c.saw.closed(err)
	}
	for _, a := range w.acqs {
		if a.c == c && a.over.IsZero() {
			a.over = time.Now()
		}
	}
}

// harmless reports whether all that Close says is about an observer that misbehaves, or about a
// lease whose time was over while it was released.
func (c *client) harmless(err error) bool {
	m := c.w.plan.manners[c.i]
	for line := range strings.Lines(err.Error()) {
		observer := (m.slow || m.panics) && strings.Contains(line, "observer")
		if !observer && !strings.Contains(line, "maximum hold reached") {
			return false
		}
	}
	return true
}

// program is one goroutine that locks.
type program struct {
	c   *client
	w   *world
	id  string
	rnd *rand.Rand
	n   int // turns
	key string
}

// ask is how a program asks for a lock.
type ask struct {
	name            string
	ttl             time.Duration
	manual, reenter bool
	maxHold, grace  time.Duration
	floor           fencelock.Token
	wait            bool
}

// margin is what must not be trusted of a TTL.
func (o ask) margin() time.Duration { return max(20*time.Millisecond, o.ttl/50) }

func (p *program) run() {
	for range turns {
		p.rest(0, 3*time.Second)
		if p.w.ctx.Err() != nil {
			return
		}
		p.n++
		p.turn()
	}
}

// rest sleeps, and then as long as its client stands still.
func (p *program) rest(least, most time.Duration) {
	time.Sleep(between(p.rnd, least, most))
	p.c.stall()
}

func (p *program) chance(one, of int) bool { return p.rnd.IntN(of) < one }

// draw draws what to ask for.
func (p *program) draw() (ask, []fencelock.Option) {
	o := ask{name: names[0], ttl: p.w.plan.ttl, wait: p.chance(2, 3)}
	if p.chance(1, 4) {
		o.name = names[1]
	}
	p.key = fmt.Sprintf("%s/%d", p.id, p.n)
	opts := []fencelock.Option{fencelock.WithOwner(p.key)}
	if p.chance(1, 5) {
		o.ttl *= 3
	}
	if o.manual = p.chance(1, 4); o.manual {
		opts = append(opts, fencelock.WithManualRenew())
	}
	if p.chance(1, 4) {
		o.maxHold = between(p.rnd, time.Second, 2*o.ttl)
		opts = append(opts, fencelock.WithMaxHold(o.maxHold))
	}
	if p.chance(1, 5) {
		o.grace = 2 * time.Second
		opts = append(opts, fencelock.WithGrace(o.grace))
	}
	if o.reenter = p.chance(1, 3); o.reenter {
		opts = append(opts, fencelock.WithReentrancy())
	}
	if p.chance(1, 5) {
		p.w.mu.Lock()
		o.floor = p.w.store.guards[o.name]
		if p.w.plan.temper != wiping { // ahead of the store's clock; one that lost its data would not catch up at once
			o.floor = time.Now().Add(2 * time.Second).UnixMicro()
		}
		p.w.mu.Unlock()
		opts = append(opts, fencelock.WithFloor(o.floor))
	}
	return o, append(opts, fencelock.WithTTL(o.ttl))
}

// turn asks for a lock once, uses it and gives it back.
func (p *program) turn() {
	if p.chance(1, 12) {
		p.operate()
		return
	}
	o, opts := p.draw()
	m := p.c.locker.Mutex(o.name, opts...)
	ctx, cancel, most := p.patience()
	defer cancel()
	var le *fencelock.Lease
	var err error
	k := p.lock(ctx, o, most)
	if o.wait {
		k.run(func(ctx context.Context) { le, err = m.Lock(ctx) })
	} else {
		k.run(func(ctx context.Context) { le, err = m.TryLock(ctx) })
	}
	h := p.answered(k, o, le, err)
	if h == nil {
		return
	}
	p.use(m, h)
	p.finish(h)
}

// lock is the call that asks for a lock, by somebody whose patience is most.
func (p *program) lock(ctx context.Context, o ask, most time.Duration) *call {
	if o.wait {
		return p.w.call(ctx, p.c, p.id, "Lock", most).in(o.name)
	}
	if most == 0 {
		most = 5 * time.Second
	}
	return p.w.call(ctx, p.c, p.id, "TryLock", min(5*time.Second, most)).in(o.name)
}

// patience draws how long to wait for a lock; 0: as long as it takes.
func (p *program) patience() (context.Context, context.CancelFunc, time.Duration) {
	switch p.rnd.IntN(8) {
	case 0, 1, 2:
		most := between(p.rnd, 50*time.Millisecond, 15*time.Second)
		ctx, cancel := context.WithTimeout(p.w.ctx, most)
		return ctx, cancel, most
	case 3:
		most := between(p.rnd, time.Millisecond, 5*time.Second)
		ctx, cancel := context.WithCancelCause(p.w.ctx)
		time.AfterFunc(most, func() { cancel(errEnough) })
		return ctx, func() { cancel(nil) }, most
	case 4:
		if p.chance(1, 3) {
			ctx, cancel := context.WithCancel(p.w.ctx)
			cancel()
			return ctx, cancel, time.Nanosecond
		}
	}
	ctx, cancel := context.WithCancel(p.w.ctx)
	return ctx, cancel, 0
}
