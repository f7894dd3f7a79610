package redlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// settled reports whether a node votes.
func (c *cluster) settled(t *testing.T, node int) bool {
	t.Helper()
	in, err := c.direct[node].HExists(t.Context(), state, "until").Result()
	must(t, err)
	base, err := c.direct[node].HExists(t.Context(), state, "base").Result()
	must(t, err)
	return !in && base
}

// A cluster that nobody vouches for waits once: it cannot be told from one that lost everything.
func TestNewNodesWaitOutTheQuarantine(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	opened := time.Now()
	l := open(t, c.url("quarantine=3s"), fencelock.WithTTL(3*time.Second))
	_, err := l.Mutex("a").TryLock(t.Context())
	want(t, "TryLock in the quarantine", err, fencelock.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "quarantine") {
		t.Errorf("got %v, want an error that says why", err)
	}
	unlock(t, lock(t, l.Mutex("a")))
	if got := time.Since(opened); got < 3*time.Second-100*time.Millisecond {
		t.Errorf("the first lock came after %v, want the whole quarantine", got)
	}
}

func TestTTLAboveTheQuarantine(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	l := open(t, c.url("quarantine=10s&fresh=1"))
	for _, opts := range [][]fencelock.Option{
		{fencelock.WithTTL(10*time.Second + time.Millisecond)},
		{fencelock.WithTTL(6 * time.Second), fencelock.WithGrace(5 * time.Second)},
	} {
		_, err := l.Mutex("a", opts...).TryLock(t.Context())
		want(t, "a TTL and grace above the quarantine", err, fencelock.ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), "10s") {
			t.Errorf("got %v, want an error that names the quarantine", err)
		}
	}
	le, err := l.Mutex("a", fencelock.WithTTL(5*time.Second), fencelock.WithGrace(5*time.Second)).TryLock(t.Context())
	must(t, err)
	unlock(t, le)
}

// A node that forgot its vote must not vote for another, whatever made it forget.
func TestForgetfulNodeDoesNotVote(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		how    string
		forget func(t *testing.T, c *cluster)
	}{
		{"restarted empty", func(t *testing.T, c *cluster) { must(t, c.Servers()[1].Restart(false)) }},
		{"killed and restarted", func(t *testing.T, c *cluster) { must(t, c.Servers()[1].Restart(true)) }},
		{"FLUSHALL", func(t *testing.T, c *cluster) { must(t, c.direct[1].FlushAll(t.Context()).Err()) }},
		{"restored from another run", func(t *testing.T, c *cluster) {
			must(t, c.direct[1].Del(t.Context(), "fencelock:a").Err())
			must(t, c.direct[1].HSet(t.Context(), state, "run", "0123456789abcdef").Err())
		}},
	} {
		t.Run(tt.how, func(t *testing.T) {
			t.Parallel()
			c := start(t, 3)
			open(t, c.url("fresh=1"))
			proxies, through := c.proxied(t, "")
			refuse(proxies[2])
			a := open(t, through)
			le := lock(t, a.Mutex("a")) // a majority of exactly two has it
			tt.forget(t, c)
			// Nodes 1 and 2 have no vote for the holder now. fresh=1 of a client that is started again changes nothing.
			b := open(t, c.url("fresh=1"))
			for range 20 {
				if other, err := b.Mutex("a").TryLock(t.Context()); err == nil {
					t.Fatalf("granted with token %d while another holds with %d", other.Token(), le.Token())
				}
			}
			if c.settled(t, 1) {
				t.Error("the node votes, want it in quarantine")
			}
		})
	}
}

// After all nodes lost everything, and the quarantine, tokens go on above those from before.
func TestTokensAfterALossOfAllData(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	l := open(t, c.url("quarantine=2s"), fencelock.WithTTL(2*time.Second))
	var last fencelock.Token
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		le, err := l.Mutex("a").Lock(ctx)
		cancel()
		must(t, err)
		if le.Token() <= last {
			t.Fatalf("got token %d after %d", le.Token(), last)
		}
		last = le.Token()
		unlock(t, le)
		must(t, c.Restart(false))
	}
}

// The operator's word is heeded where no node has settled, and by a fleet that starts together.
func TestFresh(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	waiting := open(t, c.url("")) // its look begins the quarantine
	if _, err := waiting.Mutex("a").TryLock(t.Context()); err == nil {
		t.Fatal("granted by new nodes")
	}
	for range 3 {
		unlock(t, lock(t, open(t, c.url("fresh=1")).Mutex("a")))
	}
	unlock(t, lock(t, waiting.Mutex("a")))
}

// It is not heeded where the data of the nodes, which are older than a lock, tells that they had settled before.
func TestFreshAfterARestartWithOlderData(t *testing.T) {
	t.Parallel()
	g := servers.Redises(t, 3, servers.RedisOptions{Config: []string{"save 3600 1"}})
	c := over(t, g, g.Addrs())
	l := open(t, c.url("fresh=1"))
	unlock(t, lock(t, l.Mutex("warm")))
	for i, r := range c.direct {
		await(t, 5*time.Second, "it has settled", func() bool { return c.settled(t, i) })
		must(t, r.Save(t.Context()).Err())
	}
	lock(t, l.Mutex("a"))
	for _, s := range c.Servers() {
		must(t, s.Kill())
		must(t, s.Start())
	}
	_, err := open(t, c.url("fresh=1")).Mutex("a").TryLock(t.Context())
	want(t, "TryLock while another may hold the lock", err, fencelock.ErrUnavailable)
}

// It is not heeded while a node does not answer: that one may have votes, or have settled.
func TestFreshNeedsEveryNode(t *testing.T) {
	t.Parallel()
	c := start(t, 2)
	addrs := append(c.Addrs(), "127.0.0.1:1")
	_, err := fencelock.Open(t.Context(), url(addrs, "fresh=1")) // tried for 5 s
	if err == nil || !strings.Contains(err.Error(), "2 of 3 nodes answered") {
		t.Errorf("Open: got %v, want that all must answer", err)
	}
	if _, err := open(t, url(addrs, "")).Mutex("a").TryLock(t.Context()); err == nil {
		t.Error("granted by nodes in quarantine")
	}
}

// What a node remembers of its process goes with the process, though its data and the library that
// remembers it are kept.
func TestLibraryKeptOverARestart(t *testing.T) {
	t.Parallel()
	g := servers.Redises(t, 3, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	c := over(t, g, g.Addrs())
	l := open(t, c.url("fresh=1"))
	unlock(t, lock(t, l.Mutex("a")))
	run := c.direct[0].HGet(t.Context(), state, "run").Val()
	for _, s := range c.Servers() {
		must(t, s.Restart(true))
	}
	if libs, err := c.direct[0].FunctionList(t.Context(), goredis.FunctionListQuery{}).
		Result(); err != nil || len(libs) != 1 {
		t.Fatalf("libraries after the restart: got %v, %v, want ours", libs, err)
	}
	if got := c.direct[0].HGet(t.Context(), state, "run").Val(); got != run || run == "" {
		t.Fatalf("run id in the data: got %q, want %q", got, run)
	}
	_, err := l.Mutex("a").TryLock(t.Context())
	want(t, "TryLock after the restart", err, fencelock.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "quarantine") {
		t.Errorf("got %v, want the quarantine", err)
	}
}

// A library that is gone is loaded again. What it remembered is gone too: the node may have been
// given older data meanwhile.
func TestLibraryLost(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	l := open(t, c.url("fresh=1"))
	unlock(t, lock(t, l.Mutex("a")))
	await(t, 5*time.Second, "all have settled", func() bool {
		return c.settled(t, 0) && c.settled(t, 1) && c.settled(t, 2)
	})
	must(t, c.direct[2].Do(t.Context(), "FUNCTION", "FLUSH").Err())
	unlock(t, lock(t, l.Mutex("a")))
	await(t, 5*time.Second, "loaded again", func() bool {
		libs, err := c.direct[2].FunctionList(t.Context(), goredis.FunctionListQuery{}).Result()
		return err == nil && len(libs) == 1
	})
	await(t, 5*time.Second, "in quarantine", func() bool { return !c.settled(t, 2) })
}

// A node keeps its counters in a table, in which one is found in constant time, however few they are.
func TestCountersAreATable(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	unlock(t, lock(t, open(t, c.url("fresh=1")).Mutex("a")))
	for i, n := range c.direct {
		if got := n.ObjectEncoding(t.Context(), state).Val(); got != "hashtable" {
			t.Errorf("node %d: the state is kept as %q", i, got)
		}
	}
}
