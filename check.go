package fencelock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// looks asks one driver whether its holds are still ours, again and again: where the store does not
// tell a holder that its lock was taken away, this keeps Traits.Revoked. It has one timer while
// anything is held, which is for all holds at once, and a goroutine for each call of the driver
// while that is under way. A look allocates nothing for a hold.
type looks struct {
	l      *Locker
	caller core.Caller
	every  time.Duration

	// Guarded by l.mu.
	armed bool // the timer is set, or has just fired
	timer *time.Timer
	dice  dice

	all []*hold // what fire goes through; one runs at a time

	mu   sync.Mutex
	free []*glance // not in use
}

// glance is one call of the driver.
type glance struct {
	holds []*hold
	asked []*core.Hold // the same
	limit time.Duration
}

// armLocked sets the timer for a Locker that holds something; l.mu is held.
func (k *looks) armLocked() {
	if k.armed || k.l.closed {
		return
	}
	k.armed = true
	if k.timer == nil {
		k.timer = time.AfterFunc(k.dice.jitter(k.every), k.fire)
	} else {
		k.timer.Reset(k.dice.jitter(k.every))
	}
}

// stopLocked ends the looks but for those that are under way; l.mu is held, and l is closed.
func (k *looks) stopLocked() {
	if k.timer != nil {
		k.timer.Stop()
	}
}

// fire looks at everything that is held.
func (k *looks) fire() {
	began := backend.Now()
	k.l.mu.Lock()
	if k.armed = !k.l.closed && len(k.l.holds) > 0; !k.armed {
		k.l.mu.Unlock()
		return
	}
	k.all = append(k.all, k.l.holds...)
	k.l.schedule.flying.Add(1)
	k.l.mu.Unlock()
	defer k.l.schedule.flying.Done()

	var gs [64]*glance // by alikeSpan
	for _, h := range k.all {
		if h.route.looks != k || !h.lookable(began, k.every/10) {
			continue
		}
		g := &gs[alikeSpan(h)]
		if *g == nil {
			*g = k.take()
		}
		(*g).add(h)
		if len((*g).holds) == maxBatch {
			k.send(*g)
			*g = nil
		}
	}
	for _, g := range gs {
		if g != nil {
			k.send(g)
		}
	}
	clear(k.all)
	k.all = k.all[:0]

	k.l.mu.Lock()
	defer k.l.mu.Unlock()
	if !k.l.closed {
		k.timer.Reset(k.dice.jitter(k.every) - began.Elapsed())
	}
}

func (k *looks) send(g *glance) { k.l.schedule.flying.Go(func() { k.ask(g) }) }

// ask asks the driver and takes in what it answers.
func (k *looks) ask(g *glance) {
	ctx, cancel := context.WithTimeout(k.l.ctx, g.limit)
	defer cancel()
	for i, err := range k.caller.Check(ctx, g.asked) {
		g.holds[i].checked(err)
	}
	k.give(g)
}

// take returns an empty glance.
func (k *looks) take() *glance {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.free); n > 0 {
		g := k.free[n-1]
		k.free = k.free[:n-1]
		return g
	}
	return &glance{limit: core.Patience}
}

// give takes one back.
func (k *looks) give(g *glance) {
	clear(g.holds)
	clear(g.asked)
	g.holds, g.asked, g.limit = g.holds[:0], g.asked[:0], core.Patience
	k.mu.Lock()
	defer k.mu.Unlock()
	k.free = append(k.free, g)
}

// add puts in a hold, which bounds the call by a third of its TTL: so there is time for a renewal after it.
func (g *glance) add(h *hold) {
	g.holds, g.asked = append(g.holds, h), append(g.asked, h.bh)
	g.limit = min(g.limit, callMost(h))
}

// lookable reports whether h may be looked at now; then it is with the driver. Not if the store has confirmed it just
// now, and not if it is to be renewed: a renewal tells the same and more, and a look must not stand in its way.
func (h *hold) lookable(now backend.Instant, young time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := now.Time()
	if h.err != nil || !h.held || h.leaving || h.flying || h.overdue {
		return false
	}
	if due := !h.renewal.IsZero() && !at.Before(h.renewal); due || at.Sub(h.fresh.Time()) < young ||
		now.Sub(h.asked) < young {
		return false
	}
	h.flying = true
	return true
}

// checked takes in the store's answer to a look at the hold.
func (h *hold) checked(answer error) {
	h.land()
	if errors.Is(answer, ErrLost) {
		h.lost(answer) // which takes no heed of it once Unlock was called: that may have freed the lock
	}
}
