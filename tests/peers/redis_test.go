package peers

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgo "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const ctxSetting = "go-redis with ContextTimeoutEnabled, or a context in flight is ignored"

var onRedis = []library{
	{
		name: "redsync", module: "github.com/go-redsync/redsync/v4", store: "redis", settings: ctxSetting,
		lost: true, open: openRedsync,
		taken: func(err error) bool {
			var t *redsync.ErrTaken
			return errors.As(err, &t)
		},
	},
	{
		name: "redislock", module: "github.com/bsm/redislock", store: "redis",
		settings: ctxSetting + "; LinearBackoff(100ms) where it waits", open: openRedislock,
		taken: func(err error) bool { return errors.Is(err, redislock.ErrNotObtained) },
	},
	{
		name: "rueidislock", module: "github.com/redis/rueidis/rueidislock", store: "redis",
		settings: "KeyMajority 1 and NoLoopTracking, as for one Redis; " +
			"TryNextAfter 1s, for with one key there is no next",
		keeps: true, lost: true, open: openRueidislock,
		taken: func(err error) bool { return errors.Is(err, rueidislock.ErrNotLocked) },
		breakIt: func(ctx context.Context, addrs []string, name string) error {
			return deleteKey(ctx, addrs[0], rueidisPrefix+":0:"+name)
		},
	},
}

func goredisClient(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

func deleteKey(ctx context.Context, addr, key string) error {
	c := goredisClient(addr)
	defer c.Close()
	n, err := c.Del(ctx, key).Result()
	if err == nil && n != 1 {
		err = errors.New("there is no key " + key)
	}
	return err
}

func openRedsync(_ context.Context, addrs []string, ttl time.Duration) (client, error) {
	c := goredisClient(addrs[0])
	rs := redsync.New(redsyncgo.NewPool(c))
	return client{
		mutex: func(name string) mutex {
			m := rs.NewMutex(name, redsync.WithExpiry(ttl))
			got := func(err error) (hold, error) {
				if err != nil {
					return hold{}, err
				}
				return hold{
					unlock: func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err },
					lost:   after(time.Until(m.Until())), // it offers that moment
				}, nil
			}
			return mutex{
				try: func(ctx context.Context) (hold, error) { return got(m.TryLockContext(ctx)) },
				lock: func(ctx context.Context) (hold, error) {
					for { // it gives up after so many tries
						err := m.LockContext(ctx)
						var taken *redsync.ErrTaken
						again := errors.Is(err, redsync.ErrFailed) || errors.As(err, &taken)
						if !again || ctx.Err() != nil {
							return got(err)
						}
					}
				},
			}
		},
		close: func() { _ = c.Close() },
	}, nil
}

func openRedislock(_ context.Context, addrs []string, ttl time.Duration) (client, error) {
	c := goredisClient(addrs[0])
	l := redislock.New(c)
	return client{
		mutex: func(name string) mutex {
			obtain := func(o *redislock.Options) func(ctx context.Context) (hold, error) {
				return func(ctx context.Context) (hold, error) {
					held, err := l.Obtain(ctx, name, ttl, o)
					if err != nil {
						return hold{}, err
					}
					return hold{unlock: held.Release}, nil
				}
			}
			return mutex{
				try:  obtain(nil),
				lock: obtain(&redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}),
			}
		},
		close: func() { _ = c.Close() },
	}, nil
}

const rueidisPrefix = "rueidislock"

func openRueidislock(_ context.Context, addrs []string, ttl time.Duration) (client, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: addrs},
		KeyPrefix:    rueidisPrefix,
		KeyMajority:  1, NoLoopTracking: true, TryNextAfter: time.Second, KeyValidity: ttl,
	})
	if err != nil {
		return client{}, err
	}
	type take = func(context.Context, string) (context.Context, context.CancelFunc, error)
	return client{
		mutex: func(name string) mutex {
			with := func(take take) func(ctx context.Context) (hold, error) {
				return func(ctx context.Context) (hold, error) {
					held, free, err := take(ctx, name)
					if err != nil {
						return hold{}, err
					}
					return hold{
						unlock: func(context.Context) error { free(); return nil },
						lost:   held.Done(),
					}, nil
				}
			}
			return mutex{lock: with(l.WithContext), try: with(l.TryWithContext)}
		},
		close: l.Close,
	}, nil
}
