package file

import (
	"context"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const maxToken = 1<<53 - 1

// number sets the token of a grant of now, and the slot of a permit: the least that is free. A reader has the token of
// the others, unless its floor is not below it. A floor that would move the counter further than an hour ahead of the
// clock is refused.
func (st *state) number(l *lock, r *backend.Request, g *backend.Grant) error {
	g.Asked = st.at
	if r.Mode == backend.Reader && l != nil && l.era > r.Floor {
		g.Token = l.era
		return nil
	}
	if r.Mode == backend.Permit && l != nil {
		for slices.ContainsFunc(l.holds, func(h holder) bool { return h.slot == int64(g.Slot) }) {
			g.Slot++
		}
	}
	now := time.Now()
	if r.Floor > st.counter { // which Raise may have moved ahead
		if err := backend.CheckFloor(r.Floor, now.UnixMicro()); err != nil {
			return err
		}
	}
	g.Token = max(st.counter+1, now.UnixMicro(), r.Floor+1)
	if g.Token > maxToken {
		return backend.Invalid("the last token was %d: no other is below 2^53", st.counter)
	}
	if r.Mode != backend.Reader { // others have a reader's number, and would be behind the next ones
		g.Reserved = backend.Reserve(r, g.Token, now)
	}
	st.counter = g.Token + backend.Token(g.Reserved)
	return nil
}

// Source implements [backend.Mover].
func (s *store) Source(ctx context.Context) (backend.Token, error) {
	var source backend.Token
	for _, b := range s.buckets {
		st, err := b.snapshot(ctx)
		if err != nil {
			return 0, err
		}
		source = max(source, st.counter)
	}
	return source, nil
}

// Raise implements [backend.Mover].
func (s *store) Raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	if floor < 0 || floor >= maxToken {
		return backend.Invalid("floor %d: it must be from 0 to below 2^53-1", floor)
	}
	raised := s.buckets[:]
	if held != nil {
		raised = []*bucket{s.bucket(held.Name)}
	}
	for _, b := range raised {
		err := b.update(ctx, func(st *state) (bool, error) {
			if held != nil && st.locks[s.key(held.Name)].find(held.Nonce, st.now) == nil {
				return false, backend.ErrLost
			}
			changed := st.counter < floor
			st.counter = max(st.counter, floor)
			return changed, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
