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
	of := make([]*bucket, len(cs))
	for i, c := range cs {
		of[i] = s.bucket(c.Name)
	}
	most := lookMost
	if extend {
		most = renewMost
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var beside sync.WaitGroup
	for _, b := range s.buckets {
		if !slices.Contains(of, b) {
			continue
		}
		beside.Go(func() {
			err := b.update(ctx, func(st *state) (changed bool, err error) {
				for i, c := range cs {
					if of[i] != b {
						continue
					}
					h := st.locks[s.key(c.Name)].find(c.Nonce, st.now)
					if h == nil {
						errs[i] = backend.ErrLost
					} else if extend {
						h.until, changed = st.now+int64(c.TTL+c.Grace), true
					}
				}
				return changed, nil
			})
			for i := range of {
				if of[i] == b {
					errs[i] = cmp.Or(err, errs[i])
				}
			}
		})
	}
	beside.Wait()
	return errs
}
