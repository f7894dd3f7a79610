package migrate

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// store is one of the two, which may not be open yet. The driver of one that the phase locks in is there from the
// beginning, and never changes.
type store struct {
	what string // "old" or "new", for messages
	open func(ctx context.Context) (backend.Driver, error)

	now       atomic.Pointer[core.Gater]
	dialing   chan struct{} // full while it is being opened
	late      bool          // it was opened by open; guarded by dialing
	reporting chan struct{} // full while a report is under way
	told      atomic.Int64  // the longest TTL that it was told
}

// knows reports whether the store was told of a TTL as long as this one.
func (s *store) knows(ttl time.Duration) bool { return int64(ttl) <= s.told.Load() }

func newStore(what string, d backend.Driver, open func(context.Context) (backend.Driver, error)) (*store, error) {
	s := &store{what: what, open: open, dialing: make(chan struct{}, 1), reporting: make(chan struct{}, 1)}
	if d == nil {
		return s, nil
	}
	return s, s.set(d)
}

// set takes a driver in.
func (s *store) set(d backend.Driver) error {
	g, err := gaterOf(s.what, d)
	if err == nil {
		s.now.Store(&g)
	}
	return err
}

// gaterOf returns the gates of the old or the new store.
func gaterOf(what string, d backend.Driver) (core.Gater, error) {
	g, ok := core.Of(d).(core.Gater)
	if !ok {
		return nil, backend.Unsupported("the %s store, %s, cannot take part in a "+
			"migration: it has no gates", what, d.Traits().Name)
	}
	return g, nil
}

// opened returns the store; nil if it is not open. It never waits: every lock asks it.
func (s *store) opened() core.Gater {
	g := s.now.Load()
	if g == nil {
		return nil
	}
	return *g
}

// gater returns the store's gates, and opens the store for that if it must.
func (s *store) gater(ctx context.Context) (core.Gater, error) {
	if g := s.opened(); g != nil {
		return g, nil
	}
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("the %s store: %w", s.what, ctx.Err())
	}
	if g := s.opened(); g != nil {
		return g, nil
	}
	d, err := s.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("the %s store: %w", s.what, err)
	}
	if err := s.set(d); err != nil {
		_ = d.Close() // the reason is the error to report
		return nil, err
	}
	s.late = true
	return s.opened(), nil
}

// closeOther closes what open has opened. Nobody dials any more.
func (s *store) closeOther() {
	if s.late {
		_ = s.opened().Close() // New failed already, and says why
	}
}
