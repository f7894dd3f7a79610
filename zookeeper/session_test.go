package zookeeper_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/zookeeper"
)

// ask sends one of ZooKeeper's four-letter commands.
func ask(t *testing.T, s *servers.Server, command string) string {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr())
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, command)
	must(t, err)
	answer, err := io.ReadAll(conn)
	must(t, err)
	return string(answer)
}

// What is longer than the servers' longest session is refused, with the number.
func TestTooLong(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{}) // sessions of 4 s at most, which cover (4 s - 300 ms) × 24/25
	l := open(t, z.URL())
	for _, opts := range [][]fencelock.Option{
		nil,
		{fencelock.WithTTL(365 * 24 * time.Hour)},
		{fencelock.WithTTL(3 * time.Second), fencelock.WithGrace(600 * time.Millisecond)},
	} {
		_, err := l.Mutex("x", opts...).Lock(t.Context())
		want(t, "too long", err, fencelock.ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), "3.552s at most") ||
			!strings.Contains(err.Error(), "maxSessionTimeout") {
			t.Errorf("got %v, want it to name the longest session", err)
		}
	}
	unlock(t, lock(t, l.Mutex("x", fencelock.WithTTL(3*time.Second), fencelock.WithGrace(500*time.Millisecond))))
}

// A session that is cut off and comes back in time keeps its locks: nobody is told of a loss.
func TestDisconnectedIsSuspended(t *testing.T) {
	t.Parallel()
	z := single(t)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url, fencelock.WithTTL(8*time.Second))
	le := lock(t, l.Mutex("x"))
	token, deadline := le.Token(), le.Deadline()
	p.Set(faultproxy.Mode{Refuse: true})
	p.Cut()
	await(t, 5*time.Second, "the client is refused", func() bool { return p.Counts().Refused > 1 })
	must(t, le.Err())
	p.Set(faultproxy.Mode{})
	await(t, 8*time.Second, "a renewal", func() bool { return le.Deadline().After(deadline) })
	if le.Token() != token {
		t.Errorf("token: got %d, want %d", le.Token(), token)
	}
	unlock(t, le)
}

// A session that the servers do not know any more takes its locks with it: the holder is told why, long before its
// Deadline, and can lock again.
func TestExpiredIsLost(t *testing.T) {
	t.Parallel()
	z := single(t)
	l := open(t, z.URL())
	le := lock(t, l.Mutex("x"))
	must(t, z.Servers()[0].Restart(false))
	lost(t, le, 10*time.Second, fencelock.SessionLost)
	want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrLost)
	again := lock(t, l.Mutex("x"))
	if again.Token() <= le.Token() {
		t.Errorf("token: got %d after %d", again.Token(), le.Token())
	}
	unlock(t, again)
}

// Close frees what is held, but not before its time what was lost and has a grace.
func TestCloseKeepsTheGrace(t *testing.T) {
	t.Parallel()
	const ttl, grace = time.Second, 2 * time.Second
	z := single(t)
	l, other := open(t, z.URL(), fencelock.WithTTL(ttl), fencelock.WithGrace(grace)), open(t, z.URL())
	start := time.Now()
	le := lock(t, l.Mutex("x", fencelock.WithManualRenew()))
	held := lock(t, l.Mutex("y"))
	lost(t, le, 5*time.Second, fencelock.Expired)
	must(t, l.Close())
	want(t, "what was held", held.Err(), fencelock.ErrReleased)
	unlock(t, get(t, other.Mutex("y").TryLock))
	unlock(t, lock(t, other.Mutex("x")))
	if got := time.Since(start); got < ttl+grace {
		t.Errorf("granted %v after the lock was asked for, want at least TTL and grace, %v", got, ttl+grace)
	}
}

// A node with our nonce that another session has made is not ours.
func TestNodeOfAnOlderSession(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d := driver(t, z.URL())
	r := request("x")
	acl := zk.WorldACL(zk.PermAll)
	_, err := c.CreateContainer(at("x"), nil, zk.FlagContainer, acl)
	must(t, err)
	data := []byte(`{"token":5,"version":5,"last":5,"owner":"older"}`)
	_, err = c.Create(at("x")+"/held-"+r.Nonce, data, zk.FlagEphemeral, acl)
	must(t, err)
	_, err = d.Acquire(t.Context(), r)
	want(t, "Acquire", err, backend.ErrLocked)
}

// A lock whose holder died leaves an empty node, which the next one takes over.
func TestEmptyNodeIsFree(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	l := open(t, z.URL())
	for _, take := range []func(fencelock.Mutex) (*fencelock.Lease, error){
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.TryLock(t.Context()) },
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.Lock(within(t, 5*time.Second)) },
	} {
		_, err := c.CreateContainer(at("x"), nil, zk.FlagContainer, zk.WorldACL(zk.PermAll))
		must(t, err)
		le, err := take(l.Mutex("x"))
		must(t, err)
		unlock(t, le)
	}
	awaitClean(t, c, time.Second)
}

// What an operator deletes by mistake is made again.
func TestDeletedNodes(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	l := open(t, z.URL())
	last := fencelock.Token(0)
	for _, dir := range []string{"done", "tokens", "locks"} {
		le := lock(t, l.Mutex("warm"))
		unlock(t, le)
		le = lock(t, l.Mutex("x"))
		if dir != "locks" {
			wipe(t, c, root+"/"+dir)
			unlock(t, le)
		} else {
			unlock(t, le)
			wipe(t, c, root+"/"+dir)
		}
		if le.Token() <= last {
			t.Errorf("token: got %d after %d", le.Token(), last)
		}
		last = le.Token()
		le = lock(t, l.Mutex("x"))
		if le.Token() <= last {
			t.Errorf("token after %s was deleted: got %d after %d", dir, le.Token(), last)
		}
		last = le.Token()
		unlock(t, le)
	}
	awaitClean(t, c, time.Second)
}

// wipe deletes a node and what is under it.
func wipe(t *testing.T, c *zk.Conn, path string) {
	t.Helper()
	children, _, err := c.Children(path)
	must(t, err)
	for _, ch := range children {
		must(t, c.Delete(path+"/"+ch, -1))
	}
	must(t, c.Delete(path, -1))
}

// Sessions come and go with what uses them: holds of one length share one.
func TestSessionsAreShared(t *testing.T) {
	t.Parallel()
	z := single(t)
	s := z.Servers()[0]
	clients := func() int { return strings.Count(ask(t, s, "cons"), "sid=") }
	l := open(t, z.URL())
	must(t, errors.Join(l.Break(t.Context(), "x")))
	if n := clients(); n != 1 {
		t.Errorf("connections after Open: got %d, want 1", n)
	}
	var all []*fencelock.Lease
	for i := range 300 {
		opts := []fencelock.Option{fencelock.WithManualRenew()}
		if i%2 == 1 {
			opts = append(opts, fencelock.WithTTL(4*time.Second), fencelock.WithGrace(time.Second))
		}
		all = append(all, lock(t, l.Mutex(strings.Repeat("x", i+1), opts...)))
	}
	if n := clients(); n != 2 {
		t.Errorf("connections with leases of two lengths: got %d, want 2", n)
	}
	for _, le := range all {
		_ = le.Unlock(t.Context()) // the short ones may be over on a busy machine
	}
	await(t, 10*time.Second, "the short session has gone", func() bool { return clients() == 1 })
}

// A waiter watches the node before it, and no other.
func TestWatchesThePredecessorOnly(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	le := lock(t, open(t, z.URL(), fencelock.WithManualRenew()).Mutex("x"))
	var waits []*pending
	for i := range 4 {
		waits = append(waits, queue(t, c, open(t, z.URL()), "x", i+1))
	}
	watched := func() map[string]int {
		n := map[string]int{}
		path := ""
		for line := range strings.Lines(ask(t, z.Servers()[0], "wchp")) {
			if line = strings.TrimRight(line, "\n"); strings.HasPrefix(line, "/") {
				path = line
			} else if strings.Contains(path, "/wait-") && strings.Contains(line, "0x") {
				n[path]++
			}
		}
		return n
	}
	await(t, 5*time.Second, "three waiters watch a waiter each", func() bool { return len(watched()) == 3 })
	for path, n := range watched() {
		if n != 1 {
			t.Errorf("%s is watched by %d, want 1", path, n)
		}
	}
	unlock(t, le)
	last := le.Token()
	for _, w := range waits {
		got := w.Granted(t, 5*time.Second)
		if got.Token() <= last {
			t.Errorf("token: got %d after %d", got.Token(), last)
		}
		last = got.Token()
		unlock(t, got)
	}
	awaitClean(t, c, time.Second)
}

// A waiter far back in a long queue lists it seldom, also while others come and go, and finds a dead waiter all the
// same.
func TestLongQueueIsReadSeldom(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d, g := gatedDriver(t, z)
	t.Cleanup(func() { must(t, d.Close()) })
	lists := g.count(func(request []byte) bool {
		const getChildren = 12
		return len(request) >= 12 && binary.BigEndian.Uint32(request[8:]) == getChildren
	})
	le := lock(t, open(t, z.URL()).Mutex("x"))
	comes := func() {
		_, err := c.Create(at("x")+"/wait-"+strings.Repeat("5", 32)+"-", nil, zk.FlagEphemeralSequential,
			zk.WorldACL(zk.PermAll))
		must(t, err)
	}
	const before, seldom = 32, 4 * time.Second
	for range before {
		comes()
	}
	w := &backend.Claim{Request: request("x"), Waker: deaf{}}
	w.Wait = true
	look := func() {
		must(t, d.Enter(within(t, 10*time.Second), w))
		w.Err = nil
		d.Ask(within(t, 10*time.Second), []*backend.Claim{w})
		want(t, "a lock that another holds", w.Err, backend.ErrLocked)
	}
	listed := func(what string, want int64, do func()) {
		t.Helper()
		was := lists.Load()
		if do(); lists.Load()-was != want {
			t.Errorf("%s: the queue was read %d times, want %d", what, lists.Load()-was, want)
		}
	}
	look()
	look()
	began := time.Now()
	listed("without a change", 0, func() {
		for time.Since(began) < seldom {
			look()
			<-time.After(seldom / 20)
		}
	})
	comes()
	listed("after a change", 1, look)
	listed("after the next ones", 0, func() {
		for range 5 {
			comes()
			look()
		}
	})
	unlock(t, le)
	await(t, 20*time.Second, "the first, which does not take the lock, has lost its place", func() bool {
		look()
		return len(nodes(t, c, "x", "wait-")) < before+1+6
	})
	w.Err = nil
	d.Leave(within(t, 10*time.Second), []*backend.Claim{w})
	must(t, w.Err)
}

// A dial that shakes hands on a slow way takes longer than TCP may, each time.
func TestSlowHandshake(t *testing.T) {
	t.Parallel()
	l := through(t, single(t).Addrs(), zookeeper.Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			select {
			case <-time.After(1100 * time.Millisecond): // TLS 1.2 at 350 ms of round trip
				return (&net.Dialer{}).DialContext(ctx, network, address)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	})
	unlock(t, lock(t, l.Mutex("x")))
}
