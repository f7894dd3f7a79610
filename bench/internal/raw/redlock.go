package raw

import (
	"context"
	"errors"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// redlock is the recipe of one Redis on all nodes at once, and awaits each answer. A waiter waits on the
// first node alone.
type redlock struct{ nodes []*redis }

func openRedlock(p Place) (Store, error) {
	o, err := redisOptions(p, p.URL.Scheme == "redlocks")
	if err != nil {
		return nil, err
	}
	r := &redlock{}
	for _, addr := range o.Addrs {
		one := *o
		one.Addrs = []string{addr}
		r.nodes = append(r.nodes, &redis{at: p, client: goredis.NewClient(one.Simple())})
	}
	return r, nil
}

func (r *redlock) Mutex(ctx context.Context, name string, waits bool) (measure.Mutex, error) {
	if waits {
		return r.nodes[0].Mutex(ctx, name, true)
	}
	var all []measure.Mutex
	for _, n := range r.nodes {
		m, err := n.Mutex(ctx, name, false)
		if err != nil {
			return m, err
		}
		all = append(all, m)
	}
	atOnce := func(do func(measure.Mutex) error) error {
		errs := make([]error, len(all))
		var wg sync.WaitGroup
		for i, m := range all {
			wg.Go(func() { errs[i] = do(m) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	return measure.Mutex{
		Lock: func(ctx context.Context) error {
			return atOnce(func(m measure.Mutex) error { return m.Lock(ctx) })
		},
		Unlock: func(ctx context.Context) error {
			return atOnce(func(m measure.Mutex) error { return m.Unlock(ctx) })
		},
	}, nil
}

func (r *redlock) Commands(ctx context.Context) (int64, bool) {
	var sum int64
	for _, n := range r.nodes {
		c, ok := n.Commands(ctx)
		if !ok {
			return 0, false
		}
		sum += c
	}
	return sum, true
}

func (r *redlock) each(do func(*redis) error) error {
	var errs []error
	for _, n := range r.nodes {
		errs = append(errs, do(n))
	}
	return errors.Join(errs...)
}

func (r *redlock) Wipe(ctx context.Context) error {
	return r.each(func(n *redis) error { return n.Wipe(ctx) })
}

func (r *redlock) Close() error { return r.each((*redis).Close) }
