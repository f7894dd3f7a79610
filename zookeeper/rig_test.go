package zookeeper_test

import (
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
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/zookeeper"
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
	p := testkit.Proxied(t, s.Addr())
	return p, "zookeeper://" + p.Addr()
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

// caller is a driver, and how the engine calls it.
type caller struct {
	*zookeeper.Driver
	core.Gater
}

// call returns the caller of d; as in Go, nothing comes of an error before.
func call(d *zookeeper.Driver) caller { return caller{d, core.Of(d).(core.Gater)} }
