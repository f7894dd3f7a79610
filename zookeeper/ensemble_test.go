package zookeeper_test

import (
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

// ensemble starts three servers that grant long sessions.
func ensemble(t *testing.T) *servers.ZooKeeperEnsemble {
	t.Helper()
	if testing.Short() {
		t.Skip("three servers")
	}
	return servers.ZooKeeper(t, servers.ZooKeeperOptions{Servers: 3, Config: []string{"maxSessionTimeout=60000"}})
}

// The leader is killed: the holder keeps the lock, the waiter its place, and tokens rise.
func TestLeaderIsKilled(t *testing.T) {
	t.Parallel()
	z := ensemble(t)
	c := foreign(t, z.Addrs()...)
	l := open(t, z.URL(), fencelock.WithTTL(20*time.Second))
	le := lock(t, l.Mutex("x"))
	deadline := le.Deadline()
	d, err := backend.Open(t.Context(), z.URL(), nil)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	w := &backend.Claim{Request: request("x"), Waker: deaf{}} // an election may outlast the patience of a Lock
	w.Wait = true
	look := func() error {
		if w.Err = d.Enter(within(t, 10*time.Second), w); w.Err == nil {
			d.Ask(within(t, 10*time.Second), []*backend.Claim{w})
		}
		return w.Err
	}
	await(t, 10*time.Second, "one waits", func() bool {
		want(t, "a lock that another holds", look(), backend.ErrLocked)
		return len(nodes(t, c, "x", "wait-")) == 1
	})
	place := nodes(t, c, "x", "wait-")
	for range 2 { // the second time with one that had been down
		leader, err := z.Leader(within(t, 30*time.Second))
		must(t, err)
		must(t, leader.Kill())
		_, err = z.Leader(within(t, 30*time.Second))
		must(t, err)
		await(t, 15*time.Second, "a renewal by the new leader", func() bool {
			ok := le.Renew(t.Context()) == nil && le.Deadline().After(deadline)
			return ok
		})
		deadline = le.Deadline()
		must(t, leader.Start())
		must(t, z.AwaitOK(within(t, 30*time.Second)))
	}
	if now := nodes(t, c, "x", "wait-"); !slices.Equal(now, place) {
		t.Errorf("the waiter's place: got %q, want %q", now, place)
	}
	must(t, le.Err())
	unlock(t, le)
	await(t, 10*time.Second, "the waiter is granted the lock", func() bool { return look() == nil })
	if w.Token <= le.Token() || w.Token > time.Now().Add(time.Minute).UnixMicro() { // a zxid is days ahead
		t.Errorf("token: got %d after %d", w.Token, le.Token())
	}
	w.Leaving, w.Held, w.Err = true, true, nil
	d.Leave(within(t, 10*time.Second), []*backend.Claim{w})
	must(t, w.Err)
	awaitClean(t, c, 5*time.Second)
}

// Every server is killed, one by one and all at once: what was granted is there afterwards, and tokens rise.
func TestServersAreKilled(t *testing.T) {
	t.Parallel()
	z := ensemble(t)
	l := open(t, z.URL(), fencelock.WithTTL(30*time.Second))
	le := lock(t, l.Mutex("kept"))
	last := fencelock.Token(0)
	cycle := func(when string) {
		t.Helper()
		got := lock(t, l.Mutex("x"))
		if got.Token() <= last || got.Token() > time.Now().Add(time.Minute).UnixMicro() {
			t.Errorf("%s: token %d after %d", when, got.Token(), last)
		}
		last = got.Token()
		unlock(t, got)
	}
	cycle("at first")
	for _, s := range z.Servers() {
		must(t, s.Kill())
		_, err := z.Leader(within(t, 30*time.Second)) // an election may outlast the patience of a Lock
		must(t, err)
		cycle("with one server down")
		must(t, s.Start())
		must(t, z.AwaitOK(within(t, 30*time.Second)))
	}
	must(t, z.Restart(true))
	cycle("after all were killed")
	must(t, le.Err())
	other := open(t, z.URL())
	_, err := other.Mutex("kept").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrLocked)
	unlock(t, le)
}

// Without a majority nothing is granted, and the holder's lease runs on to its Deadline.
func TestNoMajority(t *testing.T) {
	t.Parallel()
	z := ensemble(t)
	l := open(t, z.URL(), fencelock.WithTTL(4*time.Second))
	le := lock(t, l.Mutex("x"))
	must(t, z.Servers()[0].Kill())
	must(t, z.Servers()[1].Kill())
	deadline := le.Deadline()
	_, err := l.Mutex("y").TryLock(within(t, time.Second))
	if err == nil {
		t.Error("a lock was granted without a majority")
	}
	if err := le.Err(); time.Now().Before(deadline) {
		must(t, err)
	}
	lost(t, le, 6*time.Second, fencelock.Expired, fencelock.SessionLost)
	must(t, z.Servers()[0].Start())
	must(t, z.Servers()[1].Start())
	must(t, z.AwaitOK(within(t, 30*time.Second)))
	again := lock(t, l.Mutex("x"))
	if again.Token() <= le.Token() {
		t.Errorf("token: got %d after %d", again.Token(), le.Token())
	}
	unlock(t, again)
}
