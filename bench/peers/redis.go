package peers

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis"
	redsyncgo "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// expiry is what every library is asked for where it is asked, as long as ours by default.
const expiry = 30 * time.Second

var onRedis = []Library{
	{"raw redis", "go-redis: SET NX PX, and a script that compares and deletes", "redis.io, Distributed Locks with Redis, single instance", openRawRedis(false)},
	{"raw redis pub/sub", "the same with a script that also publishes; who waits hears it and sets the key", "redis.io, SUBSCRIBE", openRawRedis(true)},
	{"redsync", "WithExpiry(30s), or the retries of a lock that is waited for outlive it", "README and NewMutex: 32 tries, 50 to 250 ms apart", openRedsync},
	{"redislock", "LinearBackoff(100ms)", "README and the examples of its documents", openRedislock},
	{"rueidislock", "KeyMajority 1, NoLoopTracking; TryNextAfter 5s, for with one key there is no next, and after its 20 ms on a busy machine a waiter is never woken", "README: for one Redis of 7.0.5 or later", openRueidislock},
}

// goredisClient has the settings of go-redis but one: without it a context in flight is ignored.
func goredisClient(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

var (
	compareAndDelete = goredis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	deleteAndPublish = goredis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[1], '') return 1 end return 0`)
)

var errTaken = errors.New("the name is taken, and nobody should have it")

// openRawRedis is what one writes by hand, with waiting or without.
func openRawRedis(waits bool) func(context.Context, place) (locker, error) {
	release := compareAndDelete
	if waits {
		release = deleteAndPublish
	}
	return func(_ context.Context, at place) (locker, error) {
		client := goredisClient(at.Addrs[0])
		var values atomic.Int64
		return locker{
			mutex: func(ctx context.Context, name string) (mutex, error) {
				key := at.Prefix + ":" + name
				var sub *goredis.PubSub
				if waits {
					sub = client.Subscribe(ctx, key)
					if _, err := sub.Receive(ctx); err != nil { // the confirmation
						return mutex{}, err
					}
				}
				var value string
				return mutex{
					lock: func(ctx context.Context) error {
						value = strconv.FormatInt(values.Add(1), 10)
						for {
							ok, err := client.SetNX(ctx, key, value, expiry).Result()
							switch {
							case ok || err != nil:
								return err
							case sub == nil:
								return errTaken
							}
							if _, err := sub.ReceiveMessage(ctx); err != nil {
								return err
							}
						}
					},
					unlock: func(ctx context.Context) error { return release.Run(ctx, client, []string{key}, value).Err() },
				}, nil
			},
			close: func() { _ = client.Close() },
		}, nil
	}
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
		mutex: func(_ context.Context, name string) (mutex, error) {
			m := rs.NewMutex(at.Prefix+":"+name, redsync.WithExpiry(expiry))
			return mutex{
				lock: func(ctx context.Context) error {
					for { // it gives up after so many tries
						err := m.LockContext(ctx)
						var taken *redsync.ErrTaken
						if err == nil || ctx.Err() != nil || !errors.Is(err, redsync.ErrFailed) && !errors.As(err, &taken) {
							return err
						}
					}
				},
				unlock: func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err },
				renew:  func(ctx context.Context) error { _, err := m.ExtendContext(ctx); return err },
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
		mutex: func(_ context.Context, name string) (mutex, error) {
			var held *redislock.Lock
			return mutex{
				lock: func(ctx context.Context) (err error) {
					held, err = l.Obtain(ctx, at.Prefix+":"+name, expiry, options)
					return err
				},
				unlock: func(ctx context.Context) error { return held.Release(ctx) },
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
	hold := func(ctx context.Context, name string) (context.CancelFunc, error) {
		_, free, err := l.WithContext(ctx, name)
		return free, err
	}
	return locker{
		mutex: func(_ context.Context, name string) (mutex, error) {
			var free context.CancelFunc
			return mutex{
				lock:   func(ctx context.Context) (err error) { free, err = hold(ctx, name); return err },
				unlock: func(context.Context) error { free(); return nil },
			}, nil
		},
		close: l.Close,
	}, nil
}
