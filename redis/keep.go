package redis

import (
	"context"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// Keep implements backend.Driver: on one server as one call with all keys, on a cluster as one
// pipeline for each node, so that a node that does not answer delays no other. Also a look is a
// script, so that a client that sends reads to replicas asks the master.
func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	sc := checkScript
	if extend {
		sc = renewScript
	}
	args := func(of ...*backend.Claim) (keys []string, args []any) {
		for _, c := range of {
			keys, args = append(keys, s.prefix+c.Name), append(args, c.Nonce)
			if extend {
				args = append(args, redisnode.Millis(c.TTL+c.Grace))
			}
		}
		return keys, args
	}
	errs := make([]error, len(cs))
	if s.cluster == nil {
		keys, args := args(cs...)
		reply, err := s.run(ctx, sc, keys, args...)
		ours, ok := reply.([]any)
		if err == nil && (!ok || len(ours) != len(cs)) {
			err = redisnode.Unexpected(reply)
		}
		for i := range cs {
			if errs[i] = err; err == nil {
				errs[i] = verdict(ours[i])
			}
		}
		return errs
	}
	var wg sync.WaitGroup
	for _, of := range s.byNode(ctx, cs) {
		wg.Go(func() {
			most := nodeMost
			if end, ok := ctx.Deadline(); ok { // the answers of the others count only once all are there
				most = min(most, time.Until(end)/2)
			}
			ctx, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			words := func(i int) ([]string, []any) { return args(cs[i]) }
			err := together(ctx, s, sc, of, words, func(i int, c *goredis.Cmd) error {
				switch reply, err := c.Slice(); {
				case err != nil:
					errs[i] = s.meaning(err)
				case len(reply) != 1:
					errs[i] = redisnode.Unexpected(reply)
				default:
					errs[i] = verdict(reply[0])
				}
				return nil // the answer for one is none for the others
			})
			for _, i := range of {
				if err != nil {
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	return errs
}

// byNode groups the indexes of claims by the node of a cluster that has their locks. Those whose
// node is not known go together.
func (s *store) byNode(ctx context.Context, cs []*backend.Claim) map[string][]int {
	groups := map[string][]int{}
	for i, c := range cs {
		node := ""
		if n, err := s.cluster.MasterForKey(ctx, s.prefix+c.Name); err == nil {
			node = n.Options().Addr
		}
		groups[node] = append(groups[node], i)
	}
	return groups
}

// verdict reads a script's word about a hold.
func verdict(ours any) error {
	switch ours {
	case int64(1):
		return nil
	case int64(0):
		return backend.ErrLost
	}
	return redisnode.Unexpected(ours)
}
