package redlock

import (
	"context"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// Keep implements backend.Driver: one request to each node, whatever the number of claims. A node
// that has not got a lock which a majority has is asked for its vote again, in the background: it
// was restarted, say, or somebody else had the lock there when it was granted, and without it the
// next restart of another would end the lease. A look does that too: a renewal may be far off. The
// answer of a node that is not waited for counts for the next time.
func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	ops, ballots := make([]op, len(cs)), make([]*ballot, len(cs))
	for i, c := range cs {
		ballots[i] = s.place(c).ballot
		args := []any{"c", ballots[i].id}
		if extend {
			args = []any{"e", ballots[i].id, redisnode.Millis(c.TTL + c.Grace)}
		}
		ops[i] = op{s.prefix + c.Name, args}
	}
	lacks := func(a answer) {
		for i, reply := range a.replies {
			if reply == int64(0) {
				ballots[i].lacks(a.node)
			}
		}
	}
	ours, not := make([]int, len(cs)), make([]int, len(cs))
	lost := func(i int) bool { return len(s.nodes)-not[i] < s.quorum }
	q := s.ask(ctx, callMost, ops, lacks)
	err := q.each(ctx, callMost, func(a answer) (why error) {
		for i, reply := range a.replies {
			switch reply {
			case int64(1):
				ours[i]++
			case int64(0):
				not[i]++
			default:
				why = errQuarantine
			}
		}
		return why
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
			errs[i] = q.err()
		case ours[i] < s.quorum:
			errs[i] = err
		default:
			s.voteAgain(c, ballots[i])
		}
	}
	forbidden := func(a answer) bool { return redisnode.Forbidden(a.err) } // for the key of another's lock, perhaps
	if half := len(cs) / 2; half > 0 && backend.Final(errs[0]) && slices.ContainsFunc(q.seen(), forbidden) {
		return append(s.Keep(ctx, cs[:half], extend), s.Keep(ctx, cs[half:], extend)...)
	}
	return errs
}

// voteAgain asks those nodes for their votes for a lock that is held which have none. The lock gets
// the number of the grant there. The vote creates nothing where a release or a Break came before it.
func (s *store) voteAgain(c *backend.Claim, b *ballot) {
	for _, node := range b.begin() {
		lock := s.prefix + c.Name
		s.nodes[node].send(&request{note: b.answeredAgain, by: time.Now().Add(callMost), ops: []op{{lock, []any{
			"a", b.id, c.Token, bucket(lock), redisnode.Millis(c.TTL + c.Grace), redisnode.Mark(c.Request),
		}}}})
	}
}

// lacks notes that a node has no vote for a lock that is held.
func (b *ballot) lacks(node int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes[node].lacks = true
}

// begin returns the nodes that lacks noted since, and that may be asked for their vote again, and
// notes that they are.
func (b *ballot) begin() (nodes []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.nodes {
		n := &b.nodes[i]
		if n.lacks && !n.again && !b.over {
			n.again = true
			n.open++
			nodes = append(nodes, i)
		}
		n.lacks = false
	}
	return nodes
}

// answeredAgain notes the answer of a node that was asked for its vote again.
func (b *ballot) answeredAgain(a answer) {
	b.answered(a)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes[a.node].again = false
}
