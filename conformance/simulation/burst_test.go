package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// passOn is for how long a process passes a lock on without asking the store, counted from the
// grant; word is how old the grant may be for that when it is seen.
const (
	passOn = 3 * time.Millisecond
	word   = 100 * time.Millisecond
)

// lease is one lease on an acquisition: the first, or one to whom the lock was passed on.
type lease struct {
	a     *acq
	token backend.Token
}

// has reports whether a token is one that the store gave to the acquisition.
func (a *acq) has(t backend.Token) bool {
	for i, first := range a.tokens {
		if t == first || i == len(a.tokens)-1 && t > first && t <= first+backend.Token(a.reserved) {
			return true
		}
	}
	return false
}

// of finds the acquisition of an owner that a token belongs to, or nil. w.mu is held.
func (w *world) of(owner string, t backend.Token) *acq {
	for _, a := range w.byOwner[owner] {
		if a.has(t) && a.name != common { // there several may have it
			return a
		}
	}
	return nil
}

// burster makes several goroutines of a client take turns with one lock, each for a moment.
type burster struct {
	c   *client
	w   *world
	rnd *rand.Rand
	n   int
}

func (b *burster) run() {
	for range 3 {
		time.Sleep(between(b.rnd, 0, 12*time.Second))
		b.c.stall()
		if b.w.ctx.Err() != nil {
			return
		}
		b.n++
		b.burst()
	}
}

func (b *burster) burst() {
	w := b.w
	key := fmt.Sprintf("%s/b%d", b.c.id, b.n)
	o := ask{name: names[b.rnd.IntN(4)/3], ttl: w.plan.ttl, wait: true, manual: b.rnd.IntN(5) == 0}
	w.mu.Lock()
	b.c.bursts[key] = true
	w.mu.Unlock()
	var wg sync.WaitGroup
	for i := range 2 + b.rnd.IntN(5) {
		p := &program{c: b.c, w: w, id: fmt.Sprintf("%s.%d", key, i), key: key}
		p.rnd = w.fate("program", p.id)
		wg.Go(func() {
			for range 1 + p.rnd.IntN(3) {
				time.Sleep(between(p.rnd, time.Microsecond, 4*time.Millisecond))
				p.c.stall()
				if w.ctx.Err() != nil {
					return
				}
				p.pass(o)
			}
		})
	}
	wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.byOwner[key] {
		if a.over.IsZero() {
			a.over = time.Now()
		}
	}
}

// pass takes the lock for a moment.
func (p *program) pass(o ask) {
	opts := []fencelock.Option{fencelock.WithOwner(p.key), fencelock.WithTTL(o.ttl)}
	if o.manual {
		opts = append(opts, fencelock.WithManualRenew())
	}
	switch p.rnd.IntN(16) {
	case 0: // it cannot have what another one had
		o.ttl *= 2
		opts = append(opts, fencelock.WithTTL(o.ttl))
	case 1:
		o.maxHold = o.ttl
		opts = append(opts, fencelock.WithMaxHold(o.maxHold))
	case 2:
		p.w.mu.Lock()
		o.floor = p.w.last[o.name]
		p.w.mu.Unlock()
		opts = append(opts, fencelock.WithFloor(o.floor))
	case 3:
		o.wait = false
	}
	ctx, cancel, most := p.w.ctx, context.CancelFunc(func() {}), time.Duration(0)
	if p.chance(1, 5) {
		most = between(p.rnd, time.Microsecond, 60*time.Millisecond)
		ctx, cancel = context.WithTimeout(ctx, most)
	}
	defer cancel()
	m := p.c.locker.Mutex(o.name, opts...)
	var le *fencelock.Lease
	var err error
	k := p.lock(ctx, o, most)
	if o.wait {
		k.run(func(ctx context.Context) { le, err = m.Lock(ctx) })
	} else {
		k.run(func(ctx context.Context) { le, err = m.TryLock(ctx) })
	}
	h := p.shares(k, o, le, err)
	if h == nil {
		return
	}
	p.handle(h)
}

// shares checks what Lock came to. It does not ask for the handle, which would keep the lock from
// being passed on.
func (p *program) shares(k *call, o ask, le *fencelock.Lease, err error) *hold {
	w := p.w
	var done <-chan struct{}
	if le != nil {
		done = le.Done()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.note("%s: lock: %v", p.id, err)
		p.refused(k.ctx, o, err)
		return nil
	}
	if k.panicked != 0 {
		return nil
	}
	w.note("%s: lock: token %d", p.id, le.Token())
	a := w.of(p.key, le.Token())
	if a == nil {
		w.violation("%s: it has token %d, which the store has not given to its process", p.id, le.Token())
		return nil
	}
	if h := w.handed[lease{a, le.Token()}]; h != nil {
		w.violation("%s: its token is %d, which another one has had", p.id, le.Token())
	}
	h := &hold{a: a, le: le, asked: o, granted: time.Now(), done: done}
	w.taken(k, h)
	return h
}

// handle does what takes a moment, mostly, and unlocks.
func (p *program) handle(h *hold) {
	time.Sleep(between(p.rnd, time.Microsecond, 900*time.Microsecond))
	defer p.finish(h)
	switch p.rnd.IntN(14) {
	case 0:
		p.w.mu.Lock()
		h.handled = true
		p.w.mu.Unlock()
		h.le.Handle()
	case 1:
		p.renew(h)
	case 2, 3:
		p.write(h)
	case 4:
		p.rest(0, h.asked.ttl)
	case 5: // it is unlocked while a renewal is under way
		q := &program{c: p.c, w: p.w, id: p.id + "+", key: p.key, rnd: p.w.fate("beside", p.id)}
		go q.renew(h)
		time.Sleep(between(p.rnd, time.Microsecond, 300*time.Microsecond))
	}
}

// passedOn checks a lock that was passed on within its process: e is the new holder's Acquired.
// w.mu is held.
func (w *world) passedOn(a *acq, e fencelock.Event) {
	w.passed = append(w.passed, lease{a, e.Token})
	if age := e.At.Sub(a.seen.Time()); age >= passOn {
		w.violation("%s is passed on %v after the store's grant", a.id, age)
	}
	if old := a.seen.Sub(a.asked); old >= word {
		w.violation("%s is passed on, and its grant came %v after it was asked for", a.id, old)
	}
	before := w.handed[lease{a, e.Token - 1}]
	switch {
	case before == nil:
		w.violation("%s is passed on with token %d, and nobody had the one before", a.id, e.Token)
	case !before.unlocked || !before.isDone():
		w.violation("%s is passed on with token %d, and its holder has not unlocked it", a.id, e.Token)
	case before.handled:
		w.violation("%s is passed on with token %d, and its holder had its handle", a.id, e.Token)
	}
	a.unlocking = false
	w.last[a.name] = max(w.last[a.name], e.Token)
}

// order checks that who gets a lease stood first in its line. w.mu is held.
func (w *world) order(k *call) {
	for other := range w.inLine {
		inFront := other.what == "Lock" && other.c == k.c && other.name == k.name && !other.got &&
			!other.arrived.IsZero() && other.arrived.Before(k.arrived) // at one instant: in any order
		if inFront && other.ctx.Err() == nil && other.panicked == 0 && !k.c.closing {
			w.violation("%s gets %q before %s, which came before it", k.who, k.name, other.who)
		}
	}
}

// passedAll checks that whoever gave a lock up without the store gave it to somebody. w.mu is held.
func (w *world) passedAll() {
	next := map[lease]bool{}
	for _, l := range w.passed {
		next[l] = true
	}
	for l, h := range w.handed {
		if h.passes && !next[lease{l.a, l.token + 1}] {
			w.violation("%s: Unlock with token %d was nil, and nobody was given the lock", l.a.id, l.token)
		}
	}
}
