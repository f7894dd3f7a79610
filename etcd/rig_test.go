package etcd_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/etcd"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
)

// What all drivers' tests do alike.
var (
	open   = testkit.Open
	must   = testkit.Must
	want   = testkit.Want
	await  = testkit.Await
	within = testkit.Within
	get    = testkit.Get
	lock   = testkit.Lock
	unlock = testkit.Unlock
	begin  = testkit.Begin
	start  = testkit.Start
	lost   = testkit.Lost
)

type (
	locks   = testkit.Locks
	pending = testkit.Pending
)

// rig is a keyspace of its own on a server that tests may share.
type rig struct {
	e      *servers.EtcdCluster
	c      *clientv3.Client // knows nothing of locks
	prefix string
}

// on returns a rig on a cluster.
func on(t *testing.T, e *servers.EtcdCluster, prefix string) *rig {
	t.Helper()
	return &rig{e, client(t, e), prefix}
}

// client returns a plain client of a cluster.
func client(t *testing.T, e *servers.EtcdCluster) *clientv3.Client {
	t.Helper()
	return clientOf(t, clientv3.Config{Endpoints: e.Addrs(), TLS: e.TLSConfig()})
}

// clientOf returns a client as a program makes it.
func clientOf(t *testing.T, conf clientv3.Config) *clientv3.Client {
	t.Helper()
	conf.Logger = zap.NewNop()
	c, err := clientv3.New(conf)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// over returns a Locker over a client of the program, and its driver.
func (r *rig) over(t *testing.T, c *clientv3.Client, opts ...fencelock.Option) (*fencelock.Locker, *etcd.Driver) {
	t.Helper()
	d, err := etcd.New(c, &etcd.Options{Prefix: r.prefix})
	must(t, err)
	l, err := fencelock.New(d, opts...)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, d
}

// url is the rig's as the driver takes it, by way of hosts if there are any.
func (r *rig) url(hosts ...string) string {
	if len(hosts) == 0 {
		hosts = r.e.Addrs()
	}
	return "etcd://" + strings.Join(hosts, ",") + "?prefix=" + url.QueryEscape(r.prefix)
}

// proxied puts a fault proxy in front of the first server; the string is the URL through it.
func (r *rig) proxied(t *testing.T) (*faultproxy.Proxy, string) {
	t.Helper()
	p := testkit.Proxied(t, r.e.Addrs()[0])
	return p, r.url(p.Addr())
}

// driver returns a bare driver.
func (r *rig) driver(t *testing.T, url string) caller {
	t.Helper()
	d, err := backend.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return call(d.(*etcd.Driver))
}

// request returns a request for a bare driver.
func request(name string, nonce int, ttl time.Duration) *backend.Request {
	return &backend.Request{
		Name: name, Nonce: fmt.Sprintf("%032x", nonce), Owner: "somebody", TTL: ttl, Auto: true,
		Lost: func(error) {},
	}
}

// queue lists the nonces of a lock's entries, the holder's first.
func (r *rig) queue(t *testing.T, name string) []string {
	t.Helper()
	queue := r.prefix + "~lock/" + name + "/"
	resp, err := r.c.Get(context.WithoutCancel(t.Context()), queue, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatal(err)
	}
	var nonces []string
	for _, kv := range resp.Kvs {
		nonces = append(nonces, strings.TrimPrefix(string(kv.Key), queue))
	}
	return nonces
}

// keys lists what is in the rig's keyspace but what is constant.
func (r *rig) keys(t *testing.T) []string {
	t.Helper()
	resp, err := r.c.Get(t.Context(), r.prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, kv := range resp.Kvs {
		if key := string(kv.Key); key != r.prefix+"~base" && key != r.prefix+"~last" {
			keys = append(keys, key)
		}
	}
	return keys
}

// tombs counts the tombstones among keys.
func tombs(keys []string) int {
	return len(keys) -
		len(slices.DeleteFunc(slices.Clone(keys), func(k string) bool {
			return strings.Contains(k, "~gone/")
		}))
}

// awaitFree returns when a lock has no entry.
func (r *rig) awaitFree(t *testing.T, name string) {
	t.Helper()
	await(t, 10*time.Second, "nothing is left of "+name, func() bool { return len(r.queue(t, name)) == 0 })
}

// wait begins to wait for a lock that is held and returns when n entries are in its queue.
func (r *rig) wait(t *testing.T, m fencelock.Mutex, n int) *pending {
	t.Helper()
	p := start(t, m)
	await(t, 10*time.Second, fmt.Sprintf("%d in the queue of %q", n, m.Name()), func() bool {
		return len(r.queue(t, m.Name())) == n
	})
	return p
}

// rising fails the test unless b is above a.
func rising(t *testing.T, what string, a, b fencelock.Token) {
	t.Helper()
	if b <= a {
		t.Errorf("token %s: got %d after %d", what, b, a)
	}
}

// caller is a driver, and how the engine calls it.
type caller struct {
	*etcd.Driver
	core.Gater
}

// call returns the caller of d; as in Go, nothing comes of an error before.
func call(d *etcd.Driver) caller { return caller{d, core.Of(d).(core.Gater)} }
