package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// gates is what a driver knows of the gates of its keyspace: the data of the node that all locks are under. A multi that
// grants is done only if that node has the version known, so what is known is true then. They are read before the first grant,
// after a change, and after a broken connection.
type gates struct {
	mu    sync.Mutex
	known bool
	now   gateSet
}

// gateSet are the gates as of one version of the node.
type gateSet struct {
	version int32
	list    []backend.Gate
}

// load returns the gates as they are known; it asks the servers if they are not.
func (gs *gates) load(ctx context.Context, s *session) (gateSet, error) {
	gs.mu.Lock()
	known, now := gs.known, gs.now
	gs.mu.Unlock()
	if known {
		return now, nil
	}
	return gs.read(ctx, s)
}

// read asks the servers for the gates: what the leader has.
func (gs *gates) read(ctx context.Context, s *session) (gateSet, error) {
	var n node
	err := s.ensured(ctx, func() (err error) {
		n, err = synced(ctx, s, s.d.at.locks)
		return err
	})
	if err != nil {
		return gateSet{}, err
	}
	set := gateSet{version: n.stat.Version}
	if len(n.data) > 0 {
		if set.list, err = backend.DecodeGates(n.data); err != nil {
			return gateSet{}, fmt.Errorf("the node %s: %w", s.d.at.locks, err)
		}
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.known, gs.now = true, set
	return set, nil
}

// outdated notes that the gates are not s any more.
func (gs *gates) outdated(s gateSet) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.now.version == s.version {
		gs.known = false
	}
}

// forget makes the next grant ask the servers.
func (gs *gates) forget() {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.known = false
}

// same is the operation that fails unless the gates are those of g.
func (g gateSet) same(at places) *zk.CheckVersionRequest {
	return &zk.CheckVersionRequest{Path: at.locks, Version: g.version}
}

// isRefusal reports whether err is that of a gate.
func isRefusal(err error) bool {
	var refusal *backend.GateError
	return errors.As(err, &refusal)
}

// admitted returns gates that let the request in; or their refusal, as of a moment after the call.
func (e *entry) admitted(ctx context.Context, s *session) (gateSet, error) {
	g, err := e.d.gates.load(ctx, s)
	if err != nil {
		return g, err
	}
	gated, err := backend.Admit(g.list, e.r)
	if err != nil {
		if g, err = e.d.gates.read(ctx, s); err != nil {
			return g, err
		}
		gated, err = backend.Admit(g.list, e.r)
	}
	e.ungated = e.r.Move != "" && !gated
	return g, err
}

// Gates implements backend.Gater.
func (d *Driver) Gates(ctx context.Context) ([]backend.Gate, error) {
	s, err := d.any(ctx)
	if err != nil {
		return nil, err
	}
	defer s.unuse()
	g, err := d.gates.read(ctx, s)
	return slices.Clone(g.list), err
}

// SetGate implements backend.Gater. All gates are in one node, so a gate of the ZooKeeper backend is never Torn.
func (d *Driver) SetGate(ctx context.Context, gate backend.Gate, was int64) error {
	if err := backend.CheckGate(gate); err != nil {
		return err
	}
	s, err := d.any(ctx)
	if err != nil {
		return err
	}
	defer s.unuse()
	for cuts := 0; ; {
		err := s.setGate(ctx, gate, was)
		switch {
		case cutOff(err) && cuts == 0: // once more, on the next connection: it finds whether it was done
			cuts++
		case errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode): // this gate or another one has changed
		default:
			return err
		}
	}
}

// setGate is one try to write a gate.
func (s *session) setGate(ctx context.Context, gate backend.Gate, was int64) error {
	g, err := s.d.gates.read(ctx, s)
	if err != nil {
		return err
	}
	next, changed, err := backend.ChangeGate(g.list, gate, was)
	if !changed {
		return err
	}
	data := backend.EncodeGates(next)
	_, err = call(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(s.d.at.locks, data, g.version) })
	if err == nil {
		s.d.gates.outdated(g)
	}
	return err
}
