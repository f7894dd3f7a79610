package etcd_test

import (
	"context"
	"errors"
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
	p, err := faultproxy.New(r.e.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, r.url(p.Addr())
}

// open returns a Locker of its own: one more client of the store.
func open(t *testing.T, url string, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l, err := fencelock.Open(t.Context(), url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the test may have taken its server away
	return l
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
func (r *rig) awaitFree(t *testing.T, name string, most time.Duration) {
	t.Helper()
	await(t, most, "nothing is left of "+name, func() bool { return len(r.queue(t, name)) == 0 })
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
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

// within is a ctx of the test that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// lock takes a lock that is free, or soon will be.
func lock(t *testing.T, m fencelock.Mutex) *fencelock.Lease {
	t.Helper()
	le, err := m.Lock(within(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return le
}

// unlock frees a lock that is surely held.
func unlock(t *testing.T, le *fencelock.Lease) {
	t.Helper()
	if err := le.Unlock(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// pending is a Lock that waits on a goroutine of its own.
type pending struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has returned
	at     time.Time     // when; with what follows valid once done is closed
	lease  *fencelock.Lease
	err    error
}

// start begins to wait for a lock.
func start(t *testing.T, m fencelock.Mutex) *pending {
	ctx, cancel := context.WithCancel(t.Context())
	p := &pending{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.lease, p.err = m.Lock(ctx)
		p.at = time.Now()
	}()
	t.Cleanup(func() { p.cancel(); <-p.done })
	return p
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

// granted returns the lease of a wait, which must have been granted in time.
func (p *pending) granted(t *testing.T, most time.Duration) *fencelock.Lease {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(most):
		t.Fatalf("not granted within %v", most)
	}
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.lease
}

// over reports whether a wait has ended.
func (p *pending) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// want fails the test unless err matches target.
func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

// lost waits for the end of a lease and checks its reason; it returns when the end was seen.
func lost(t *testing.T, le *fencelock.Lease, most time.Duration, reasons ...fencelock.Reason) time.Time {
	t.Helper()
	select {
	case <-le.Done():
	case <-time.After(most):
		t.Fatalf("the loss was not seen within %v", most)
	}
	at := time.Now()
	var l *fencelock.LostError
	if !errors.As(le.Err(), &l) || !slices.Contains(reasons, l.Reason) {
		t.Errorf("got %v, want a loss: %v", le.Err(), reasons)
	}
	return at
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
