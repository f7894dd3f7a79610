package redlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redlock"
)

// state is the key of a node's own state.
const state = "fl\x00rl"

// cluster is nodes of a test, each with a proxy through which the library may be led, and a client that knows no locks.
type cluster struct {
	*servers.Group
	addrs  []string
	direct []*goredis.Client
}

func start(t testing.TB, n int) *cluster {
	t.Helper()
	g := servers.Redises(t, n, servers.RedisOptions{})
	return over(t, g, g.Addrs())
}

// over makes the plain clients.
func over(t testing.TB, g *servers.Group, addrs []string) *cluster {
	c := &cluster{Group: g, addrs: addrs}
	for _, addr := range addrs {
		r := goredis.NewClient(&goredis.Options{Addr: addr, PoolSize: 2})
		t.Cleanup(func() { _ = r.Close() })
		c.direct = append(c.direct, r)
	}
	return c
}

// url is the nodes' URL, with keys such as "fresh=1".
func (c *cluster) url(keys string) string { return url(c.addrs, keys) }

func url(addrs []string, keys string) string {
	return "redlock://" + strings.Join(addrs, ",") + "/0?" + keys
}

// proxied is the URL through a proxy before each node.
func (c *cluster) proxied(t *testing.T, keys string) ([]*faultproxy.Proxy, string) {
	t.Helper()
	var ps []*faultproxy.Proxy
	var addrs []string
	for _, addr := range c.addrs {
		p, err := faultproxy.New(addr)
		must(t, err)
		t.Cleanup(func() { _ = p.Close() })
		ps, addrs = append(ps, p), append(addrs, p.Addr())
	}
	return ps, url(addrs, keys)
}

// value is a lock's value on a node; empty if it is free.
func (c *cluster) value(t *testing.T, node int, name string) string {
	t.Helper()
	v, err := c.direct[node].Get(t.Context(), "fencelock:"+name).Result()
	if err != nil && !errors.Is(err, goredis.Nil) {
		t.Fatal(err)
	}
	return v
}

// open returns a Locker of its own: one more client of the nodes.
func open(t testing.TB, url string, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l, err := fencelock.Open(t.Context(), url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the test may have taken its servers away
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want fails the test unless err matches target.
func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

// await returns when ok does, and fails the test if that takes too long.
func await(t *testing.T, most time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", most, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// lock takes a lock that is free, or soon will be.
func lock(t testing.TB, m fencelock.Mutex) *fencelock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	le, err := m.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return le
}

func unlock(t testing.TB, le *fencelock.Lease) {
	t.Helper()
	if err := le.Unlock(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// refuse makes a proxy as good as a node that is down.
func refuse(p *faultproxy.Proxy) {
	p.Set(faultproxy.Mode{Refuse: true})
	p.Cut()
}

// caller is a driver, and how the engine calls it.
type caller struct {
	*redlock.Driver
	core.Gater
}

// call returns the caller of d; as in Go, nothing comes of an error before.
func call(d *redlock.Driver) caller { return caller{d, core.Of(d).(core.Gater)} }
