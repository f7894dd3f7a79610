package peers

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis"
	redsyncgo "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// expiry is what every library is asked for where it is asked, as long as ours by default.
const expiry = 30 * time.Second

var onRedis = []Library{
	{
		"raw redis", "go-redis: SET NX PX, and a script that compares and deletes",
		"redis.io, Distributed Locks with Redis, single instance", byHand("redis", nil, false),
	},
	{
		"raw redis pub/sub",
		"the same with a script that also publishes; who waits hears it and sets the key",
		"redis.io, SUBSCRIBE", byHand("redis", nil, true),
	},
	{
		"redsync", "WithExpiry(30s), or the retries of a lock that is waited for outlive it",
		"README and NewMutex: 32 tries, 50 to 250 ms apart", openRedsync,
	},
	{
		"redislock", "LinearBackoff(100ms)", "README and the examples of its documents",
		openRedislock,
	},
	{
		"rueidislock",
		"KeyMajority 1, NoLoopTracking; TryNextAfter 5s, for with one key there is no next, " +
			"and after its 20 ms on a busy machine a waiter is never woken",
		"README: for one Redis of 7.0.5 or later", openRueidislock,
	},
}

// goredisClient has the settings of go-redis but one: without it a context in flight is ignored.
func goredisClient(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

func openRedsync(_ context.Context, at place) (locker, error) {
	var clients []*goredis.Client
	var pools []redsyncpool.Pool
	for _, addr := range at.Addrs {
		clients = append(clients, goredisClient(addr))
		pools = append(pools, redsyncgo.NewPool(clients[len(clients)-1]))
	}
	rs := redsync.New(pools...)
	return locker{
		mutex: func(_ context.Context, name string) (measure.Mutex, error) {
			m := rs.NewMutex(at.Prefix+":"+name, redsync.WithExpiry(expiry))
			return measure.Mutex{
				Lock: func(ctx context.Context) error {
					for { // it gives up after so many tries
						err := m.LockContext(ctx)
						var taken *redsync.ErrTaken
						again := errors.Is(err, redsync.ErrFailed) || errors.As(err, &taken)
						if !again || ctx.Err() != nil {
							return err
						}
					}
				},
				Unlock: func(ctx context.Context) error {
					_, err := m.UnlockContext(ctx)
					return err
				},
				Renew: func(ctx context.Context) error {
					_, err := m.ExtendContext(ctx)
					return err
				},
			}, nil
		},
		close: func() {
			for _, c := range clients {
				_ = c.Close()
			}
		},
	}, nil
}

func openRedislock(_ context.Context, at place) (locker, error) {
	client := goredisClient(at.Addrs[0])
	l := redislock.New(client)
	ctx, end := context.WithCancel(context.Background())
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	return locker{
		mutex: func(_ context.Context, name string) (measure.Mutex, error) {
			var held *redislock.Lock
			return measure.Mutex{
				Lock: func(ctx context.Context) (err error) {
					held, err = l.Obtain(ctx, at.Prefix+":"+name, expiry, options)
					return err
				},
				Unlock: func(ctx context.Context) error { return held.Release(ctx) },
			}, nil
		},
		// It renews nothing by itself: a goroutine and a ticker for each lock, as its users do.
		hold: func(c context.Context, name string) error {
			held, err := l.Obtain(c, at.Prefix+":"+name, expiry, nil)
			if err != nil {
				return err
			}
			go func() {
				tick := time.NewTicker(expiry / 3)
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
						if held.Refresh(ctx, expiry, nil) != nil {
							return
						}
					case <-ctx.Done():
						return
					}
				}
			}()
			return nil
		},
		close: func() { end(); _ = client.Close() },
	}, nil
}

func openRueidislock(_ context.Context, at place) (locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: at.Addrs},
		KeyPrefix:    at.Prefix,
		KeyMajority:  1, NoLoopTracking: true, TryNextAfter: 5 * time.Second,
	})
	if err != nil {
		return locker{}, err
	}
	return locker{
		mutex: func(_ context.Context, name string) (measure.Mutex, error) {
			var free context.CancelFunc
			return measure.Mutex{
				Lock: func(ctx context.Context) (err error) {
					_, free, err = l.WithContext(ctx, name)
					return err
				},
				Unlock: func(context.Context) error { free(); return nil },
			}, nil
		},
		close: l.Close,
	}, nil
}
