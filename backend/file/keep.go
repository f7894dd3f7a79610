package file

import (
	"cmp"
	"context"

	"github.com/fencelock/fencelock/backend"
)

// Keep implements [backend.Driver]: the claims of one bucket cost one write, or one look.
func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	errs := make([]error, len(cs))
	groups := map[int][]int{} // by bucket, of indexes of cs
	for i, c := range cs {
		p := s.key(c.Name).bucket()
		groups[p] = append(groups[p], i)
	}
	for p, group := range groups {
		err := s.buckets[p].update(ctx, func(st *state) (changed bool, err error) {
			for _, i := range group {
				h := st.locks[s.key(cs[i].Name)].find(cs[i].Nonce, st.now)
				if h == nil {
					errs[i] = backend.ErrLost
				} else if extend {
					h.until, changed = st.now+int64(cs[i].TTL+cs[i].Grace), true
				}
			}
			return changed, nil
		})
		for _, i := range group {
			errs[i] = cmp.Or(err, errs[i])
		}
	}
	return errs
}
