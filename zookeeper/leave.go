package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// Leave implements backend.Driver. A release is one multi; see prepareLeave.
func (st *store) Leave(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		p := st.place(c)
		p.endEnter()
		if c.Held {
			p.mu.Lock()
			p.leaving = true
			p.mu.Unlock()
		}
		if c.Err = p.settle(ctx); c.Err == nil && !p.left {
			c.Err = p.each(ctx, p.prepareLeave)
		}
	}
}

// prepareLeave returns what is to be sent to give up a claim; nil: its answer is known. A release
// deletes the holder's node, and the lock's if nobody waits, as far as we know. Where somebody waits
// the lock's node tells the next one, and the answer whether there is one.
func (p *place) prepareLeave(ctx context.Context) (*unit, error) {
	c := p.c
	if u := p.landed; u != nil && u.noted && c.Held && (u.err == nil || u.index >= 0) { // an earlier release
		if err := p.answer(ctx, u); !errors.Is(err, errAgain) {
			return nil, err
		}
	}
	if !c.Held {
		return nil, p.undo(ctx)
	}
	if !p.isGranted() || p.lapsed() {
		return nil, backend.ErrLost
	}
	if p.missing {
		if err := p.s.ensure(ctx); err != nil {
			return nil, ended(err)
		}
		p.missing = false
	}
	u := &unit{p: p, ops: []any{&zk.DeleteRequest{Path: p.held, Version: -1}}, noted: true}
	if p.others {
		data := passing{c.Nonce, p.counter.version, p.counter.last}.bytes()
		u.ops = append(u.ops, &zk.SetDataRequest{Path: p.lock, Data: data, Version: -1})
	} else {
		u.ops = append(u.ops, &zk.DeleteRequest{Path: p.lock, Version: -1})
	}
	return u, nil
}

// answerLeave is that to a release whose unit has ended.
func (p *place) answerLeave(u *unit) error {
	switch i := u.index; {
	case u.err == nil:
		p.leave()
		if p.others && (u.last.Stat == nil || u.last.Stat.NumChildren == 0) {
			p.st.flying.Go(p.tidy)
		}
		return nil
	case i == 0 && errors.Is(u.err, zk.ErrNoNode):
		return backend.ErrLost
	case i == 1 && errors.Is(u.err, zk.ErrNotEmpty):
		p.others = true
		return errAgain
	case i == len(u.ops): // the mark
		p.missing = true
		return errAgain
	}
	return ended(u.err)
}

// leave ends the claim.
func (p *place) leave() {
	p.left = true
	p.stop()
}

// tidy takes down the lock's node if nobody is left. What it cannot do the servers do within a
// minute.
func (p *place) tidy() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = p.s.remove(ctx, p.lock)
}

// undo deletes what the claim has made.
func (p *place) undo(ctx context.Context) error {
	if p.s != nil {
		if err := p.erase(ctx); err != nil {
			return err
		}
	}
	p.leave()
	return nil
}

func (p *place) erase(ctx context.Context) error {
	s := p.s
	if !s.alive() {
		// The servers have deleted its nodes; the lock's node is left.
		other, err := p.st.any(ctx)
		if err != nil {
			return err
		}
		return other.erase(ctx, p.lock, nil)
	}
	var nodes []string
	if p.wait != "" {
		nodes = append(nodes, p.lock+"/"+p.wait)
	}
	if p.isGranted() {
		nodes = append(nodes, p.held)
	}
	if p.doubt {
		if err := s.sync(ctx); err != nil && !errors.Is(err, errEnded) {
			return err
		}
		l, err := s.line(ctx, p.lock)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		nodes = append(nodes, p.held)
		for _, w := range l.waiters {
			if w[len(waitMark):len(waitMark)+nonceLen] == p.r.Nonce {
				nodes = append(nodes, p.lock+"/"+w)
			}
		}
	}
	err := s.erase(ctx, p.lock, nodes)
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
