package redis

import (
	"context"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

// Check implements backend.Checker: it reads the locks, on one server in one command, on a cluster in a pipeline to each node.
func (d *Driver) Check(ctx context.Context, hs []*backend.Hold) []error {
	errs := make([]error, len(hs))
	if d.cluster != nil {
		d.checkInCluster(ctx, hs, errs)
		return errs
	}
	keys := make([]string, len(hs))
	for i, h := range hs {
		keys[i] = d.prefix + h.Name
	}
	values, err := do(ctx, d, func(ctx context.Context) ([]any, error) { return d.client.MGet(ctx, keys...).Result() })
	if err == nil && len(values) != len(hs) {
		err = unexpected(values)
	}
	for i, h := range hs {
		if errs[i] = err; err == nil {
			errs[i] = holds(values[i], h) // a key of another type is nil, and fails no others
		}
	}
	return errs
}

func (d *Driver) checkInCluster(ctx context.Context, hs []*backend.Hold, errs []error) {
	var wg sync.WaitGroup
	for _, of := range d.byNode(ctx, len(hs), func(i int) string { return d.prefix + hs[i].Name }) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, promptMost)
			defer cancel()
			cmds, err := d.pipeline(ctx, func(p goredis.Pipeliner) {
				for _, i := range of {
					p.MGet(ctx, d.prefix+hs[i].Name)
				}
			})
			for n, i := range of {
				if errs[i] = err; err != nil {
					continue
				}
				values, err := cmds[n].(*goredis.SliceCmd).Result()
				switch {
				case err != nil:
					errs[i] = d.meaning(err)
				case len(values) != 1:
					errs[i] = unexpected(values)
				default:
					errs[i] = holds(values[0], hs[i])
				}
			}
		})
	}
	wg.Wait()
}

// holds compares the value of a lock's key with a hold.
func holds(value any, h *backend.Hold) error {
	if text, ok := value.(string); ok && strings.HasPrefix(text, h.Nonce+":") {
		return nil
	}
	return backend.ErrLost
}
