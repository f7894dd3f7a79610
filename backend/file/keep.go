package file

import (
	"cmp"
	"context"
	"slices"
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
	of, order := make([]int, len(cs)), make([]int, len(cs)) // the bucket of each of cs, and their indexes by that
	for i, c := range cs {
		of[i], order[i] = s.key(c.Name).bucket(), i
	}
	slices.SortStableFunc(order, func(i, j int) int { return of[i] - of[j] })
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
	for len(order) > 0 {
		p, n := of[order[0]], 1
		for n < len(order) && of[order[n]] == p {
			n++
		}
		group := order[:n]
		if order = order[n:]; n == len(cs) {
			keep(p, group)
			break
		}
		beside.Go(func() { keep(p, group) })
	}
	beside.Wait()
	return errs
}
