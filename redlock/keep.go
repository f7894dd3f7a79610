package redlock

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Keep implements backend.Driver: one request to each node, whatever the number of claims. A node
// that has not got a lock which a majority has is asked for its vote again, in the background: it
// was restarted, say, and without it the next restart of another would end the lease. The answer of
// a node that is not waited for counts for the next time.
func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	ops, grips := make([]op, len(cs)), make([]*grip, len(cs))
	for i, c := range cs {
		grips[i] = s.place(c).grip
		args := []any{"c", grips[i].id}
		if extend {
			args = []any{"e", grips[i].id, millis(c.TTL + c.Grace)}
		}
		ops[i] = op{s.prefix + c.Name, args}
	}
	lacks := func(a answer) {
		for i, reply := range a.replies {
			if extend && reply == int64(0) {
				grips[i].lack(a.node)
			}
		}
	}
	ours, not := make([]int, len(cs)), make([]int, len(cs))
	lost := func(i int) bool { return len(s.nodes)-not[i] < s.quorum }
	r := s.ask(ctx, callMost, ops, lacks)
	err := r.each(ctx, callMost, func(a answer) error {
		for i, reply := range a.replies {
			switch reply {
			case int64(1):
				ours[i]++
			case int64(0):
				not[i]++
			}
		}
		return nil
	}, func() bool {
		for i := range cs {
			if ours[i] < s.quorum && !lost(i) {
				return false
			}
		}
		return true
	})
	errs := make([]error, len(cs))
	for i, c := range cs {
		switch {
		case lost(i):
			errs[i] = backend.ErrLost
		case ours[i] < s.quorum && err == nil:
			errs[i] = r.err()
		case ours[i] < s.quorum:
			errs[i] = err
		case extend:
			s.again(c, grips[i])
		}
	}
	return errs
}

// again asks those nodes for their votes for a lock that is held which have none. The lock gets the
// number of the grant there. The vote creates nothing where a release or a Break came before it.
func (s *store) again(c *backend.Claim, g *grip) {
	for _, node := range g.begin() {
		lock := s.prefix + c.Name
		s.nodes[node].send(&request{note: g.answeredAgain, by: time.Now().Add(callMost), ops: []op{{lock, []any{
			"a", g.id, c.Token, bucket(lock), millis(c.TTL + c.Grace), mark(c.Request),
		}}}})
	}
}

// Leave implements backend.Driver. A majority must have freed the lock; the others follow. What
// nothing is held of must be refused by a majority.
func (s *store) Leave(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		s.hub.leave(c)
		p := s.place(c)
		r := s.round(s.nodes, s.quorum)
		s.free(r, c.Request, p.grip, c.Held, p.queued || !c.Held && c.Wait)
		p.token = 0
		c.Err = r.holder(ctx, !c.Held)
	}
}

// holder waits until a majority has done what only the holder of a lock may do. ErrLost: so many
// say that the lock is not ours that no majority can; anyway: that is as good.
func (r *round) holder(ctx context.Context, anyway bool) error {
	ours, not := 0, 0
	quorum := r.s.quorum
	lost := func() bool { return !anyway && len(r.s.nodes)-not < quorum }
	done := func() bool { return ours >= quorum || anyway && ours+not >= quorum }
	_ = r.each(ctx, callMost, func(a answer) error {
		switch a.replies[0] {
		case int64(1):
			ours++
		case int64(0):
			not++
		case int64(-1):
			return errQuarantine
		default:
			return unexpected(a.replies[0])
		}
		return nil
	}, func() bool { return done() || lost() })
	switch {
	case done():
		return nil
	case lost():
		return backend.ErrLost
	}
	return r.err()
}
