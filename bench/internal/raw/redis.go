package raw

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench/internal/measure"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// compareAndDelete is the classic release.
var compareAndDelete = goredis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// deleteAndPublish also wakes waiters.
var deleteAndPublish = goredis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then
	redis.call('DEL', KEYS[1])
	redis.call('PUBLISH', KEYS[1], '')
	return 1
end
return 0`)

// redis is the canonical recipe: SET NX PX, and a script that compares and deletes. A waiter gets a
// message and sets the key.
type redis struct {
	at     Place
	client goredis.UniversalClient
	mu     sync.Mutex
	made   []string // keys
	values int64
	subs   []*goredis.PubSub
}

func openRedis(p Place) (Store, error) {
	o, err := redisOptions(p, p.URL.Scheme == "rediss")
	if err != nil {
		return nil, err
	}
	switch p.URL.Scheme {
	case "redis+cluster":
		return &redis{at: p, client: goredis.NewClusterClient(o.Cluster())}, nil
	case "redis+sentinel":
		return &redis{at: p, client: goredis.NewFailoverClient(o.Failover())}, nil
	}
	return &redis{at: p, client: goredis.NewClient(o.Simple())}, nil
}

// redisOptions reads the URL, which the driver has checked, for a client like the driver's.
func redisOptions(p Place, secure bool) (*goredis.UniversalOptions, error) {
	secure = secure || p.Query.Bool("tls", false)
	s, err := redisnode.ReadURL(p.URL, p.Query, 0, secure, "use rediss:// or redlocks://")
	if err != nil {
		return nil, err
	}
	o := &goredis.UniversalOptions{
		Addrs: backend.Hosts(p.URL, "6379"), Username: s.User, Password: s.Password,
		SentinelUsername: p.Query.String("sentinel_username", ""),
		SentinelPassword: p.Query.String("sentinel_password", ""),
		DialTimeout:      s.Dial, MaxRetries: 1, ContextTimeoutEnabled: true,
		PoolSize: s.PoolSize, TLSConfig: s.TLS,
	}
	if p.URL.Scheme == "redis+sentinel" {
		o.Addrs, o.MasterName, s.Path = backend.Hosts(p.URL, "26379"), s.Path[0], s.Path[1:]
	}
	o.DB, err = redisnode.Database(s.Path)
	return o, err
}

func (r *redis) Mutex(ctx context.Context, name string, waits bool) (measure.Mutex, error) {
	key, release := r.at.key(name), compareAndDelete
	var sub *goredis.PubSub
	if waits {
		release, sub = deleteAndPublish, r.client.Subscribe(ctx, key)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = append(r.made, key)
	if waits {
		r.subs = append(r.subs, sub)
		if _, err := sub.Receive(ctx); err != nil { // the confirmation
			return measure.Mutex{}, err
		}
	}
	r.values++
	mine, n, value := strconv.FormatInt(r.values, 10)+".", 0, ""
	keys := []string{key}
	return measure.Mutex{
		Lock: func(ctx context.Context) error {
			n++
			value = mine + strconv.Itoa(n)
			for {
				ok, err := r.client.SetNX(ctx, key, value, ttl).Result()
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
		Unlock: func(ctx context.Context) error {
			return release.Run(ctx, r.client, keys, value).Err()
		},
	}, nil
}

// Commands sums the counts of INFO commandstats of all masters. They include the commands that scripts call.
func (r *redis) Commands(ctx context.Context) (int64, bool) {
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

var (
	everyCommand = regexp.MustCompile(`(?m)^cmdstat_.*?:calls=(\d+)`)
	infoCommand  = regexp.MustCompile(`(?m)^cmdstat_info:calls=(\d+)`)
)

func redisCommands(ctx context.Context, c goredis.Cmdable) (int64, bool) {
	text, err := c.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, false // the library does not need the right to INFO
	}
	return SumOf(text, everyCommand) - SumOf(text, infoCommand), true
}

// SumOf adds up the numbers in a text.
func SumOf(text string, number *regexp.Regexp) (sum int64) {
	for _, m := range number.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseFloat(m[1], 64) // the pattern is one of numbers
		sum += int64(n)
	}
	return sum
}

func (r *redis) Wipe(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.made { // one by one: they are in several slots
		if err := r.client.Del(ctx, k).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (r *redis) Close() error {
	for _, sub := range r.subs {
		_ = sub.Close() // the client's error is the one to report
	}
	return r.client.Close()
}

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
