package zookeeper

import (
	"time"

	"github.com/fencelock/fencelock/backend"
)

// reach is until when the servers surely keep a session.
//
// It is the leader that lets sessions expire. It hears of a request that a follower
// answered only with the follower's next report, which it asks for every half tick. So after a silence
// a request can be answered by a session that the leader is just about to end. A request
// counts as heard of once a part of the session's length has passed since it was sent: a session is at least two
// ticks long, so a third of it is more than half a tick. Until then the session must be covered by
// what was heard of before. The leader hears at once of a session that is opened or that comes to another server.
type reach struct {
	until   backend.Instant // surely kept until then
	pending backend.Instant // a request that was answered, but too late to count at once
	failed  int             // servers tried since one greeted
	refused int             // servers that hung up since then
	err     error           // why the last one could not be connected to
}

// report is when the leader has surely heard of a request, counted from its sending.
func report(length time.Duration) time.Duration { return length / 3 }

// greeted: the leader has opened the session, or found it alive, after at.
func (r *reach) greeted(at backend.Instant, length time.Duration) {
	r.failed, r.refused, r.err = 0, 0, nil
	r.until, r.pending = at.Add(length), backend.Instant{}
}

// answered: a server has answered a request that was sent at at. write: it went through the leader.
func (r *reach) answered(at backend.Instant, write bool, length time.Duration) {
	if !r.pending.IsZero() && write && at.Sub(r.pending) >= report(length) {
		// The session was alive when the leader had heard of the pending one.
		r.until, r.pending = r.pending.Add(length), backend.Instant{}
	}
	switch {
	case r.until.Sub(at) >= report(length):
		if end := at.Add(length); end.Sub(r.until) > 0 {
			r.until = end
		}
		r.pending = backend.Instant{}
	case r.pending.IsZero():
		r.pending = at
	}
}
