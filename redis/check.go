package redis

import (
	"context"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

// Check implements backend.Checker: it reads the locks, on one server in one command, on a cluster in a pipeline to each node.
func (d *Driver) Check(ctx context.Context, hs []*backend.Hold) []error {
	if d.cluster != nil {
		return d.inCluster(ctx, hs, func(ctx context.Context, p goredis.Pipeliner, h *backend.Hold) *goredis.Cmd {
			return p.Do(ctx, "mget", d.prefix+h.Name)
		}, holds)
	}
	errs := make([]error, len(hs))
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

// holds compares the value of a lock's key with a hold.
func holds(value any, h *backend.Hold) error {
	if text, ok := value.(string); ok && strings.HasPrefix(text, h.Nonce+":") {
		return nil
	}
	return backend.ErrLost
}
