package migrate

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/fencelock/fencelock/backend"
)

// store is one of the two, which may not be open yet. The driver of one that the phase locks in is there from the
// beginning, and never changes.
type store struct {
	what string // "old" or "new", for messages
	open func(ctx context.Context) (backend.Driver, error)

	now       atomic.Pointer[opened]
	dialing   chan struct{} // full while somebody opens it
	late      bool          // it was opened by open; written by who dials, read when nobody does
	reporting chan struct{} // full while a report is under way
}

// opened is a store's driver and its gates.
type opened struct {
	driver backend.Driver
	gates  backend.Gater
}

func newStore(what string, d backend.Driver, open func(context.Context) (backend.Driver, error)) (*store, error) {
	s := &store{what: what, open: open, dialing: make(chan struct{}, 1), reporting: make(chan struct{}, 1)}
	if d == nil {
		return s, nil
	}
	return s, s.set(d)
}

// set takes a driver in.
func (s *store) set(d backend.Driver) error {
	g, ok := d.(backend.Gater)
	if !ok {
		return backend.Unsupported("the %s store, %s, cannot take part in a "+
			"migration: it has no gates", s.what, d.Traits().Name)
	}
	s.now.Store(&opened{d, g})
	return nil
}

// both returns the driver and its gates; nil if it is not open. It never waits: every lock asks it.
func (s *store) both() (backend.Driver, backend.Gater) {
	o := s.now.Load()
	if o == nil {
		return nil, nil
	}
	return o.driver, o.gates
}

// gater returns the store's gates, and opens the store for that if it must.
func (s *store) gater(ctx context.Context) (backend.Gater, error) {
	if _, g := s.both(); g != nil {
		return g, nil
	}
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("the %s store: %w", s.what, ctx.Err())
	}
	if _, g := s.both(); g != nil {
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
	_, g := s.both()
	return g, nil
}

// closeOther closes what open has opened. Nobody dials any more.
func (s *store) closeOther() {
	if s.late {
		d, _ := s.both()
		_ = d.Close() // New failed already, and says why
		s.now.Store(nil)
	}
}

// close closes the driver. Nobody dials any more.
func (s *store) close() error {
	d, _ := s.both()
	if d == nil {
		return nil
	}
	return d.Close()
}
