package file

import (
	"context"

	"github.com/fencelock/fencelock/backend"
)

// Leave implements [backend.Driver].
func (s *store) Leave(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		s.hub.leave(c)
		c.Err = s.change(ctx, c.Name, c.Nonce, func(st *state, l *lock) (bool, error) {
			return l.leave(st, c)
		})
	}
}

// leave takes c out of the queue, or ends its hold. A release that is sent again
// is answered nil, and a copy of its request that comes later is refused.
func (l *lock) leave(st *state, c *backend.Claim) (changed bool, answer error) {
	held := l.end(st.now, func(h holder) bool { return h.nonce == c.Nonce })
	if !held && c.Held && !has(st.released, c.Nonce) {
		answer = backend.ErrLost
	}
	changed = l.drop(st.now, func(w waiter) bool { return w.nonce == c.Nonce }) || held
	end := ended{c.Nonce, st.now + int64(c.TTL+c.Grace+endLife)}
	switch {
	case held && c.Held:
		st.released = append(st.released, end)
	case c.Unsure && !st.ended(c.Nonce):
		st.abandoned, changed = append(st.abandoned, end), true
	}
	return changed, answer
}

// Break implements [backend.Driver]. The holders learn of it when they look.
func (s *store) Break(ctx context.Context, name string) error {
	return s.change(ctx, name, "", func(st *state, l *lock) (bool, error) {
		return l.end(st.now, func(h holder) bool {
			st.abandoned = append(st.abandoned, ended{h.nonce, h.until + int64(endLife)})
			return true
		}), nil
	})
}
