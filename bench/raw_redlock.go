package bench

import (
	"context"
	"errors"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// rawRedlock is the recipe of one Redis on all nodes at once, each answer awaited. It hands over by the first node alone.
type rawRedlock struct{ nodes []*rawRedis }

func openRawRedlock(p place) (raw, error) {
	o, err := redisOptions(p, p.u.Scheme == "redlocks")
	if err != nil {
		return nil, err
	}
	r := &rawRedlock{}
	for _, addr := range o.Addrs {
		one := *o
		one.Addrs = []string{addr}
		r.nodes = append(r.nodes, &rawRedis{p: p, client: goredis.NewClient(one.Simple())})
	}
	return r, nil
}

func (r *rawRedlock) cycle(name string) (cycle, error) {
	var locks, unlocks []func(context.Context) error
	for _, n := range r.nodes {
		lock, unlock := n.halves(name)
		locks, unlocks = append(locks, lock), append(unlocks, unlock)
	}
	return func(ctx context.Context, held func()) error {
		if err := atOnce(ctx, locks); err != nil {
			return err
		}
		held()
		return atOnce(ctx, unlocks)
	}, nil
}

// halves are the two steps of a cycle, with a value that does not change.
func (r *rawRedis) halves(name string) (lock, unlock func(context.Context) error) {
	key := r.p.key(name)
	r.note(key)
	keys := []string{key}
	return func(ctx context.Context) error {
			ok, err := r.client.SetNX(ctx, key, "raw", rawTTL).Result()
			if err == nil && !ok {
				err = errTaken
			}
			return err
		}, func(ctx context.Context) error {
			return compareAndDelete.Run(ctx, r.client, keys, "raw").Err()
		}
}

// atOnce runs all and returns when all are done.
func atOnce(ctx context.Context, all []func(context.Context) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, do := range all {
		wg.Go(func() { errs[i] = do(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *rawRedlock) relay(ctx context.Context, name string) (*relay, error) {
	return r.nodes[0].relay(ctx, name)
}

func (r *rawRedlock) commands(ctx context.Context) (int64, bool) {
	var sum int64
	for _, n := range r.nodes {
		c, ok := n.commands(ctx)
		if !ok {
			return 0, false
		}
		sum += c
	}
	return sum, true
}

func (r *rawRedlock) wipe(ctx context.Context) error {
	var errs []error
	for _, n := range r.nodes {
		errs = append(errs, n.wipe(ctx))
	}
	return errors.Join(errs...)
}

func (r *rawRedlock) close() error {
	var errs []error
	for _, n := range r.nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}
