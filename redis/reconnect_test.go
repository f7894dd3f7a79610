package redis_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// The subscriptions of a process that waits in several slots of one node are killed. All its
// waiters are woken all the same.
func TestClusterSubscriptionsKilled(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 1})
	c := foreign(t, cl.Servers()[0])
	a, b := open(t, cl.URL()), open(t, cl.URL())
	const n = 4
	var held []*fencelock.Lease
	var waits []*pending
	channels := func() int { return len(c.PubSubShardChannels(t.Context(), "*").Val()) }
	for i := range n {
		name := fmt.Sprint("x", i)
		held = append(held, lock(t, a.Mutex(name)))
		waits = append(waits, start(t, b.Mutex(name)))
		waiters(t, a, name, 1)
	}
	for range 2 {
		must(t, c.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
		await(t, 5*time.Second, "all channels are subscribed to again", func() bool { return channels() == n })
	}
	if text := c.Info(t.Context(), "errorstats").Val(); strings.Contains(text, "CROSSSLOT") {
		t.Errorf("the server was asked for channels of several slots at once: %s", text)
	}
	for i, le := range held {
		waiters(t, a, le.Name(), 1)
		unlock(t, le)
		released := time.Now()
		got := waits[i].Granted(t, 5*time.Second)
		if took := waits[i].At.Sub(released); took > time.Second {
			t.Errorf("%s was handed over after %v", le.Name(), took)
		}
		unlock(t, got)
	}
}

// busyConn tells when the server has answered a subscription with BUSY.
type busyConn struct {
	net.Conn
	subscribed atomic.Bool
	busy       func()
}

func (c *busyConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("subscribe")) {
		c.subscribed.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *busyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.subscribed.Load() && bytes.Contains(b[:n], []byte("-BUSY")) {
		c.busy()
	}
	return n, err
}

// A server that is busy with a script refuses a subscription. It is asked for it again.
func TestSubscriptionRefused(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	refused := make(chan struct{})
	busy := sync.OnceFunc(func() { close(refused) })
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Dialer: func(
		ctx context.Context, network, addr string,
	) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &busyConn{Conn: conn, busy: busy}, err
	}})
	t.Cleanup(func() { _ = client.Close() })
	l := over(t, client)
	_, err := l.Mutex("x").TryLock(t.Context()) // the server has the script
	want(t, "TryLock", err, fencelock.ErrLocked)
	must(t, c.ConfigSet(t.Context(), "lua-time-limit", "20").Err())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = foreign(t, s).Eval(t.Context(), "while true do end", nil).Err()
	}()
	await(t, 5*time.Second, "the server is busy", func() bool {
		return goredis.HasErrorPrefix(c.Ping(t.Context()).Err(), "BUSY")
	})
	wait := start(t, l.Mutex("x"))
	select {
	case <-refused:
	case <-time.After(5 * time.Second):
		t.Error("no subscription was refused")
	}
	must(t, c.ScriptKill(t.Context()).Err())
	<-ended
	await(t, 10*time.Second, "it waits", func() bool { return queued(t, c, "x") == 1 })
	unlock(t, le)
	unlock(t, wait.Granted(t, 5*time.Second))
}

// A node that refuses a subscription, for the slot is nobody's just then, is asked for it again.
func TestClusterSubscriptionRefused(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{
		Masters: 1, Config: []string{"cluster-require-full-coverage no"},
	})
	c := foreign(t, cl.Servers()[0])
	a, b := open(t, cl.URL()), open(t, cl.URL())
	le := lock(t, a.Mutex("x"))
	slot := int(c.ClusterKeySlot(t.Context(), key("x")).Val())
	must(t, c.ClusterDelSlots(t.Context(), slot).Err())
	wait := start(t, b.Mutex("x"))
	await(t, 5*time.Second, "the subscription is refused", func() bool {
		stats := c.InfoMap(t.Context(), "commandstats").Val()["Commandstats"]["cmdstat_ssubscribe"]
		return stats != "" && !strings.Contains(stats, "rejected_calls=0")
	})
	must(t, c.ClusterAddSlots(t.Context(), slot).Err())
	await(t, 10*time.Second, "it is confirmed", func() bool {
		return len(c.PubSubShardChannels(t.Context(), "*").Val()) == 1
	})
	waiters(t, a, "x", 1)
	unlock(t, le)
	unlock(t, wait.Granted(t, 5*time.Second))
}

// A shard's channel that nobody waits on any more is left, also while the process waits elsewhere.
func TestClusterChannelsAreLeft(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 1})
	c := foreign(t, cl.Servers()[0])
	a := open(t, cl.URL())
	d, err := redis.New(clusterClient(t, cl), nil)
	must(t, err)
	redis.Idle(d, 100*time.Millisecond)
	b, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	kept := lock(t, a.Mutex("kept"))
	wait := start(t, b.Mutex("kept"))
	waiters(t, a, "kept", 1)
	for i := range 10 {
		le := lock(t, a.Mutex(fmt.Sprint("n", i)))
		over := start(t, b.Mutex(le.Name()))
		waiters(t, a, le.Name(), 1)
		unlock(t, le)
		unlock(t, over.Granted(t, 5*time.Second))
	}
	await(
		t,
		5*time.Second,
		"one channel is left",
		func() bool { return len(c.PubSubShardChannels(t.Context(), "*").Val()) == 1 },
	)
	unlock(t, kept)
	unlock(t, wait.Granted(t, time.Second))
}

// doors is a Dialer that leads to another server once it is told to, and whose old connections stay
// open.
type doors struct {
	mu sync.Mutex
	to string
}

func (d *doors) lead(to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.to = to
}

func (d *doors) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	d.mu.Lock()
	to := d.to
	d.mu.Unlock()
	var nd net.Dialer
	return nd.DialContext(ctx, network, to)
}

// The master vanishes without a word, or lives on as a replica, and its address leads to another
// one. A process that waits hears that one's pushes soon.
func TestMasterVanishesSilently(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		goes func(*testing.T, *servers.Server)
	}{
		{"silent", func(t *testing.T, s *servers.Server) {
			must(t, s.Pause())
			t.Cleanup(func() { _ = s.Resume() })
		}},
		{"demoted", func(t *testing.T, s *servers.Server) {
			must(t, foreign(t, s).Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			old, next := servers.Redis(t, servers.RedisOptions{}), servers.Redis(t, servers.RedisOptions{})
			way := &doors{to: old.Addr()}
			client := goredis.NewClient(&goredis.Options{Addr: "db:6379", Dialer: way.dial})
			t.Cleanup(func() { _ = client.Close() })
			l := over(t, client)
			lock(t, open(t, old.URL()).Mutex("kept"))
			start(t, l.Mutex("kept")) // keeps its subscription alive
			waiters(t, open(t, old.URL()), "kept", 1)
			lock(t, open(t, next.URL()).Mutex("kept")) // what the new master knows of it
			tt.goes(t, old)
			way.lead(next.Addr())
			other := open(t, next.URL())
			slow := 0
			for i := range 4 {
				le := lock(t, other.Mutex(fmt.Sprint("x", i)))
				wait := start(t, l.Mutex(le.Name()))
				waiters(t, other, le.Name(), 1)
				unlock(t, le)
				released := time.Now()
				unlock(t, wait.Granted(t, 10*time.Second))
				took := wait.At.Sub(released)
				t.Logf("handed over after %v", took)
				if took > time.Second {
					slow++
				}
			}
			if slow > 1 {
				t.Errorf("%d of 4 hand-overs took more than a second, want the first at the most", slow)
			}
		})
	}
}

// A client that listens to every channel makes no dead waiter look alive.
func TestEavesdropper(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	spy := c.PSubscribe(t.Context(), "*")
	t.Cleanup(func() { _ = spy.Close() })
	_, err := spy.Receive(t.Context())
	must(t, err)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	for i := range 3 {
		p, url := proxied(t, s)
		l := open(t, url)
		queue(t, c, l, "x", int64(i+1))
		t.Cleanup(func() { p.Set(faultproxy.Mode{}) })
		heard := listeners(t, c)
		p.Set(faultproxy.Mode{Refuse: true})
		p.Cut() // it is dead, and says nothing
		await(
			t,
			2*time.Second,
			"the server sees the end of the connection",
			func() bool { return listeners(t, c) == heard-1 },
		)
	}
	wait := queue(t, c, open(t, s.URL()), "x", 4)
	unlock(t, le)
	released := time.Now()
	unlock(t, wait.Granted(t, 10*time.Second))
	if took := wait.At.Sub(released); took > time.Second {
		t.Errorf("the live waiter behind three dead ones had the lock after %v", took)
	}
}

// A master that was demoted keeps its connections. It may be behind, so no lease ends by its word, and the next request
// goes to the server at which the address leads.
func TestDemotedMaster(t *testing.T) {
	t.Parallel()
	old, next := servers.Redis(t, servers.RedisOptions{}), servers.Redis(t, servers.RedisOptions{})
	way := &doors{to: old.Addr()}
	client := goredis.NewClient(&goredis.Options{Addr: "db:6379", Dialer: way.dial, PoolSize: 4})
	t.Cleanup(func() { _ = client.Close() })
	l := over(t, client, fencelock.WithTTL(20*time.Second))
	le := lock(t, l.Mutex("x"))
	released := lock(t, l.Mutex("y"))
	// The other one takes over, with the data.
	oc, nc := foreign(t, old), foreign(t, next)
	host, port, err := net.SplitHostPort(old.Addr())
	must(t, err)
	must(t, nc.Do(t.Context(), "REPLICAOF", host, port).Err())
	await(
		t,
		10*time.Second,
		"replicated",
		func() bool { return nc.Exists(t.Context(), key("x"), key("y")).Val() == 2 },
	)
	must(t, nc.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	// The demoted one knows of no lock.
	must(t, oc.FlushAll(t.Context()).Err())
	must(t, oc.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	way.lead(next.Addr())
	<-time.After(1500 * time.Millisecond) // looked at twice
	must(t, le.Err())
	must(t, le.Renew(t.Context()))
	unlock(t, released)
	for i := range 8 {
		unlock(t, lock(t, l.Mutex(fmt.Sprint("z", i))))
	}
	unlock(t, le)
	if n := nc.Exists(t.Context(), key("x"), key("y")).Val(); n != 0 {
		t.Errorf("%d locks are left at the new master", n)
	}
	if list := oc.Do(t.Context(), "CLIENT", "LIST", "TYPE", "normal").String(); strings.Count(
		list,
		"cmd=evalsha",
	) > 0 {
		t.Errorf("connections to the demoted master are kept: %s", list)
	}
}

// A waiter that asks a demoted master leaves its connection, though the refusal comes from inside a
// script.
func TestDemotedMasterIsLeft(t *testing.T) {
	t.Parallel()
	old, next := servers.Redis(t, servers.RedisOptions{}), servers.Redis(t, servers.RedisOptions{})
	way := &doors{to: old.Addr()}
	client := goredis.NewClient(&goredis.Options{Addr: "db:6379", Dialer: way.dial, PoolSize: 4})
	t.Cleanup(func() { _ = client.Close() })
	l := over(t, client)
	c := foreign(t, old)
	must(t, c.Set(t.Context(), key("x"), ours, 0).Err())
	_, err := l.Mutex("x").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrLocked)
	must(t, c.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	way.lead(next.Addr())
	wait := start(t, l.Mutex("x")) // free at the other one
	unlock(t, wait.Granted(t, 3*time.Second))
}

// A server without memory deletes still: what is held is renewed and released, what was given up is
// freed, and the rest is refused.
func TestServerWithoutMemory(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	l := open(t, url, fencelock.WithTTL(3*time.Second))
	le := lock(t, l.Mutex("x"))
	late := lock(t, l.Mutex("sent twice"))
	p.LoseReplyTo(1, acquiring("doubted"))
	doubted := lock(t, l.Mutex("doubted")) // leaves a tombstone when it ends
	waited := lock(t, l.Mutex("waited"))
	wait := queue(t, c, open(t, s.URL()), "waited", 1)
	broken := lock(t, l.Mutex("broken"))
	must(t, c.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	must(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := l.Mutex("new").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrUnavailable)
	if err != nil && !strings.Contains(err.Error(), "OOM") {
		t.Errorf("TryLock: got %v, want it to say OOM", err)
	}
	<-time.After(4 * time.Second) // more than a TTL
	for _, held := range []*fencelock.Lease{le, late, doubted, waited} {
		must(t, held.Err())
	}
	must(t, l.Break(t.Context(), "broken"))
	lost(t, broken, 3*time.Second, fencelock.Revoked)
	p.LoseReplyTo(1, releasing("sent twice"))
	for _, held := range []*fencelock.Lease{le, late, doubted, waited} {
		if err := held.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock of %q: %v", held.Name(), err)
		}
		if v := c.Get(t.Context(), key(held.Name())).Val(); strings.HasPrefix(v, "vm") {
			t.Errorf("%q is still held", held.Name())
		}
	}
	refusals := func() string { return c.Info(t.Context(), "errorstats").Val() }
	before := refusals()
	refused := start(t, l.Mutex("refused"))
	await(t, 3*time.Second, "it was refused", func() bool { return refusals() != before })
	must(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	unlock(t, refused.Granted(t, 5*time.Second))
	for _, k := range leftovers(t, c) {
		if strings.HasPrefix(k, redis.OursOf(key("refused"))+"x") {
			t.Errorf("tombstone %q, though the server has answered each request", k)
		}
	}
	unlock(t, wait.Granted(t, 10*time.Second))
	unlock(t, lock(t, l.Mutex("new")))
}

// A release that is sent again is refused by a master that was demoted, or has lost its replicas and may be before
// long: what it says of the lock counts for nothing, for another one may know better.
func TestReleaseIsSentAgainToAMasterThatMayBeBehind(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	l := open(t, url, fencelock.WithTTL(time.Minute))
	for _, tt := range []struct{ refuse, accept []any }{
		{[]any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}},
		{[]any{"CONFIG", "SET", "min-replicas-to-write", "1"}, []any{"CONFIG", "SET", "min-replicas-to-write", "0"}},
	} {
		for script, take := range map[string]locks{
			redis.RunHash: l.Mutex("x").Lock, redis.ShareHash: l.Semaphore("y", 2).Acquire,
		} {
			le := get(t, take)
			p.LoseReplyTo(1, calling(script, le.Name()))
			_, err := c.Pipelined(t.Context(), func(p goredis.Pipeliner) error { // no look comes between them
				p.Del(t.Context(), key(le.Name()))
				p.Do(t.Context(), tt.refuse...)
				return nil
			})
			must(t, err)
			err = le.Unlock(t.Context())
			must(t, c.Do(t.Context(), tt.accept...).Err())
			want(t, fmt.Sprint("Unlock after ", tt.refuse), err, fencelock.ErrUnavailable)
		}
	}
}
