package migrate

import (
	"context"
	"fmt"
	"sync"

	"github.com/fencelock/fencelock/backend"
)

// store is one of the two, which may not be open yet.
type store struct {
	what string // "old" or "new", for messages
	open func(ctx context.Context) (backend.Driver, error)

	mu     sync.Mutex
	late   bool // it was opened by open
	driver backend.Driver
	gates  backend.Gater
}

func newStore(what string, d backend.Driver, open func(context.Context) (backend.Driver, error)) (*store, error) {
	s := &store{what: what, open: open}
	if d == nil {
		return s, nil
	}
	return s, s.set(d)
}

// set takes a driver in; s.mu is held, or nobody else knows s.
func (s *store) set(d backend.Driver) error {
	g, ok := d.(backend.Gater)
	if !ok {
		return backend.Unsupported("the %s store, %s, cannot take part in a migration: it has no gates", s.what, d.Traits().Name)
	}
	s.driver, s.gates = d, g
	return nil
}

// both returns the driver and its gates; nil if it is not open.
func (s *store) both() (backend.Driver, backend.Gater) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.driver, s.gates
}

// gater returns the store's gates, and opens the store for that if it must.
func (s *store) gater(ctx context.Context) (backend.Gater, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates != nil {
		return s.gates, nil
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
	return s.gates, nil
}

// closeOther closes what open has opened.
func (s *store) closeOther() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late {
		_ = s.driver.Close() // New failed already, and says why
		s.late, s.driver, s.gates = false, nil, nil
	}
}

func (s *store) close() error {
	d, _ := s.both()
	if d == nil {
		return nil
	}
	return d.Close()
}
