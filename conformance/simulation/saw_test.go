package simulation

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// saw is a client's Observer: it holds the engine to what fencelock.Observer says of the events.
type saw struct {
	c *client

	mu    sync.Mutex
	holds map[fencelock.HoldID]string // acquired, or ended
	bad   []string
	times map[string]int // events of each kind, for what the observer does at them

	// Guarded by w.mu.
	blocked int // calls of the observer that block now
	panics  int // at events of no call
}

func newSaw() *saw { return &saw{holds: map[fencelock.HoldID]string{}, times: map[string]int{}} }

// Observe makes the mistakes of what stands between the engine and an observer.
func (s *saw) Observe(ctx context.Context, e fencelock.Event) {
	switch {
	case s.c.w.flaw == eventLost && e.Kind == fencelock.Lost:
		return
	case s.c.w.flaw == eventTwice && e.Kind == fencelock.NotAcquired:
		s.observe(ctx, e)
	case s.c.w.flaw == eventLate:
		e.At = time.Now()
	}
	s.observe(ctx, e)
}

func (s *saw) observe(ctx context.Context, e fencelock.Event) {
	s.mu.Lock()
	was := s.holds[e.Hold]
	switch e.Kind {
	case fencelock.Acquired:
		if was != "" {
			s.bad = append(s.bad, e.Owner+": acquired after it was "+was)
		}
		s.holds[e.Hold] = "acquired"
	case fencelock.Released, fencelock.Lost:
		if was != "acquired" {
			s.bad = append(s.bad, e.Owner+": "+e.Kind.String()+" after it was "+was)
		}
		s.holds[e.Hold] = e.Kind.String()
	}
	s.mu.Unlock()
	k, _ := ctx.Value(callKey{}).(*call)
	if k != nil {
		s.of(k, e)
	}
	switch e.Kind {
	case fencelock.Acquired:
		s.acquired(e)
	case fencelock.Joined:
		if e.Name == common {
			s.c.w.mu.Lock()
			s.c.w.joined(s.c, e)
			s.c.w.mu.Unlock()
		}
	case fencelock.Renewed:
		s.renewed(e)
	case fencelock.Released, fencelock.Lost:
		s.ended(e)
	}
	s.misbehave(k, e)
}

// acquired takes in a grant, or a lock that was passed on.
func (s *saw) acquired(e fencelock.Event) {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.of(e.Owner, e.Token); a != nil && !slices.Contains(a.tokens, e.Token) {
		w.passedOn(a, e)
	}
}

// renewed takes in a renewal.
func (s *saw) renewed(e fencelock.Event) {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.of(e.Owner, e.Token); a != nil {
		w.renewalWas(a, e.At.Add(-e.Took))
	}
}

// ended takes in the end of a hold.
func (s *saw) ended(e fencelock.Event) {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.of(e.Owner, e.Token)
	if a == nil || e.Kind == fencelock.Released && a.shared && w.store.lock(a.name).holder == a {
		return // it may have been passed on
	}
	a.over = e.At
	if e.Kind == fencelock.Lost {
		a.over = e.At.Add(a.r.Grace)
		if e.Reason == fencelock.Expired || e.Reason == fencelock.MaxHold {
			a.kept = a.over
		}
		if h := w.handed[lease{a, e.Token}]; h != nil {
			w.lossWas(a, h.asked, h.le.Deadline(), e.At, e.Err)
			h.gaveUp(e.At)
		}
	}
}

// closed checks what Close came to, of a client whose observer may misbehave. w.mu is held.
func (s *saw) closed(err error) {
	w := s.c.w
	if err == nil && s.panics > 0 {
		w.violation("Close of %s was nil, and its observer had panicked %d times", s.c.id, s.panics)
	}
	if err != nil || s.blocked > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, was := range s.holds {
		if was == "acquired" {
			w.violation("events: a hold of %s has no end, and Close was nil", s.c.id)
		}
	}
}

// afterwards: every hold has had its end. w.mu is held.
func (s *saw) afterwards(w *world) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, bad := range s.bad {
		w.violation("events: %s", bad)
	}
	for _, was := range s.holds {
		if was == "acquired" {
			w.violation("events: a hold of %s has no end after Close", s.c.id)
		}
	}
}

// late is how much later than its deadline a hold may be said to have expired: a local timer tells.
const late = 20 * time.Millisecond
