package fencelock

import (
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// sleepsEvery is how often a Locker that holds something looks whether the machine has slept.
const sleepsEvery = 500 * time.Millisecond

// sleeps notices that the machine was suspended. Timers stand still meanwhile, so afterwards they
// are late by as much as it slept: those of deadlines and those of renewals. It has one timer while
// anything is held. Where the system does not tell how long the machine slept (all but Linux) it
// notices nothing.
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
	if s.armed || s.l.closed {
		return
	}
	s.armed, s.last = true, backend.Now()
	if s.timer == nil {
		s.timer = time.AfterFunc(sleepsEvery, s.fire)
	} else {
		s.timer.Reset(sleepsEvery)
	}
}

// stopLocked ends it; l.mu is held, and l is closed.
func (s *sleeps) stopLocked() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (s *sleeps) fire() {
	now, l := backend.Now(), s.l
	l.mu.Lock()
	if s.armed = !l.closed && len(l.holds) > 0; !s.armed {
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
	l.schedule.flying.Add(1)
	l.mu.Unlock()
	defer l.schedule.flying.Done()
	for _, h := range all {
		h.tick() // which looks, and sets the timer anew
	}
	l.schedule.woken(late)
}
