package file

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// lookMost and renewMost are how long a bucket is waited for that another process keeps: its claims are asked about
// again, and the others' answers are not to be late.
const lookMost, renewMost = 500 * time.Millisecond, 2 * time.Second

// Keep implements [backend.Driver]: the claims of one bucket cost one write, or one look. No bucket waits for another.
func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	errs := make([]error, len(cs))
	groups := map[int][]int{} // by bucket, of indexes of cs
	for i, c := range cs {
		p := s.key(c.Name).bucket()
		groups[p] = append(groups[p], i)
	}
	most := lookMost
	if extend {
		most = renewMost
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	keep := func(p int, group []int) {
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
	var beside sync.WaitGroup
	for p, group := range groups {
		if len(groups) == 1 {
			keep(p, group)
			break
		}
		beside.Go(func() { keep(p, group) })
	}
	beside.Wait()
	return errs
}
