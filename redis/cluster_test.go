package redis_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// spread returns n lock names for each of the masters, and the master of each name.
func spread(
	t *testing.T,
	cl *servers.Cluster,
	c *goredis.ClusterClient,
	n int,
) (names []string, masters map[string]*servers.Server) {
	t.Helper()
	masters = map[string]*servers.Server{}
	have := map[*servers.Server]int{}
	for i := 0; len(names) < n*len(cl.Servers()); i++ {
		name := fmt.Sprint("name-", i)
		slot := c.ClusterKeySlot(t.Context(), key(name)).Val()
		m, err := cl.Master(t.Context(), int(slot))
		must(t, err)
		if have[m] < n {
			have[m]++
			names, masters[name] = append(names, name), m
		}
	}
	return names, masters
}

func clusterClient(t *testing.T, cl *servers.Cluster) *goredis.ClusterClient {
	c := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: cl.Addrs()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// waiters awaits that so many processes wait for a lock.
func waiters(t *testing.T, l *fencelock.Locker, name string, n int) {
	t.Helper()
	await(t, 5*time.Second, fmt.Sprintf("%d wait for %q", n, name), func() bool {
		info, err := l.Inspect(t.Context(), name)
		return err == nil && info.Waiters == n
	})
}

func TestCluster(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 3})
	c := clusterClient(t, cl)
	const ttl = 1500 * time.Millisecond
	a, b := open(t, cl.URL(), fencelock.WithTTL(ttl)), open(t, cl.URL(), fencelock.WithTTL(ttl))
	names, _ := spread(t, cl, c, 5)

	t.Run("hostile names", func(t *testing.T) {
		for _, name := range []string{"{}", "{a}b", "}{", "a{b}c", "é{ü}", " ", "a b*?[]"} {
			le := lock(t, a.Mutex(name))
			_, err := b.Mutex(name).TryLock(t.Context())
			want(t, fmt.Sprintf("TryLock of %q", name), err, fencelock.ErrLocked)
			unlock(t, le)
			unlock(t, lock(t, b.Mutex(name)))
		}
	})
	t.Run("every lock is renewed and listed", func(t *testing.T) {
		var held []*fencelock.Lease
		for _, name := range names {
			held = append(held, lock(t, a.Mutex(name)))
		}
		wait := start(t, b.Mutex(names[0]))
		waiters(t, a, names[0], 1)
		seen := map[string]bool{}
		for info, err := range b.List(t.Context(), "name-") {
			must(t, err)
			if seen[info.Name] || !info.Held || info.Owner == "" || info.Token == 0 {
				t.Errorf("List: got %+v, seen before: %v", info, seen[info.Name])
			}
			seen[info.Name] = true
		}
		if len(seen) != len(names) {
			t.Errorf("List: got %d names, want %d", len(seen), len(names))
		}
		<-time.After(ttl * 3 / 2)
		for _, le := range held {
			if err := le.Err(); err != nil {
				t.Errorf("lease of %q: %v", le.Name(), err)
				continue
			}
			unlock(t, le)
		}
		unlock(t, wait.Granted(t, time.Second))
	})
	t.Run("waiting in several slots", func(t *testing.T) { waitInEverySlot(t, cl, a, b, names) })
	t.Run("lost behind the back", func(t *testing.T) {
		deleted, broken := lock(t, a.Mutex(names[3])), lock(t, a.Mutex(names[4]))
		must(t, c.Del(t.Context(), key(names[3])).Err())
		must(t, b.Break(t.Context(), names[4]))
		lost(t, deleted, 1100*time.Millisecond, fencelock.Revoked)
		lost(t, broken, 500*time.Millisecond, fencelock.Revoked)
	})
	t.Run("caller's client", func(t *testing.T) { clientsOfTheCaller(t, c) })
	t.Run("wrong URL", func(t *testing.T) {
		for _, db := range []string{"", "/1"} {
			_, err := fencelock.Open(t.Context(), "redis://"+cl.Addrs()[0]+db)
			want(t, "a node of a cluster as a single server"+db, err, fencelock.ErrInvalid)
		}
	})
}

// waitInEverySlot: a holds, b waits, and then a, for many names at once.
func waitInEverySlot(t *testing.T, cl *servers.Cluster, a, b *fencelock.Locker, names []string) {
	var held []*fencelock.Lease
	var first, second []*pending
	for _, name := range names {
		held = append(held, lock(t, a.Mutex(name)))
		first = append(first, start(t, b.Mutex(name)))
		waiters(t, a, name, 1)
		second = append(second, start(t, a.Mutex(name)))
		waiters(t, b, name, 2)
	}
	for _, s := range cl.Servers() {
		if n := listeners(t, foreign(t, s)); n > 2 {
			t.Errorf("subscribed connections of two processes at %v: got %d, want 2 at most", s, n)
		}
	}
	for i, name := range names {
		unlock(t, held[i])
		next := first[i].Granted(t, time.Second)
		if next.Token() <= held[i].Token() {
			t.Errorf("%q: handed over with tokens %d and %d", name, held[i].Token(), next.Token())
		}
		unlock(t, next)
		unlock(t, second[i].Granted(t, time.Second))
	}
}

// A slot moves to another master, with a lock that is held and waited for. The holder keeps it, the
// waiter gets it.
func TestClusterSlotMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster of its own takes seconds to start")
	}
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 3})
	c := clusterClient(t, cl)
	a, b := open(t, cl.URL()), open(t, cl.URL())
	le := lock(t, a.Mutex("x"))
	wait := start(t, b.Mutex("x"))
	waiters(t, a, "x", 1)

	moved := time.Now()
	moveSlot(t, cl, int(c.ClusterKeySlot(t.Context(), key("x")).Val()))
	t.Logf("the slot moved within %v", time.Since(moved))
	<-time.After(time.Second) // a check or two
	must(t, le.Err())
	must(t, le.Renew(t.Context()))
	waiters(t, a, "x", 1)
	released := time.Now()
	unlock(t, le)
	next := wait.Granted(t, 6*time.Second)
	took := wait.At.Sub(released)
	t.Logf("handed over after the move: %v", took)
	if took > time.Second || next.Token() <= le.Token() {
		t.Errorf("handed over after %v, tokens %d and %d; want it promptly", took, le.Token(), next.Token())
	}
	unlock(t, next)
}

// moveSlot moves a slot with its keys to another master, as redis-cli --cluster reshard does.
func moveSlot(t *testing.T, cl *servers.Cluster, slot int) {
	t.Helper()
	onItsWay(t, cl, slot)()
}

// onItsWay begins to move a slot, with the keys that are there; what it returns ends that.
func onItsWay(t *testing.T, cl *servers.Cluster, slot int) (end func()) {
	t.Helper()
	from, err := cl.Master(t.Context(), slot)
	must(t, err)
	to := cl.Servers()[0]
	if to == from {
		to = cl.Servers()[1]
	}
	src, dst := foreign(t, from), foreign(t, to)
	do := func(c *goredis.Client, args ...any) any {
		t.Helper()
		v, err := c.Do(t.Context(), args...).Result()
		if err != nil {
			t.Fatalf("%v: %v", args[:3], err)
		}
		return v
	}
	srcID, dstID := do(src, "CLUSTER", "MYID"), do(dst, "CLUSTER", "MYID")
	do(dst, "CLUSTER", "SETSLOT", slot, "IMPORTING", srcID)
	do(src, "CLUSTER", "SETSLOT", slot, "MIGRATING", dstID)
	host, port, err := net.SplitHostPort(to.Addr())
	must(t, err)
	move := func() {
		t.Helper()
		for {
			keys, err := src.ClusterGetKeysInSlot(t.Context(), slot, 100).Result()
			must(t, err)
			if len(keys) == 0 {
				return
			}
			args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
			for _, k := range keys {
				args = append(args, k)
			}
			do(src, args...)
		}
	}
	move()
	return func() {
		t.Helper()
		move()
		do(dst, "CLUSTER", "SETSLOT", slot, "NODE", dstID)
		do(src, "CLUSTER", "SETSLOT", slot, "NODE", dstID)
	}
}

// With the rights that the documentation names for a cluster a program locks, waits and takes part in a migration.
// It keeps the locks of a slot that is on its way, and others wait until it has arrived.
func TestRightsOnACluster(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 3})
	for _, s := range cl.Servers() {
		user := []any{"ACL", "SETUSER", "app", "on", ">p"}
		for _, right := range strings.Fields(rights + " +asking +cluster|nodes +cluster|slots +cluster|shards " +
			"+spublish +ssubscribe +sunsubscribe") {
			user = append(user, right)
		}
		must(t, foreign(t, s).Do(t.Context(), user...).Err())
	}
	c, url := clusterClient(t, cl), strings.Replace(cl.URL(), "://", "://app:p@", 1)
	a, b, d := open(t, url), open(t, url), closing(t, url)
	le := lock(t, a.Mutex("x"))
	wait := start(t, b.Mutex("x"))
	waiters(t, a, "x", 1)
	unlock(t, le)
	le = wait.Granted(t, time.Second)
	g := closedGate("y")
	must(t, d.SetGate(t.Context(), g, 0))
	_, err := d.Undrained(t.Context(), g)
	must(t, err)

	held, shared := lock(t, a.Mutex("{z}1")), get(t, a.RWMutex("{z}2").RLock)
	end := onItsWay(t, cl, int(c.ClusterKeySlot(t.Context(), key("{z}")).Val()))
	must(t, held.Renew(t.Context()))
	must(t, shared.Renew(t.Context()))
	_, err = a.Mutex("{z}3").TryLock(t.Context())
	want(t, "TryLock in a slot that is on its way", err, fencelock.ErrUnavailable)
	got := start(t, a.Mutex("{z}3"))
	end()
	unlock(t, got.Granted(t, 5*time.Second))
	unlock(t, held)
	unlock(t, shared)
	unlock(t, le)
}

// The leases of a master that stops are lost at their Deadline, those of the others are not.
func TestClusterMasterStops(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(
		t,
		servers.ClusterOptions{Masters: 3, Config: []string{"cluster-require-full-coverage no"}},
	)
	const ttl = 1500 * time.Millisecond
	l := open(t, cl.URL(), fencelock.WithTTL(ttl))
	names, masters := spread(t, cl, clusterClient(t, cl), 5)
	var held []*fencelock.Lease
	for _, name := range names {
		held = append(held, lock(t, l.Mutex(name)))
	}
	stopped := masters[names[0]]
	must(t, stopped.Pause())
	t.Cleanup(func() { must(t, stopped.Resume()) }) // before Close releases what is left
	paused := time.Now()
	for _, le := range held {
		if masters[le.Name()] == stopped {
			lost(t, le, 3*time.Second, fencelock.Expired)
		}
	}
	for end := paused.Add(5 * ttl / 2); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		for _, le := range held {
			if err := le.Err(); err != nil && masters[le.Name()] != stopped {
				t.Fatalf("lease of %q, whose master runs, after %v: %v", le.Name(), time.Since(paused), err)
			}
		}
	}
	for _, le := range held {
		if masters[le.Name()] != stopped {
			unlock(t, le)
			unlock(t, lock(t, l.Mutex(le.Name())))
		}
	}
	least := time.Hour
	for range 3 {
		late, err := lateAfter(within(t, 300*time.Millisecond), func(ctx context.Context) error {
			_, err := l.Mutex(names[0]).Lock(ctx)
			return err
		})
		want(t, "Lock at the stopped master", err, context.DeadlineExceeded)
		least = min(least, late)
	}
	if least > 350*time.Millisecond {
		t.Errorf("Lock returned %v after the end of its ctx at the least", least)
	}
}

// A master dies for good, and its replica takes its place: locks can be had there then, and what it has copied is kept.
func TestClusterFailsOver(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 3, Replicas: 1})
	c := clusterClient(t, cl)
	l := open(t, cl.URL(), fencelock.WithTTL(20*time.Second))
	dies, err := cl.Master(t.Context(), int(c.ClusterKeySlot(t.Context(), key("name-0")).Val()))
	must(t, err)
	var there []string // names whose locks it has
	for i := 0; len(there) < 3; i++ {
		name := fmt.Sprint("name-", i)
		m, err := cl.Master(t.Context(), int(c.ClusterKeySlot(t.Context(), key(name)).Val()))
		must(t, err)
		if m == dies {
			there = append(there, name)
		}
	}
	await(t, 20*time.Second, "every node names the replicas", func() bool {
		for _, s := range cl.Servers() {
			//lint:ignore SA1019 Redis 6.2 has no CLUSTER SHARDS
			slots, err := foreign(t, s).ClusterSlots(t.Context()).Result()
			if err != nil || slices.ContainsFunc(slots, func(s goredis.ClusterSlot) bool { return len(s.Nodes) != 2 }) {
				return false
			}
		}
		return true
	})
	le := lock(t, l.Mutex(there[0]))
	await(t, 5*time.Second, "the replica has the lock", func() bool {
		n, err := foreign(t, dies).Wait(t.Context(), 1, time.Second).Result()
		return err == nil && n > 0
	})
	must(t, dies.Kill())
	await(t, 15*time.Second, "the replica is the master", func() bool {
		m, err := cl.Master(t.Context(), int(c.ClusterKeySlot(t.Context(), key("name-0")).Val()))
		return err == nil && m != dies
	})
	for _, name := range there[1:] {
		unlock(t, lock(t, l.Mutex(name))) // it waits as long as an outage may last
	}
	must(t, le.Renew(t.Context()))
	unlock(t, le)
}
