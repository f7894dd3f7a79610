package backends

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

func TestRedis(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	direct := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = direct.Close() })
	address := func(c conformance.Client) string {
		host := s.Addr()
		if p, ok := c.Link.(*faultproxy.Proxy); ok {
			host = p.Addr()
		}
		return "redis://" + host + "?prefix=" + url.QueryEscape(c.Prefix)
	}
	run(t, conformance.Harness{
		Name: "redis",
		Driver: func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
			return backend.Open(ctx, address(c), nil)
		},
		Link:   func(context.Context) (conformance.Link, error) { return faultproxy.New(s.Addr()) },
		Store:  redisStore{direct, func(f func(goredis.Cmdable) error) error { return f(direct) }},
		Server: rewinding(t, redisServer{s}, s),
		URL:    address,
		Apart: []conformance.Apart{{
			What: "two databases of one server",
			Driver: func(ctx context.Context, side int, prefix string) (backend.Driver, error) {
				return backend.Open(ctx,
					fmt.Sprintf("redis://%s/%d?prefix=%s",
						s.Addr(), side+1, url.QueryEscape(prefix)), nil)
			},
		}},
		Given: func(ctx context.Context) (backend.Driver, func(context.Context) error, error) {
			c := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
			t.Cleanup(func() { _ = c.Close() })
			return given(c, func() any { return *c.Options() })
		},
		Guard:  guard(direct),
		Fill:   func(ctx context.Context) (func(context.Context) error, error) { return fillRedis(ctx, direct) },
		Shared: func(context.Context) (*conformance.Shared, error) { return redisShared(t, s.Addr()), nil },
	})
}

// fillRedis leaves servers no memory: they evict nothing, and refuse what may need more.
func fillRedis(ctx context.Context, cs ...*goredis.Client) (func(context.Context) error, error) {
	var undo []func(context.Context) error
	empty := func(ctx context.Context) error {
		var errs []error
		for _, f := range slices.Backward(undo) {
			errs = append(errs, f(ctx))
		}
		return errors.Join(errs...)
	}
	for _, c := range cs {
		before, err := c.ConfigGet(ctx, "maxmemory*").Result()
		if err != nil {
			return nil, errors.Join(err, empty(ctx))
		}
		for _, set := range [][2]string{{"maxmemory-policy", "noeviction"}, {"maxmemory", "1"}} {
			undo = append(undo, func(ctx context.Context) error {
				return c.ConfigSet(ctx, set[0], before[set[0]]).Err()
			})
			if err := c.ConfigSet(ctx, set[0], set[1]).Err(); err != nil {
				return nil, errors.Join(err, empty(ctx))
			}
		}
	}
	return empty, nil
}

// redisShared is a program's own client, with a pool of three connections.
func redisShared(t *testing.T, addr string) *conformance.Shared {
	const pool = 3
	c := goredis.NewClient(&goredis.Options{Addr: addr, PoolSize: pool})
	t.Cleanup(func() { _ = c.Close() }) // a rule may have closed it
	return &conformance.Shared{
		Driver: func(prefix string) (backend.Driver, error) { return redis.New(c, &redis.Options{Prefix: prefix}) },
		UseUp: func(ctx context.Context) (func(), error) {
			var conns []*goredis.Conn
			giveBack := func() {
				for _, conn := range conns {
					_ = conn.Close()
				}
			}
			for range pool {
				conn := c.Conn()
				conns = append(conns, conn)
				if err := conn.Ping(ctx).Err(); err != nil { // takes it out of the pool
					giveBack()
					return nil, err
				}
			}
			return giveBack, nil
		},
		Close: c.Close,
	}
}

// guard is the guard of a Redis, with resources of their own for each prefix.
func guard(c goredis.Scripter) func(context.Context, string) (fence.Guard, error) {
	return func(_ context.Context, prefix string) (fence.Guard, error) {
		return under{redis.NewGuard(c), prefix}, nil
	}
}

// under is a guard whose resources have a prefix.
type under struct {
	fence.Guard
	prefix string
}

func (u under) Check(ctx context.Context, resource string, t fence.Token) error {
	return u.Guard.Check(ctx, u.prefix+resource, t)
}

// given makes a driver over the caller's client, and the check that the client works and
// that its options, as far as they can be compared, are as they were.
func given(c goredis.UniversalClient, options func() any) (backend.Driver, func(context.Context) error, error) {
	type facts struct {
		Timeouts bool
		Retries  int
		Read     time.Duration
	}
	look := func() facts {
		switch o := options().(type) {
		case goredis.Options:
			return facts{o.ContextTimeoutEnabled, o.MaxRetries, o.ReadTimeout}
		case goredis.ClusterOptions:
			return facts{o.ContextTimeoutEnabled, o.MaxRedirects, o.ReadTimeout}
		}
		return facts{}
	}
	before := look()
	d, err := redis.New(c, nil)
	return d, func(ctx context.Context) error {
		if look() != before {
			return errors.New("its options have changed")
		}
		return c.Set(ctx, "still-there", "1", time.Second).Err()
	}, err
}

func TestRedisSentinel(t *testing.T) {
	t.Parallel()
	skipShort(t)
	g := servers.RedisSentinel(t, servers.SentinelOptions{Replicas: 1})
	for _, addr := range g.Addrs() { // no rule takes the master away, and a busy machine is not to do it
		s := goredis.NewSentinelClient(&goredis.Options{Addr: addr})
		if err := s.Set(t.Context(), g.MasterName(), "down-after-milliseconds", "60000").Err(); err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
	}
	connect := func(link conformance.Link) goredis.UniversalClient {
		return goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: g.MasterName(), SentinelAddrs: g.Addrs(), Dialer: dialer(link),
			ContextTimeoutEnabled: true, MaxRetries: 1,
		})
	}
	direct := connect(nil)
	t.Cleanup(func() { _ = direct.Close() })
	h := redisHarness("redis-sentinel", connect,
		redisStore{direct, func(f func(goredis.Cmdable) error) error { return f(direct) }},
		func(c conformance.Client) string { return withPrefix(g.URL(), c.Prefix) })
	h.Guard = guard(direct)
	run(t, h)
}

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	skipShort(t)
	g := servers.RedisCluster(t, servers.ClusterOptions{
		// One that a busy machine keeps from answering for a second is not to take the whole cluster down for three.
		Masters: 3, Config: []string{"cluster-node-timeout 60000"},
	})
	connect := func(link conformance.Link) goredis.UniversalClient {
		return goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: g.Addrs(), Dialer: dialer(link), ContextTimeoutEnabled: true,
		})
	}
	direct := connect(nil)
	t.Cleanup(func() { _ = direct.Close() })
	store := redisStore{direct, func(f func(goredis.Cmdable) error) error {
		return direct.(*goredis.ClusterClient).
			ForEachMaster(context.Background(), func(_ context.Context, c *goredis.Client) error {
				return f(c)
			})
	}}
	h := redisHarness("redis-cluster", connect, store,
		func(c conformance.Client) string { return withPrefix(g.URL(), c.Prefix) })
	h.Guard = guard(direct)
	run(t, h)
}

func withPrefix(u, prefix string) string { return u + "?prefix=" + url.QueryEscape(prefix) }

// redisHarness reaches a Redis of several nodes with the clients that connect makes.
func redisHarness(
	name string, connect func(conformance.Link) goredis.UniversalClient, store conformance.Store,
	address func(conformance.Client) string,
) conformance.Harness {
	return conformance.Harness{
		Name: name,
		Driver: func(_ context.Context, c conformance.Client) (backend.Driver, error) {
			client := connect(c.Link)
			d, err := redis.New(client, &redis.Options{Prefix: c.Prefix})
			if err != nil {
				return nil, errors.Join(err, client.Close())
			}
			return ownClient{d, client}, nil
		},
		Link:  func(context.Context) (conformance.Link, error) { return &proxies{}, nil },
		Store: store,
		URL:   address,
	}
}

// ownClient is a driver that closes the client too.
type ownClient struct {
	*redis.Driver
	client goredis.UniversalClient
}

func (d ownClient) Close() error { return errors.Join(d.client.Close(), d.Driver.Close()) }

// redisServer adds what the suite asks.
type redisServer struct{ *servers.Server }

func (redisServer) KeepsData() bool { return true }

// redisStore looks at Redis directly.
type redisStore struct {
	client goredis.UniversalClient
	nodes  func(func(goredis.Cmdable) error) error
}

func (s redisStore) Look(ctx context.Context, prefix, name string) (bool, time.Duration, error) {
	ttl, err := s.client.PTTL(ctx, prefix+name).Result()
	return ttl > 0, ttl, err
}

func (s redisStore) Take(ctx context.Context, prefix, name string) error {
	return s.client.Del(ctx, prefix+name).Err()
}

// Left lists the keys of the prefix's locks and queues. The counters and rings of the slots are constant.
func (s redisStore) Left(ctx context.Context, prefix string) ([]string, error) {
	var mu sync.Mutex
	var left []string
	err := s.nodes(func(c goredis.Cmdable) error {
		for it := c.Scan(ctx, 0, "*", 1000).Iterator(); it.Next(ctx); {
			if strings.Contains(it.Val(), prefix) {
				mu.Lock()
				left = append(left, it.Val())
				mu.Unlock()
			}
		}
		return nil
	})
	return left, err
}

// proxies is a Link to several nodes: one proxy for each that is dialled.
type proxies struct {
	mu     sync.Mutex
	byAddr map[string]*faultproxy.Proxy
	mode   faultproxy.Mode
}

// dialer dials through a Link's proxies; directly without one.
func dialer(link conformance.Link) func(context.Context, string, string) (net.Conn, error) {
	p, _ := link.(*proxies)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if p != nil {
			one, err := p.to(addr)
			if err != nil {
				return nil, err
			}
			addr = one.Addr()
		}
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
}

func (p *proxies) to(addr string) (*faultproxy.Proxy, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.byAddr[addr]; one != nil {
		return one, nil
	}
	one, err := faultproxy.New(addr)
	if err != nil {
		return nil, err
	}
	one.Set(p.mode)
	if p.byAddr == nil {
		p.byAddr = map[string]*faultproxy.Proxy{}
	}
	p.byAddr[addr] = one
	return one, nil
}

func (p *proxies) each(f func(*faultproxy.Proxy)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.byAddr {
		f(one)
	}
}

func (p *proxies) Set(m faultproxy.Mode) {
	p.mu.Lock()
	p.mode = m
	p.mu.Unlock()
	p.each(func(one *faultproxy.Proxy) { one.Set(m) })
}

func (p *proxies) Cut()              { p.each((*faultproxy.Proxy).Cut) }
func (p *proxies) LoseReplies(n int) { p.each(func(one *faultproxy.Proxy) { one.LoseReplies(n) }) }

func (p *proxies) Counts() (sum faultproxy.Counts) {
	p.each(func(one *faultproxy.Proxy) {
		c := one.Counts()
		sum.Open += c.Open
		sum.Opened += c.Opened
		sum.Requests += c.Requests
		sum.LostReplies += c.LostReplies
	})
	return sum
}

func (p *proxies) Close() error {
	p.each(func(one *faultproxy.Proxy) { _ = one.Close() })
	return nil
}
