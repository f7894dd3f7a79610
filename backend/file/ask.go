package file

import (
	"context"
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
		if c.Err == nil {
			c.Grant = g
			s.hub.leave(c)
		}
	}
}

// take grants the lock to c if it is free and c's turn; a waiter that has entered queues otherwise.
func (s *store) take(st *state, l *lock, c *backend.Claim, g *backend.Grant) (bool, error) {
	if st.ended(c.Nonce) {
		return false, backend.ErrLost
	}
	switch {
	case l.heldBy(c.Nonce, st.now): // sent again: it keeps its token
		*g = backend.Grant{Token: l.holder.token, Asked: st.at}
	case l != nil && (l.holder != nil || len(l.queue) > 0 && l.queue[0].nonce != c.Nonce):
		c.Queued = c.Wait && c.Place != nil
		return c.Queued && l.wait(st.now, c), backend.ErrLocked
	default:
		if gates := st.gates(s.prefix); version(gates) != version(c.Gates) {
			c.Gates = gates
			return false, backend.ErrGates
		}
		if err := st.draw(c.Request, g); err != nil {
			return false, err
		}
		if l == nil {
			l = &lock{}
			st.locks[s.key(c.Name)] = l
		}
		l.drop(st.now, func(w waiter) bool { return w.nonce == c.Nonce })
		l.holder = &holder{nonce: c.Nonce, owner: c.Owner, token: g.Token}
		if c.Phase == backend.PhaseBoth {
			l.holder.both = c.Move
		}
	}
	l.holder.until = st.now + int64(c.TTL+c.Grace)
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
		l.queue = append(l.queue, waiter{nonce: c.Nonce, until: now})
	}
	w := &l.queue[i]
	// One that polls does not write at every look.
	if changed = w.socket != socket || w.until-now < int64(life)/2; changed {
		w.socket, w.until = socket, now+int64(life)
	}
	at := l.freed
	if l.holder != nil {
		at = l.holder.until
	}
	if l.holder == nil || i > 0 { // the first one is to take it then
		at += int64(turn)
	}
	c.Next = min(max(time.Duration(at-now), time.Millisecond), every)
	return changed
}
