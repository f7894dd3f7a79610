package file

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const maxToken = 1<<53 - 1

// draw sets the token of a grant of now. It refuses a floor that would move the counter
// further than an hour ahead of the clock.
func (st *state) draw(r *backend.Request, g *backend.Grant) error {
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
	g.Reserved, g.Asked = backend.Reserve(r, g.Token, now), st.at
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
			if held != nil && !st.locks[s.key(held.Name)].heldBy(held.Nonce, st.now) {
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
