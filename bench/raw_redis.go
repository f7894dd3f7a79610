package bench

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// compareAndDelete is the classic release.
var compareAndDelete = goredis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// deleteAndPublish is the same for those who wait.
var deleteAndPublish = goredis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('PUBLISH', KEYS[1], '') return redis.call('DEL', KEYS[1]) end return 0`)

var errTaken = errors.New("the raw lock is taken, and nobody should have it")

// rawRedis is the canonical recipe: SET NX PX, and a script that compares and deletes. It hands over by a message.
type rawRedis struct {
	p      place
	client goredis.UniversalClient
	mu     sync.Mutex
	made   []string // keys
}

func openRawRedis(p place) (raw, error) {
	o, err := redisOptions(p, p.u.Scheme == "rediss")
	if err != nil {
		return nil, err
	}
	switch p.u.Scheme {
	case "redis+cluster":
		return &rawRedis{p: p, client: goredis.NewClusterClient(o.Cluster())}, nil
	case "redis+sentinel":
		return &rawRedis{p: p, client: goredis.NewFailoverClient(o.Failover())}, nil
	}
	return &rawRedis{p: p, client: goredis.NewClient(o.Simple())}, nil
}

// redisOptions reads the URL, which the driver has checked, for a client like the driver's.
func redisOptions(p place, secure bool) (*goredis.UniversalOptions, error) {
	path, port := strings.Split(strings.Trim(p.u.Path, "/"), "/"), "6379"
	o := &goredis.UniversalOptions{
		SentinelUsername: p.keys.Get("sentinel_username"), SentinelPassword: p.keys.Get("sentinel_password"),
		DialTimeout: 2 * time.Second, MaxRetries: 1, ContextTimeoutEnabled: true,
	}
	if p.u.Scheme == "redis+sentinel" {
		o.MasterName, path, port = path[0], path[1:], "26379"
	}
	if len(path) > 0 {
		o.DB, _ = strconv.Atoi(path[0]) // 0 where there is none
	}
	if p.u.User != nil {
		o.Username = p.u.User.Username()
		o.Password, _ = p.u.User.Password()
	}
	o.PoolSize, _ = strconv.Atoi(p.keys.Get("pool_size")) // 0: the client's default, as for the driver
	o.Addrs = backend.Hosts(p.u, port)
	var err error
	o.TLSConfig, err = tlsurl.Config(secure || p.q.Bool("tls", false), p.q, "use rediss:// or redlocks://")
	return o, err
}

// note remembers a key for wipe.
func (r *rawRedis) note(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = append(r.made, key)
}

func (r *rawRedis) cycle(name string) (cycle, error) {
	key := r.p.key(name)
	r.note(key)
	keys, n := []string{key}, 0
	return func(ctx context.Context, held func()) error {
		n++
		value := strconv.Itoa(n)
		ok, err := r.client.SetNX(ctx, key, value, rawTTL).Result()
		if err != nil {
			return err
		}
		if !ok {
			return errTaken
		}
		held()
		return compareAndDelete.Run(ctx, r.client, keys, value).Err()
	}, nil
}

// relay hands over as the recipe does: who releases publishes, and who hears of it sets the key.
func (r *rawRedis) relay(ctx context.Context, name string) (*relay, error) {
	key := r.p.key(name)
	r.note(key)
	sub := r.client.Subscribe(ctx, key)
	if _, err := sub.Receive(ctx); err != nil { // the confirmation
		_ = sub.Close()
		return nil, err
	}
	take := func(ctx context.Context) error {
		ok, err := r.client.SetNX(ctx, key, "raw", rawTTL).Result()
		if err == nil && !ok {
			err = errTaken
		}
		return err
	}
	return &relay{
		hold: take,
		free: func(ctx context.Context) error {
			return deleteAndPublish.Run(ctx, r.client, []string{key}, "raw").Err()
		},
		wait: func(ctx context.Context) error {
			if _, err := sub.ReceiveMessage(ctx); err != nil {
				return err
			}
			return take(ctx)
		},
		after: func(ctx context.Context) error {
			return compareAndDelete.Run(ctx, r.client, []string{key}, "raw").Err()
		},
		shut: func() { _ = sub.Close() },
	}, nil
}

// commands sums what INFO commandstats counts, which is also what scripts call, of all masters.
func (r *rawRedis) commands(ctx context.Context) (int64, bool) {
	cluster, ok := r.client.(*goredis.ClusterClient)
	if !ok {
		return redisCommands(ctx, r.client)
	}
	var (
		mu   sync.Mutex
		sum  int64
		told = true
	)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *goredis.Client) error {
		n, ok := redisCommands(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		sum, told = sum+n, told && ok
		return nil
	})
	return sum, told && err == nil
}

func redisCommands(ctx context.Context, c goredis.Cmdable) (int64, bool) {
	text, err := c.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, false // INFO is not among the rights that the library needs
	}
	var sum int64
	for line := range strings.Lines(text) {
		name, stats, ok := strings.Cut(line, ":calls=")
		if !ok || name == "cmdstat_info" {
			continue
		}
		calls, _, _ := strings.Cut(stats, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return 0, false
		}
		sum += n
	}
	return sum, true
}

func (r *rawRedis) wipe(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.made { // one by one: they are in several slots
		if err := r.client.Del(ctx, k).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (r *rawRedis) close() error { return r.client.Close() }
