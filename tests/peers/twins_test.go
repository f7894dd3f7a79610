package peers

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// A twin is a lock on Redis with one mistake, as an issue of a project describes it that cannot run
// here or that has mended it. It is asked the question that the issue is about.
var twins = []library{
	{
		// The renewals' errors are nobody's business, and the monitor reads without a deadline.
		name: "twin-of-consul-18271", store: "redis", only: "told-first", keeps: true, lost: true,
		open: twin(func(t *twinLock, held context.Context) <-chan struct{} {
			lost := make(chan struct{})
			go every(held, t.ttl/2, func() bool { t.renew(held, t.ttl); return true })
			go func() {
				defer close(lost)
				patient := goredis.NewClient(&goredis.Options{Addr: t.c.Options().Addr, ReadTimeout: -1})
				defer patient.Close()
				context.AfterFunc(held, func() { _ = patient.Close() })
				for held.Err() == nil && patient.Get(held, t.name).Val() == t.nonce {
					patient.BLPop(held, t.ttl, "changed:"+t.name)
				}
			}()
			return lost
		}),
	},
	{
		// A waiter's place in the queue outlives the waiter by five minutes.
		name: "twin-of-redisson-3730", store: "redis", only: "dead-waiter", open: openFair,
	},
	{
		// The lock of a stopped client is given to the next, and the client goes on with its write.
		name: "twin-of-juicefs-7462", store: "redis", only: "zombie", keeps: true,
		open: twin(func(t *twinLock, held context.Context) <-chan struct{} {
			go every(held, t.ttl/3, func() bool { t.renew(held, t.ttl); return true })
			return nil
		}),
		file: func(ctx context.Context, addrs []string, name string, text *string) (err error) {
			c := goredisClient(addrs[0])
			defer c.Close()
			if *text != "" {
				return c.Set(ctx, name, *text, time.Minute).Err()
			}
			*text, err = c.Get(ctx, name).Result()
			return err
		},
	},
	{
		// A renewal counts from the last deadline and not from now, so that the round trips add up.
		name: "twin-of-rueidis-923", store: "redis", only: "slow-link", keeps: true, lost: true,
		open: twin(func(t *twinLock, held context.Context) <-chan struct{} {
			lost, deadline := make(chan struct{}), time.Now().Add(t.ttl)
			go func() {
				defer close(lost)
				every(held, t.ttl/8, func() bool {
					deadline = deadline.Add(t.ttl / 8)
					return t.renew(held, time.Until(deadline))
				})
			}()
			return lost
		}),
	},
}

// twinLock is a lock that is held.
type twinLock struct {
	c           *goredis.Client
	name, nonce string
	ttl         time.Duration
}

var (
	ownExpire = goredis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then
		return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0`)
	ownDelete = goredis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then
		return redis.call('DEL', KEYS[1]) end return 0`)
)

// renew reports whether the lock was still there and ours.
func (t *twinLock) renew(ctx context.Context, d time.Duration) bool {
	n, err := ownExpire.Run(ctx, t.c, []string{t.name}, t.nonce, d.Milliseconds()).Int()
	return err == nil && n == 1
}

// every calls f after each pause until it is false or ctx is done.
func every(ctx context.Context, pause time.Duration, f func() bool) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if !f() {
			return
		}
	}
}

// twin is SET NX PX, asked again and again, with a keeper of what is held.
func twin(keep func(t *twinLock, held context.Context) <-chan struct{}) func(
	context.Context, []string, time.Duration) (client, error) {
	return func(_ context.Context, addrs []string, ttl time.Duration) (client, error) {
		c := goredisClient(addrs[0])
		alive, end := context.WithCancel(context.Background())
		return client{
			mutex: func(name string) mutex {
				return mutex{lock: func(ctx context.Context) (hold, error) {
					t := &twinLock{c, name, strconv.FormatUint(rand.Uint64(), 36), ttl}
					for {
						ok, err := c.SetNX(ctx, name, t.nonce, ttl).Result()
						if ok {
							break
						}
						if err = errors.Join(err, ctx.Err()); err != nil {
							return hold{}, err
						}
						time.Sleep(50 * time.Millisecond)
					}
					held, free := context.WithCancel(alive)
					return hold{
						unlock: func(ctx context.Context) error {
							free()
							return ownDelete.Run(ctx, c, []string{name}, t.nonce).Err()
						},
						lost: keep(t, held),
					}, nil
				}}
			},
			close: func() { end(); _ = c.Close() },
		}, nil
	}
}

// fair gives a free lock to the first of a queue. KEYS: the lock, the queue, the places' ends; ARGV:
// who asks, the lease in ms, now in ms, how long a place lasts in ms.
var fair = goredis.NewScript(`
	while true do
		local head = redis.call('LINDEX', KEYS[2], 0)
		if not head or tonumber(redis.call('ZSCORE', KEYS[3], head)) > tonumber(ARGV[3]) then break end
		redis.call('LPOP', KEYS[2])
		redis.call('ZREM', KEYS[3], head)
	end
	local head = redis.call('LINDEX', KEYS[2], 0)
	if redis.call('EXISTS', KEYS[1]) == 0 and (not head or head == ARGV[1]) then
		if head then redis.call('LPOP', KEYS[2]) end
		redis.call('ZREM', KEYS[3], ARGV[1])
		redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
		return 1
	end
	if not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
		redis.call('RPUSH', KEYS[2], ARGV[1])
		redis.call('ZADD', KEYS[3], ARGV[3] + ARGV[4], ARGV[1])
	end
	return 0`)

func openFair(_ context.Context, addrs []string, ttl time.Duration) (client, error) {
	c := goredisClient(addrs[0])
	return client{
		mutex: func(name string) mutex {
			return mutex{lock: func(ctx context.Context) (hold, error) {
				me := strconv.FormatUint(rand.Uint64(), 36)
				for {
					keys := []string{name, name + ":queue", name + ":places"}
					now, stays := time.Now().UnixMilli(), (5 * time.Minute).Milliseconds()
					n, err := fair.Run(ctx, c, keys, me, ttl.Milliseconds(), now, stays).Int()
					if err != nil {
						return hold{}, err
					}
					if n == 1 {
						return hold{unlock: func(ctx context.Context) error {
							return ownDelete.Run(ctx, c, []string{name}, me).Err()
						}}, nil
					}
					time.Sleep(50 * time.Millisecond)
				}
			}}
		},
		close: func() { _ = c.Close() },
	}, nil
}
