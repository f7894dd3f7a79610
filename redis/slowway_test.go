package redis_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// A connection that is made on a slow way takes longer than the first sends are given, and its client keeps none that
// is half made.
func TestConnectionOnASlowWay(t *testing.T) {
	t.Parallel()
	p, url := proxied(t, servers.Redis(t, servers.RedisOptions{}))
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("x")))
	p.Set(faultproxy.Mode{Delay: 125 * time.Millisecond})
	p.Cut()
	began := time.Now()
	le, err := l.Mutex("x").Lock(within(t, 10*time.Second))
	must(t, err)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("granted after %v, want soon: a connection takes two round trips", took)
	}
	p.Cut()
	unlock(t, le)
}

// A program's own cluster client that knows no slots yet asks for them first, and makes no call outlive its ctx.
func TestClusterClientThatKnowsNoSlots(t *testing.T) {
	t.Parallel()
	p, _ := proxied(t, servers.Redis(t, servers.RedisOptions{}))
	p.Set(faultproxy.BlackHole)
	c := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{p.Addr()}})
	d, err := redis.New(c, nil)
	must(t, err)
	claims := []*backend.Claim{{Request: request("x", nonceA, "")}}
	for what, call := range map[string]func(context.Context) error{
		"Enter": func(ctx context.Context) error { return d.Enter(ctx, claims[0]) },
		"Keep":  func(ctx context.Context) error { return d.Keep(ctx, claims, true)[0] },
	} {
		began := time.Now()
		want(t, what, call(within(t, 300*time.Millisecond)), context.DeadlineExceeded)
		if took := time.Since(began); took > 2500*time.Millisecond { // the client's time limits are 3 s and more
			t.Errorf("%s, bounded by 300ms, took %v", what, took)
		}
	}
	must(t, c.Close())
	must(t, d.Close())
}

// A lease in a cluster is renewed by connections that may have to be made first, which takes a program's own client
// four round trips: here all are cut when the lock is granted, and the way is slow from then on.
func TestClusterLeaseOnASlowWay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for 16s")
	}
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 3})
	var mu sync.Mutex
	ways, mode := map[string]*faultproxy.Proxy{}, faultproxy.Mode{}
	way := func(ctx context.Context, network, addr string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if ways[addr] == nil {
			p, err := faultproxy.New(addr)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = p.Close() })
			p.Set(mode)
			ways[addr] = p
		}
		return (&net.Dialer{}).DialContext(ctx, network, ways[addr].Addr())
	}
	c := goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs: cl.Addrs(), Dialer: way, ContextTimeoutEnabled: true,
	})
	defer c.Close()
	d, err := redis.New(c, nil)
	must(t, err)
	l, err := fencelock.New(d, fencelock.WithTTL(15*time.Second))
	must(t, err)
	le := lock(t, l.Mutex("x"))
	mu.Lock()
	mode.Delay = 125 * time.Millisecond
	for _, p := range ways {
		p.Set(mode)
		p.Cut()
	}
	mu.Unlock()
	select {
	case <-le.Done():
		t.Error(le.Err())
	case <-time.After(16 * time.Second):
		mu.Lock()
		mode = faultproxy.Mode{}
		for _, p := range ways {
			p.Set(mode)
		}
		mu.Unlock()
		unlock(t, le)
	}
	must(t, l.Close())
}
