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

// Keep implements backend.Driver: on one server as one call with all keys, and a look as a plain read first; on a
// cluster as one pipeline for each node, so that a node that does not answer delays no other, and a look as a script
// too, for a client may send plain reads to replicas. Holds of groups go beside the others, in calls of their own.
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

// keeps returns one for each call that is needed.
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
	all := []keeping{alone}
	for of := range slices.Chunk(beside.of, sharedAtOnce) {
		beside.of = of
		all = append(all, beside)
	}
	return slices.DeleteFunc(all, func(k keeping) bool { return len(k.of) == 0 })
}

// sharedAtOnce is how many holds of groups are in one call: each costs the server some 4 µs.
const sharedAtOnce = 1000

// words are the KEYS and ARGV of the script about the claims with these indexes.
func (s *store) words(k keeping, of []int) (keys []*string, args []any) {
	keys = make([]*string, 0, len(of))
	nonces := make([]byte, 0, (nonceLen+1)*len(of))
	for _, i := range of {
		c := k.cs[i]
		if p, ok := c.Place.(*place); ok {
			keys = append(keys, &p.keys.lock)
		} else {
			lock := s.prefix + c.Name
			keys = append(keys, &lock)
		}
		if shared(c) {
			lock := keysOf(s.prefix + c.Name)
			holds, parts := lock.holds(), lock.parts()
			keys = append(keys, &holds, &parts)
		}
		nonces = append(append(nonces, c.Nonce...), ':')
	}
	args = append(args, nonces)
	for _, i := range of {
		switch c := k.cs[i]; {
		case k.extend:
			args = append(args, redisnode.Millis(c.TTL+c.Grace))
		case shared(c):
			args = append(args, 0)
		}
	}
	return keys, args
}

// keepAll asks one server, in one call: about some holds alone where it is forbidden to ask about others.
func (s *store) keepAll(ctx context.Context, k keeping, errs []error) {
	var reply any
	var err error
	if k.script == checkScript {
		if k.of, err = s.missing(ctx, k); len(k.of) == 0 {
			return
		}
	}
	if err == nil {
		keys, args := s.words(k, k.of)
		reply, err = s.runAll(ctx, k.script, keys, args)
	}
	if half := len(k.of) / 2; half > 0 && redisnode.Forbidden(err) {
		some, others := k, k
		some.of, others.of = k.of[:half], k.of[half:]
		s.keepAll(ctx, some, errs)
		s.keepAll(ctx, others, errs)
		return
	}
	take(k.of, reply, err, errs)
}

// missing returns the holds that a plain read does not show, or all with an error. The read costs the
// server a third of the script, which then tells whether the missing ones are ours.
func (s *store) missing(ctx context.Context, k keeping) (of []int, err error) {
	keys, _ := s.words(k, k.of)
	words := make([]any, 1, 1+len(keys))
	words[0] = "mget"
	for _, key := range keys {
		words = append(words, key)
	}
	reply, err := do(ctx, s, func(ctx context.Context) ([]any, error) { return s.client.Do(ctx, words...).Slice() })
	if err == nil && len(reply) != len(k.of) {
		err = redisnode.Unexpected(reply)
	}
	if err != nil {
		return k.of, err
	}
	for at, i := range k.of {
		nonce := k.cs[i].Nonce
		if v, _ := reply[at].(string); len(v) <= len(nonce) || v[:len(nonce)] != nonce || v[len(nonce)] != ':' {
			of = append(of, i)
		}
	}
	return of, nil
}

// take takes in how many of the holds with these indexes are ours, and which are not.
func take(of []int, reply any, err error, errs []error) {
	res, _ := reply.([]any)
	ok := err == nil && len(res) > 0 && res[0] == int64(len(of)-len(res)+1)
	for at := 1; ok && at < len(res); at++ {
		i, is := res[at].(int64)
		if ok = is && i > 0 && i <= int64(len(of)); ok {
			errs[of[i-1]] = backend.ErrLost
		}
	}
	if ok {
		return
	}
	if err == nil {
		err = redisnode.Unexpected(reply)
	}
	for _, i := range of {
		errs[i] = err
	}
}

// keepEach asks one node of a cluster about the claims with these indexes, each in a call of its own.
func (s *store) keepEach(ctx context.Context, k keeping, of []int, errs []error) {
	if end, ok := ctx.Deadline(); ok { // the answers of the others count only once all are there
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	words := func(i int) ([]string, []any) {
		pointed, args := s.words(k, []int{i})
		keys := make([]string, len(pointed))
		for at, p := range pointed {
			keys[at] = *p
		}
		return keys, args
	}
	err := together(ctx, s, k.script, of, words, func(i int, c *goredis.Cmd) error {
		reply, err := c.Result()
		take([]int{i}, reply, s.meaning(err), errs)
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
	groups, err := do(ctx, s, func(ctx context.Context) (map[string][]int, error) {
		groups := map[string][]int{}
		for _, i := range of {
			node := ""
			if n, err := s.cluster.MasterForKey(ctx, s.prefix+cs[i].Name); err == nil {
				node = n.Options().Addr
			}
			groups[node] = append(groups[node], i)
		}
		return groups, nil
	})
	if err != nil { // ctx has ended
		return map[string][]int{"": of}
	}
	return groups
}
