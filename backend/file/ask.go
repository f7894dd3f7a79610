package file

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// When a waiter looks at the latest while the lock is held, and how long it stays in the queue
// without a look: with a socket, and without.
const (
	pushEvery = 5 * time.Second
	pushLife  = 8 * time.Second // pushEvery, the engine's jitter, and a busy machine
	pollEvery = 50 * time.Millisecond
	pollLife  = 2 * time.Second
	// The first waiter looks so often, in case a datagram got lost; and so does a shared waiter, if the death of one in
	// front of it may let it in.
	lostEvery = time.Second
	// A waiter looks so long after the expiry of a hold that another is to see before it.
	shareAfter = 100 * time.Millisecond
)

// Enter implements [backend.Driver]. The claim's place is the name of the socket through which it is
// woken; without one it looks every 50 ms.
func (s *store) Enter(_ context.Context, c *backend.Claim) error {
	c.Place = s.hub.enter(c)
	return nil
}

// Ask implements [backend.Driver].
func (s *store) Ask(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		var g backend.Grant
		c.Err = s.change(ctx, c.Name, c.Nonce, func(st *state, l *lock) (changed bool, err error) {
			return s.take(st, l, c, &g)
		})
		switch {
		case c.Err == nil:
			c.Grant = g
			s.hub.leave(c)
		case !errors.Is(c.Err, backend.ErrLocked): // a place that could not be written asks again soon
			c.Next, c.Queued = 0, false
		}
	}
}

// take grants the lock to c if it may have it now; a waiter that has entered queues otherwise.
func (s *store) take(st *state, l *lock, c *backend.Claim, g *backend.Grant) (bool, error) {
	if st.ended(c.Nonce) {
		return false, backend.ErrLost
	}
	h := l.find(c.Nonce, st.now)
	switch {
	case h != nil: // sent again: it keeps its token
		*g = backend.Grant{Token: h.token, Slot: int(h.slot), Asked: st.at}
	case !l.admits(c):
		c.Queued = c.Wait && c.Place != nil
		return c.Queued && l.wait(st.now, c), backend.ErrLocked
	default:
		if gates := st.gates(s.prefix); version(gates) != version(c.Gates) {
			c.Gates = gates
			return false, backend.ErrGates
		}
		if err := st.number(l, c.Request, g); err != nil {
			return false, err
		}
		if l == nil {
			l = &lock{}
			st.locks[s.key(c.Name)] = l
		}
		l.drop(st.now, func(w waiter) bool { return w.nonce == c.Nonce })
		l.moved = false // the next one hears when this hold ends
		l.holds = append(l.holds, holder{
			nonce: c.Nonce, owner: c.Owner, token: g.Token, way: wayOf(c.Request), slot: int64(g.Slot),
		})
		h = &l.holds[len(l.holds)-1]
		if c.Phase == backend.PhaseBoth {
			h.both = c.Move
		}
		if c.Mode == backend.Reader {
			l.era = g.Token
		}
	}
	h.until = st.now + int64(c.TTL+c.Grace)
	return true, nil
}

// wait takes or keeps c's place in the queue, and says when to look again.
func (l *lock) wait(now int64, c *backend.Claim) (changed bool) {
	socket, _ := c.Place.(string)
	every, life := pushEvery, pushLife
	if socket == "" {
		every, life = pollEvery, pollLife
	}
	i := slices.IndexFunc(l.queue, func(w waiter) bool { return w.nonce == c.Nonce })
	if i < 0 {
		i = len(l.queue)
		l.queue = append(l.queue, waiter{nonce: c.Nonce, until: now, way: wayOf(c.Request)})
	}
	w := &l.queue[i]
	// One that polls does not write at every look; and one that looks late is not taken for dead.
	if changed = w.socket != socket || w.until-now < int64(life-time.Second); changed {
		w.socket, w.until = socket, now+int64(life)
	}
	changed = l.ask(now, i) || changed
	c.Next = min(max(time.Duration(l.lookAt(now, i)-now), time.Millisecond), every)
	return changed
}

// ask makes the first in the queue say within a turn that it lives, if it keeps out the waiter i, which the holders
// would admit: its own turn comes only when they all have gone. It reports whether it has changed anything.
func (l *lock) ask(now int64, i int) bool {
	first, me := &l.queue[0], l.queue[i].way
	if !me.shared() || first.way == me || first.socket == "" || !me.request().Admits(l.there()) {
		return false
	}
	by := now + int64(turn)
	asked := first.until > by
	first.until = min(first.until, by)
	return asked
}

// lookAt is when waiter i, which may not have the lock now, looks again at the latest.
func (l *lock) lookAt(now int64, i int) int64 {
	_, n := l.served("")
	at := int64(math.MaxInt64)
	for _, h := range l.holds {
		at = min(at, h.until)
	}
	if len(l.holds) > 0 && i > n { // the first waiter is to see that
		if l.queue[n].shared() {
			at += int64(shareAfter) // its turn begins when somebody sees it
		} else {
			at += int64(turn)
		}
	}
	if n > 0 {
		at = min(at, l.turnEnd(now))
	}
	me := l.queue[i].way
	if i == n || me.shared() && slices.ContainsFunc(l.queue[:i], func(w waiter) bool { return w.way != me }) {
		at = min(at, now+int64(lostEvery), l.queue[n].until)
	}
	return at
}
