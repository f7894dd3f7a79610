package simulation

import (
	"context"
	"slices"
	"sync"

	"github.com/fencelock/fencelock"
)

// saw is a client's Observer: it holds the engine to what fencelock.Observer says of the events.
type saw struct {
	c *client

	mu    sync.Mutex
	holds map[fencelock.HoldID]string // acquired, or ended
	bad   []string
}

func newSaw() *saw { return &saw{holds: map[fencelock.HoldID]string{}} }

func (s *saw) Observe(_ context.Context, e fencelock.Event) {
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
	if e.Kind == fencelock.Renewed {
		s.renewed(e)
	}
	if e.Kind == fencelock.Released || e.Kind == fencelock.Lost {
		s.ended(e)
	}
}

// renewed takes in a renewal.
func (s *saw) renewed(e fencelock.Event) {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.byOwner[e.Owner] {
		if slices.Contains(a.tokens, e.Token) {
			w.renewalWas(a, e.At.Add(-e.Took))
		}
	}
}

// ended takes in the end of a hold.
func (s *saw) ended(e fencelock.Event) {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.byOwner[e.Owner] {
		if !slices.Contains(a.tokens, e.Token) {
			continue
		}
		a.over = e.At
		if e.Kind == fencelock.Lost {
			a.over = e.At.Add(a.r.Grace)
			if e.Reason == fencelock.Expired || e.Reason == fencelock.MaxHold {
				a.kept = a.over
			}
			if h := w.byAcq[a]; h != nil {
				w.lossWas(a, h.asked, h.le.Deadline(), e.At, e.Err)
			}
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
