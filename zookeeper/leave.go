package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// Leave implements backend.Driver. A release is one multi; see prepareRelease.
func (st *store) Leave(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		if c.Unsure && !c.Held && st.find(c) == nil {
			c.Err = st.breakOne(ctx, c)
			continue
		}
		p := st.place(c)
		k := undoing
		if c.Held {
			k = releasing
		}
		c.Err = p.do(ctx, c, k)
	}
}

// breakOne ends a claim that is another program's.
func (st *store) breakOne(ctx context.Context, c *backend.Claim) error {
	s, err := st.any(ctx)
	if err != nil {
		return err
	}
	return s.eraseOf(ctx, st.at.lock(c.Name), c.Nonce)
}

// eraseOf is erase of the nodes of a claim.
func (s *session) eraseOf(ctx context.Context, lock, nonce string) error {
	nodes, err := s.of(ctx, lock, nonce)
	if err != nil {
		return err
	}
	return s.erase(ctx, lock, nodes)
}

// of are the nodes of a claim.
func (s *session) of(ctx context.Context, lock, nonce string) (nodes []string, err error) {
	if err := s.sync(ctx); err != nil {
		return nil, err
	}
	l, err := s.line(ctx, lock)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, err
	}
	for _, e := range l.of(nonce) {
		nodes = append(nodes, lock+"/"+e.node)
	}
	return nodes, nil
}

// prepareRelease returns what is to be sent to release: it deletes the holder's node, and the
// lock's if nobody waits, as far as we know. Where somebody waits the lock's node tells the next
// one, and the answer whether there is one.
func (p *place) prepareRelease(ctx context.Context) (*unit, error) {
	switch {
	case p.left && !p.undone:
		return nil, nil
	case p.left || !p.isGranted() || p.lapsed():
		return nil, backend.ErrLost
	}
	if p.missing {
		if err := p.s.ensure(ctx); err != nil {
			return nil, ended(err)
		}
		p.missing = false
	}
	u := &unit{p: p, ops: []any{&zk.DeleteRequest{Path: p.held, Version: -1}}, noted: !p.bare}
	switch {
	case p.bare:
	case !p.others:
		u.guess = alone
		u.ops = append(u.ops, &zk.DeleteRequest{Path: p.lock, Version: -1})
	case p.r.Mode == backend.Exclusive: // in a group the data are that of its era
		data := encoded(passing{Nonce: p.c.Nonce})
		u.ops = append(u.ops, &zk.SetDataRequest{Path: p.lock, Data: data, Version: -1})
	}
	return u, nil
}

// released is the answer to a release whose unit has ended.
func (p *place) released(_ context.Context, u *unit) error {
	switch i := u.index; {
	case u.err == nil:
		p.leave()
		if p.bare || p.others && (u.last.Stat == nil || u.last.Stat.NumChildren == 0) {
			p.tidy()
		}
		return nil
	case i == 0 && errors.Is(u.err, zk.ErrNoNode):
		return backend.ErrLost
	case i == 1 && errors.Is(u.err, zk.ErrNotEmpty), errors.Is(u.err, errGuess):
		p.others = true
		return errAgain
	case i == len(u.ops) && (errors.Is(u.err, zk.ErrNoNode) || errors.Is(u.err, zk.ErrNodeExists)): // the mark
		p.missing = true
		return errAgain
	case i > 0: // a quota refuses what it writes; to delete is allowed
		p.bare = true
		return errAgain
	}
	return ended(u.err)
}

// leave ends the claim.
func (p *place) leave() {
	p.left = true
	p.stop()
}

// tidy deletes the lock's node if it is empty, beside what follows; Close waits for that. If it cannot, the servers
// delete it within a minute.
func (p *place) tidy() {
	st := p.st
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed { // and the session is about to end
		return
	}
	st.tidying.Add(1)
	st.flying.Go(func() {
		defer st.tidying.Done()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = p.s.remove(ctx, p.lock)
	})
}

// undo deletes the nodes that the claim has made. Where the servers refuse that, the claim ends all the
// same and the store goes on aside: the engine may not try again, and the session would never be closed.
func (p *place) undo(ctx context.Context) (err error) {
	if s := p.s; s != nil && !p.left {
		if err = p.erase(ctx); errors.Is(err, errEnded) {
			err = nil // the servers delete its nodes
		}
		if err != nil && !backend.Final(err) {
			return err
		}
		if err != nil {
			p.st.flying.Go(func() { p.clear(s) })
		}
	}
	p.undone = p.undone || !p.left
	p.leave()
	return err
}

func (p *place) erase(ctx context.Context) error {
	var nodes []string
	if p.wait != "" {
		nodes = append(nodes, p.lock+"/"+p.wait)
	}
	if p.isGranted() {
		nodes = append(nodes, p.held)
	}
	if p.doubt {
		more, err := p.s.of(ctx, p.lock, p.c.Nonce)
		if err != nil {
			return err
		}
		nodes = append(nodes, more...)
	}
	if len(nodes) == 0 {
		return nil // in an outage there may be very many that have sent nothing
	}
	return p.s.erase(ctx, p.lock, nodes)
}

// erase deletes nodes under a lock's node that may be gone already, and that node too if nothing is
// left under it.
func (s *session) erase(ctx context.Context, lock string, nodes []string) error {
	for _, n := range nodes {
		if err := s.remove(ctx, n); err != nil {
			return err
		}
	}
	err := s.remove(ctx, lock)
	if errors.Is(err, zk.ErrNotEmpty) {
		err = nil
	}
	return err
}
