package fencelock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// looks asks one driver whether its holds are still ours, again and again: where the store does not
// tell a holder that its lock was taken away, this keeps Traits.Revoked. It has one timer while
// anything is held, which is for all holds at once, and a goroutine for each call of the driver
// while that is under way.
type looks struct {
	l      *Locker
	caller core.Caller
	every  time.Duration
	most   int // holds of one call
	// Guarded by l.mu.
	armed bool // the timer is set, or has just fired
	timer *time.Timer
	dice  dice
}

// armLocked sets the timer for a Locker that holds something; l.mu is held.
func (k *looks) armLocked() {
	if k.armed || k.l.closing.Load() {
		return
	}
	k.armed = true
	if k.timer == nil {
		k.timer = time.AfterFunc(k.dice.jitter(k.every), k.fire)
	} else {
		k.timer.Reset(k.dice.jitter(k.every))
	}
}

// fire looks at everything that is held.
func (k *looks) fire() {
	began := backend.Now()
	k.l.mu.Lock()
	if k.armed = !k.l.closing.Load() && len(k.l.holds) > 0; !k.armed {
		k.l.mu.Unlock()
		return
	}
	all := slices.Clone(k.l.holds)
	k.l.schedule.flying.Add()
	k.l.mu.Unlock()
	defer k.l.schedule.flying.Done()
	var alike [64][]*hold // by alikeSpan
	for _, h := range all {
		if h.route.looks == k && h.lookable(began, k.every/10) {
			span := alikeSpan(h)
			alike[span] = append(alike[span], h)
		}
	}
	for _, hs := range alike {
		for batch := range slices.Chunk(hs, k.most) {
			k.l.schedule.flying.Go(func() { k.ask(batch) })
		}
	}
	k.l.mu.Lock()
	defer k.l.mu.Unlock()
	if !k.l.closing.Load() {
		k.timer.Reset(k.dice.jitter(k.every) - began.Elapsed())
	}
}

// ask asks the driver and takes in what it answers. A third of the shortest TTL bounds the call: so
// there is time for a renewal after it.
func (k *looks) ask(hs []*hold) {
	asked, limit := make([]*core.Hold, len(hs)), core.Patience
	for i, h := range hs {
		asked[i], limit = h.bh, min(limit, callMost(h))
	}
	ctx, cancel := context.WithTimeout(k.l.ctx, limit)
	defer cancel()
	for i, err := range k.caller.Check(ctx, asked) {
		hs[i].checked(err)
	}
}

// lookable takes the turn for a look at h, and reports whether it has. It does not if the store has just confirmed h,
// nor if h is to be renewed: a renewal tells the same and more, and a look must not stand in its way.
func (h *hold) lookable(now backend.Instant, young time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := now.Time()
	if h.state != held || h.renewing.taken || h.overdue {
		return false
	}
	if due := !h.renewal.IsZero() && !at.Before(h.renewal); due || at.Sub(h.fresh.Time()) < young ||
		now.Sub(h.asked) < young {
		return false
	}
	h.renewing.taken = true
	return true
}

// checked takes in the store's answer to a look at the hold.
func (h *hold) checked(answer error) {
	h.give(&h.renewing)
	if errors.Is(answer, ErrLost) {
		h.lost(answer) // which takes no heed of it once Unlock was called: that may have freed the lock
	}
}

// sleepsEvery is how often a Locker that holds something looks whether the machine has slept.
const sleepsEvery = 500 * time.Millisecond

// sleeps notices that the machine was suspended. Timers stand still meanwhile, so afterwards the timers
// of deadlines and renewals are late by as much as it slept. It has one timer while anything is held. If
// the system does not tell how long the machine slept (all but Linux) it notices nothing.
type sleeps struct {
	l *Locker

	// Guarded by l.mu.
	armed bool
	timer *time.Timer
	last  backend.Instant
	slept func(from, to backend.Instant) time.Duration
}

// slept is how long the machine was suspended between two moments.
func slept(from, to backend.Instant) time.Duration { return to.Sub(from) - to.Time().Sub(from.Time()) }

// armLocked sets the timer for a Locker that holds something; l.mu is held.
func (s *sleeps) armLocked() {
	if s.armed || s.l.closing.Load() {
		return
	}
	s.armed, s.last = true, backend.Now()
	if s.timer == nil {
		s.timer = time.AfterFunc(sleepsEvery, s.fire)
	} else {
		s.timer.Reset(sleepsEvery)
	}
}

func (s *sleeps) fire() {
	now, l := backend.Now(), s.l
	l.mu.Lock()
	if s.armed = !l.closing.Load() && len(l.holds) > 0; !s.armed {
		l.mu.Unlock()
		return
	}
	late := s.slept(s.last, now)
	s.last = now
	s.timer.Reset(sleepsEvery)
	if late <= 0 {
		l.mu.Unlock()
		return
	}
	all := slices.Clone(l.holds)
	l.schedule.flying.Add()
	l.mu.Unlock()
	defer l.schedule.flying.Done()
	for _, h := range all {
		h.tick() // which looks, and sets the timer anew
	}
	l.schedule.woken(late)
}

// dice are what the engine puts things off by chance with. They follow from a nonce: a test that
// seeds the nonces repeats everything.
type dice struct{ pcg rand.PCG }

// seed makes dice of a nonce, other ones for each number.
func (d *dice) seed(nonce string, n uint64) {
	s, _ := strconv.ParseUint(nonce[:16], 16, 64) // it is of hex digits
	d.pcg.Seed(s, n)
}

// below draws a time from zero up to most, not included.
func (d *dice) below(most time.Duration) time.Duration {
	return time.Duration(d.pcg.Uint64() % uint64(most))
}

// jitter takes up to a tenth off t, so that holders do not march in step.
func (d *dice) jitter(t time.Duration) time.Duration { return t - d.below(t/10+1) }
