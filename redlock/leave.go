package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

var errDropped = errors.New("it does not know whether it freed the lock before: it has freed too many since")

// Leave implements backend.Driver. A majority must have freed the lock; the others follow. A ballot
// that was not granted must be refused by a majority.
func (s *store) Leave(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		p := s.place(c)
		p.leave()
		if c.Place == nil {
			c.Place = p
		}
		q := s.question(s.nodes, s.quorum)
		how := undone
		switch {
		case c.Held && p.again:
			how = releasedAgain
		case c.Held:
			how, p.again = released, true
		}
		s.free(q, c.Request, p.ballot, how+" "+flag(p.queued || !c.Held && c.Wait))
		p.token = 0
		c.Err = q.holder(ctx, !c.Held)
	}
}

// end notes the release of a ballot: nothing else of it is sent from now on.
func (b *ballot) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

// What hold.lua's r is to remember of the id.
const (
	undone        = "0"
	released      = "1"
	releasedAgain = "2" // it was sent before, and may have been done
)

// free sends the release of a ballot to every node, with a tombstone where something of it may be
// under way. A node that does not answer gets it when it does. to may be nil; how is what hold.lua's
// r has behind the tombstone.
func (s *store) free(to *question, r *backend.Request, b *ballot, how string) {
	lock := s.prefix + r.Name
	keep := r.TTL + r.Grace + tombstone
	until := time.Now().Add(keep)
	release := func(keep time.Duration) []op {
		text := ""
		if keep > 0 || how != released+" 0" {
			text = fmt.Sprint(redisnode.Millis(keep), " ", how)
		}
		return []op{{lock, []any{"r", b.id, bucket(lock), text}}}
	}
	certain, doubtful := release(0), []op(nil)
	b.end()
	each := make([]request, len(s.nodes))
	for i, n := range s.nodes {
		r := &each[i]
		*r = request{ops: certain, to: to, until: until}
		if !b.sure(n.index) {
			if doubtful == nil {
				doubtful = release(keep)
			}
			r.ops, r.certain, r.of = doubtful, certain, b
		}
		n.send(r)
	}
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// holder waits until a majority has done what only the holder of a lock may do. ErrLost: so many
// say that the lock is not ours that no majority can; anyway: that is as good.
func (q *question) holder(ctx context.Context, anyway bool) error {
	ours, not, quorum := 0, 0, q.s.quorum
	lost := func() bool { return !anyway && len(q.s.nodes)-not < quorum }
	done := func() bool { return ours >= quorum || anyway && ours+not >= quorum }
	_ = q.each(ctx, callMost, func(a answer) error {
		switch a.replies[0] {
		case int64(1):
			ours++
		case int64(0):
			not++
		case int64(-1):
			return errQuarantine
		case int64(-2):
			return errDropped
		default:
			return redisnode.Unexpected(a.replies[0])
		}
		return nil
	}, func() bool { return done() || lost() })
	switch {
	case done():
		return nil
	case lost():
		return backend.ErrLost
	}
	return q.err()
}
