package redis

import (
	"context"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// Keep implements backend.Driver: on one server as one call with all keys, on a cluster as one
// pipeline for each node, so that a node that does not answer delays no other. Holds of groups go beside the
// others, in a call of their own. Also a look is a script, so that a client that sends reads to replicas
// asks the master.
func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	errs := make([]error, len(cs))
	all := s.keeps(cs, extend)
	if s.cluster == nil && len(all) == 1 {
		s.keepAll(ctx, all[0], errs)
		return errs
	}
	var wg sync.WaitGroup
	for _, k := range all {
		if s.cluster == nil {
			wg.Go(func() { s.keepAll(ctx, k, errs) })
			continue
		}
		for _, of := range s.byNode(ctx, k.cs, k.of) {
			wg.Go(func() { s.keepEach(ctx, k, of, errs) })
		}
	}
	wg.Wait()
	return errs
}

// keeping is what one script asks about claims.
type keeping struct {
	*script
	cs     []*backend.Claim
	of     []int // indexes of those claims
	extend bool
}

// keeps returns one for each script that is needed.
func (s *store) keeps(cs []*backend.Claim, extend bool) []keeping {
	alone, beside := keeping{checkScript, cs, nil, extend}, keeping{keepSharedScript, cs, nil, extend}
	if extend {
		alone.script = renewScript
	}
	alone.of = make([]int, 0, len(cs))
	for i, c := range cs {
		if shared(c) {
			beside.of = append(beside.of, i)
		} else {
			alone.of = append(alone.of, i)
		}
	}
	return slices.DeleteFunc([]keeping{alone, beside}, func(k keeping) bool { return len(k.of) == 0 })
}

// words adds what is asked about a claim.
func (s *store) words(k keeping, c *backend.Claim, keys []string, args []any) ([]string, []any) {
	args = append(args, c.Nonce)
	if shared(c) {
		keys = append(keys, keysOf(s.prefix+c.Name).keep()...)
	} else {
		keys = append(keys, s.prefix+c.Name)
	}
	switch {
	case k.extend:
		args = append(args, redisnode.Millis(c.TTL+c.Grace))
	case shared(c):
		args = append(args, 0)
	}
	return keys, args
}

// keepAll asks one server, in one call.
func (s *store) keepAll(ctx context.Context, k keeping, errs []error) {
	keys, args := make([]string, 0, len(k.of)), make([]any, 0, 2*len(k.of))
	for _, i := range k.of {
		keys, args = s.words(k, k.cs[i], keys, args)
	}
	reply, err := s.run(ctx, k.script, keys, args...)
	ours, ok := reply.([]any)
	if err == nil && (!ok || len(ours) != len(k.of)) {
		err = redisnode.Unexpected(reply)
	}
	for at, i := range k.of {
		if errs[i] = err; err == nil {
			errs[i] = verdict(ours[at])
		}
	}
}

// keepEach asks one node of a cluster about the claims with these indexes, each in a call of its own.
func (s *store) keepEach(ctx context.Context, k keeping, of []int, errs []error) {
	if end, ok := ctx.Deadline(); ok { // the answers of the others count only once all are there
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	words := func(i int) ([]string, []any) { return s.words(k, k.cs[i], nil, nil) }
	err := together(ctx, s, k.script, of, words, func(i int, c *goredis.Cmd) error {
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
}

// byNode groups the indexes of claims by the node of a cluster that has their locks. Those whose
// node is not known go together.
func (s *store) byNode(ctx context.Context, cs []*backend.Claim, of []int) map[string][]int {
	groups := map[string][]int{}
	for _, i := range of {
		node := ""
		if n, err := s.cluster.MasterForKey(ctx, s.prefix+cs[i].Name); err == nil {
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
