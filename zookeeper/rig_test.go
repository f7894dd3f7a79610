package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/zookeeper"
)

// sessionLength is that of clients which know nothing of locks.
const (
	sessionLength = 10 * time.Second
	patience      = 2 * time.Second
)

// silent is a logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

// single starts one server that grants long sessions.
func single(t *testing.T) *servers.ZooKeeperEnsemble {
	t.Helper()
	return servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
}

// open returns a Locker of its own: one more client of the store.
func open(t *testing.T, url string, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l, err := fencelock.Open(t.Context(), url, opts...)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() }) // the test may have taken its server away
	return l
}

// foreign returns a plain client of the servers.
func foreign(t *testing.T, addrs ...string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect(addrs, sessionLength, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range events {
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return c
}

// proxied puts a fault proxy in front of a server; the string is the URL through it.
func proxied(t *testing.T, s *servers.Server) (*faultproxy.Proxy, string) {
	t.Helper()
	p, err := faultproxy.New(s.Addr())
	must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p, "zookeeper://" + p.Addr()
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
		<-time.After(2 * time.Millisecond)
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
	must(t, err)
	return le
}

// unlock frees a lock that is surely held.
func unlock(t *testing.T, le *fencelock.Lease) {
	t.Helper()
	must(t, le.Unlock(context.WithoutCancel(t.Context())))
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

// queue begins to wait for a lock that is held and returns when the server has n waiters.
func queue(t *testing.T, c *zk.Conn, l *fencelock.Locker, name string, n int) *pending {
	t.Helper()
	p := start(t, l.Mutex(name))
	await(t, 10*time.Second, fmt.Sprintf("%d in the queue for %q", n, name), func() bool {
		return len(nodes(t, c, name, "wait-")) == n
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
	must(t, p.err)
	return p.lease
}

const root = "/fencelock:"

// at is the node of a name that needs no escapes, with the default prefix.
func at(name string) string { return root + "/locks/" + name }

// nodes are those of a name that begin with mark, with their paths.
func nodes(t *testing.T, c *zk.Conn, name, mark string) []string {
	t.Helper()
	_, err := c.Sync("/")
	must(t, err)
	children, _, err := c.Children(at(name))
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	var found []string
	for _, ch := range children {
		if strings.HasPrefix(ch, mark) {
			found = append(found, at(name)+"/"+ch)
		}
	}
	return found
}

// holder is the node of a name's holder.
func holder(t *testing.T, c *zk.Conn, name string) string {
	t.Helper()
	held := nodes(t, c, name, "held-")
	if len(held) != 1 {
		t.Fatalf("holders of %q: got %q, want one", name, held)
	}
	return held[0]
}

// leftovers are the names that have a node.
func leftovers(t *testing.T, c *zk.Conn) []string {
	t.Helper()
	_, err := c.Sync("/")
	must(t, err)
	children, _, err := c.Children(root + "/locks")
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return children
}

// awaitClean returns when no name has a node.
func awaitClean(t *testing.T, c *zk.Conn, most time.Duration) {
	t.Helper()
	await(t, most, "no name has a node", func() bool { return len(leftovers(t, c)) == 0 })
}

// want fails the test unless err matches target.
func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

// lost waits for the end of a lease and checks its reason.
func lost(t *testing.T, le *fencelock.Lease, most time.Duration, reasons ...fencelock.Reason) {
	t.Helper()
	select {
	case <-le.Done():
	case <-time.After(most):
		t.Fatalf("the loss was not seen within %v", most)
	}
	var l *fencelock.LostError
	if !errors.As(le.Err(), &l) {
		t.Fatalf("got %v, want a loss", le.Err())
	}
	for _, r := range reasons {
		if l.Reason == r {
			return
		}
	}
	t.Errorf("got %v, want one of %v", l, reasons)
}

// caller is a driver, and how the engine calls it.
type caller struct {
	*zookeeper.Driver
	core.Gater
}

// call returns the caller of d; as in Go, nothing comes of an error before.
func call(d *zookeeper.Driver) caller { return caller{d, core.Of(d).(core.Gater)} }
