package memory

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// clientKey is what a client is known by.
type clientKey struct{ prefix, move, id string }

// client is what one has reported, and until when that is kept.
type client struct {
	backend.Client
	until time.Time
}

// Raise implements backend.Raiser.
func (d *Driver) Raise(_ context.Context, floor backend.Token) error {
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counter = max(s.counter, floor)
	return nil
}

// Source implements backend.Gater.
func (d *Driver) Source(context.Context) (backend.Token, error) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.counter, nil
}

// RaiseHeld implements backend.Gater.
func (d *Driver) RaiseHeld(_ context.Context, h *backend.Hold, floor backend.Token) error {
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.locks[d.prefix+h.Name].mine(h.Nonce) {
		return backend.ErrLost
	}
	s.counter = max(s.counter, floor)
	return nil
}

// Gates implements backend.Gater.
func (d *Driver) Gates(context.Context) ([]backend.Gate, error) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return slices.Clone(d.store.gates[d.prefix]), nil
}

// SetGate implements backend.Gater.
func (d *Driver) SetGate(_ context.Context, g backend.Gate, was int64) error {
	if err := backend.CheckGate(g); err != nil {
		return err
	}
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	next, changed, err := backend.ChangeGate(s.gates[d.prefix], g, was)
	if changed {
		s.gates[d.prefix] = next
	}
	return err
}

// Undrained implements backend.Gater.
func (d *Driver) Undrained(_ context.Context, g backend.Gate) ([]backend.Info, error) {
	g.State = backend.GateBoth
	var left []backend.Info
	for _, key := range d.store.keys(d.prefix) {
		name := strings.TrimPrefix(key, d.prefix)
		if !g.Scope.Moves(name) {
			continue
		}
		info, _ := d.store.inspect(key)
		info.Name = name
		if r := d.store.holder(key); r != nil && !g.Admits(r.Move, r.Phase) {
			left = append(left, info)
		}
	}
	return left, nil
}

// holder returns the request that holds a lock, or nil.
func (s *store) holder(key string) *backend.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[key]; l != nil && l.holder != nil && time.Now().Before(l.expires) {
		return l.holder
	}
	return nil
}

// Report implements backend.Gater.
func (d *Driver) Report(_ context.Context, c backend.Client, keep time.Duration) error {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	d.store.clients[clientKey{d.prefix, c.Move, c.ID}] = client{c, time.Now().Add(keep)}
	return nil
}

// Withdraw implements backend.Gater.
func (d *Driver) Withdraw(_ context.Context, c backend.Client) error {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	delete(d.store.clients, clientKey{d.prefix, c.Move, c.ID})
	return nil
}

// Clients implements backend.Gater.
func (d *Driver) Clients(_ context.Context, move string) ([]backend.Client, error) {
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var cs []backend.Client
	for k, c := range s.clients {
		switch {
		case !time.Now().Before(c.until):
			delete(s.clients, k)
		case k.prefix == d.prefix && k.move == move:
			cs = append(cs, c.Client)
		}
	}
	return cs, nil
}
