package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// Release implements backend.Driver: one multi.
func (d *Driver) Release(ctx context.Context, h *backend.Hold) error {
	d.mu.Lock()
	e, done := d.entries[h.Nonce], d.ended.released(h.Nonce)
	d.mu.Unlock()
	switch {
	case done:
		return nil
	case e == nil || e.grant == nil || e.lapsed():
		return backend.ErrLost
	}
	e.mu.Lock()
	e.leaving = true
	e.mu.Unlock()
	err := e.release(ctx)
	if cutOff(err) { // once more, on the next connection
		err = e.release(ctx)
	}
	switch {
	case err == nil:
		d.finish(e, released)
	case errors.Is(err, errEnded):
		err = &backend.LostError{Reason: backend.SessionLost}
	}
	return err
}

// release deletes the holder's node, and the lock's if nobody waits, as far as we know, in one step. Where somebody waits the lock's
// node tells the next one, and the answer whether there is one.
func (e *entry) release(ctx context.Context) error {
	for tries := 0; ; tries++ {
		u := e.parting
		if u == nil {
			u = &unit{ops: []any{&zk.DeleteRequest{Path: e.held, Version: -1}}, noted: true, ended: e.takeOff()}
			if e.others {
				u.ops = append(u.ops, &zk.SetDataRequest{Path: e.lock, Data: passing{e.r.Nonce, e.counter.version, e.counter.last}.bytes(), Version: -1})
			} else {
				u.ops = append(u.ops, &zk.DeleteRequest{Path: e.lock, Version: -1})
			}
			e.parting = u
			_, _ = e.s.send(ctx, u)
		}
		if err := u.await(ctx); err != nil {
			return err // what becomes of the unit, the next call finds out
		}
		e.parting = nil
		switch {
		case u.err == nil:
			if e.others && (u.stat == nil || u.stat.NumChildren == 0) {
				e.d.flying.Go(e.tidy)
			}
			return nil
		case u.index == 0 && errors.Is(u.err, zk.ErrNoNode):
			return backend.ErrLost
		case tries == 4:
			return u.err
		case u.index == 1 && errors.Is(u.err, zk.ErrNotEmpty):
			e.others = true
		case u.index == len(u.ops): // the mark
			if err := e.s.ensure(ctx); err != nil {
				return err
			}
		case errors.Is(u.err, errTaken): // at the end of this ctx, or of an earlier one
			if err := ctx.Err(); err != nil {
				return err
			}
		default:
			return u.err
		}
	}
}

// tidy takes down the lock's node if nobody is left. What it cannot do the servers do within a minute.
func (e *entry) tidy() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = e.s.remove(ctx, e.lock)
}

// Abandon implements backend.Driver. It waits for requests of the acquisition that are still under way, so none of
// them can come after it.
func (d *Driver) Abandon(ctx context.Context, r *backend.Request) error {
	d.mu.Lock()
	e := d.entries[r.Nonce]
	if e == nil {
		d.ended.add(r.Nonce, abandoned)
		d.mu.Unlock()
		return nil
	}
	d.mu.Unlock()
	if e.s != nil {
		if err := e.quiet(ctx); err != nil {
			return err
		}
		if err := e.undo(ctx); err != nil {
			return err
		}
	}
	d.finish(e, abandoned)
	return nil
}

// undo deletes what the acquisition has made.
func (e *entry) undo(ctx context.Context) error {
	s := e.s
	var nodes []string
	if e.wait != "" {
		nodes = append(nodes, e.lock+"/"+e.wait)
	}
	if e.grant != nil {
		nodes = append(nodes, e.held)
	}
	if !s.alive() {
		// The servers have deleted them; the lock's node is left.
		other, err := e.d.any(ctx)
		if err != nil {
			return err
		}
		defer other.unuse()
		return other.erase(ctx, e.lock, nil)
	}
	if e.doubt {
		if err := s.sync(ctx); err != nil && !errors.Is(err, errEnded) {
			return err
		}
		l, err := s.line(ctx, e.lock)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		nodes = append(nodes, e.held)
		for _, w := range l.waiters {
			if w[len(waitMark):len(waitMark)+nonceLen] == e.r.Nonce {
				nodes = append(nodes, e.lock+"/"+w)
			}
		}
	}
	err := s.erase(ctx, e.lock, nodes)
	if errors.Is(err, errEnded) {
		err = nil
	}
	return err
}

// erase deletes nodes under a lock's node that may be gone already, and that node too if nothing is left under it.
func (s *session) erase(ctx context.Context, lock string, nodes []string) error {
	for _, n := range nodes {
		i, err := s.multi(ctx, &zk.DeleteRequest{Path: n, Version: -1}, &zk.DeleteRequest{Path: lock, Version: -1})
		switch {
		case err == nil:
			return nil // it was the last
		case i == 0 && errors.Is(err, zk.ErrNoNode):
		case i == 1 && errors.Is(err, zk.ErrNotEmpty):
			if err := s.remove(ctx, n); err != nil {
				return err
			}
		default:
			return err
		}
	}
	err := s.remove(ctx, lock)
	if errors.Is(err, zk.ErrNotEmpty) {
		err = nil
	}
	return err
}
