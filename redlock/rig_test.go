package redlock_test

import (
	"errors"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/redlock"
)

// What all drivers' tests do alike.
var (
	open   = testkit.Open
	must   = testkit.Must
	want   = testkit.Want
	await  = testkit.Await
	lock   = testkit.Lock
	unlock = testkit.Unlock
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
		p := testkit.Proxied(t, addr)
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
