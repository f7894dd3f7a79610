package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redlock"
)

// rollback makes a node's data older than its process. before runs while the data is as it is to be again.
type rollback struct {
	how    string
	before func(t *testing.T, c *cluster, r *goredis.Client)
	back   func(t *testing.T, c *cluster, r *goredis.Client)
}

// follow makes one server the replica of another, and waits until it has its data.
func follow(t *testing.T, replica, master *goredis.Client) {
	t.Helper()
	host, port, _ := strings.Cut(master.Options().Addr, ":")
	must(t, replica.Do(t.Context(), "REPLICAOF", host, port).Err())
	await(t, 20*time.Second, "the replica has the data", func() bool {
		info, err := replica.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up") &&
			strings.Contains(info, "master_sync_in_progress:0")
	})
}

func promote(t *testing.T, replica *goredis.Client) {
	t.Helper()
	must(t, replica.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
}

// failover is a node's that has a replica of its own, which takes its place for a while.
var failover = rollback{
	"it fails over to its replica and back",
	func(t *testing.T, c *cluster, r *goredis.Client) {
		follow(t, r, c.direct[0])
		promote(t, r)
	},
	func(t *testing.T, c *cluster, r *goredis.Client) {
		follow(t, c.direct[0], r)
		promote(t, c.direct[0])
	},
}

// rollbacks are all that are known. The last two keep the server's replication as it is.
func rollbacks() []rollback {
	type key struct {
		name, dump string
		left       time.Duration
	}
	var keys []key
	return []rollback{
		failover,
		{
			"DEBUG RELOAD NOSAVE",
			func(t *testing.T, c *cluster, _ *goredis.Client) { must(t, c.direct[0].Save(t.Context()).Err()) },
			func(t *testing.T, c *cluster, _ *goredis.Client) {
				must(t, c.direct[0].Do(t.Context(), "DEBUG", "RELOAD", "NOSAVE").Err())
			},
		},
		{
			"its keys are restored one by one",
			func(t *testing.T, c *cluster, _ *goredis.Client) {
				for _, name := range c.direct[0].Keys(t.Context(), "*").Val() {
					dump, err := c.direct[0].Dump(t.Context(), name).Result()
					must(t, err)
					keys = append(keys, key{name, dump, max(c.direct[0].PTTL(t.Context(), name).Val(), 0)})
				}
			},
			func(t *testing.T, c *cluster, _ *goredis.Client) {
				must(t, c.direct[0].FlushAll(t.Context()).Err())
				for _, k := range keys {
					must(t, c.direct[0].Restore(t.Context(), k.name, k.left, k.dump).Err())
				}
			},
		},
	}
}

// withReplica starts a cluster and a server that can be the replica of one of its nodes.
func withReplica(t *testing.T, users ...string) (*cluster, *goredis.Client) {
	t.Helper()
	o := servers.RedisOptions{Config: []string{"repl-diskless-sync-delay 0", "enable-debug-command yes"}, Users: users}
	g := servers.Redises(t, 4, o)
	c := over(t, g, g.Addrs())
	r := c.direct[3]
	c.direct, c.addrs = c.direct[:3], c.addrs[:3]
	return c, r
}

// A node whose data goes back while its process lives has forgotten votes, whatever took the data
// back: it must not vote for another before the leases have ended that it voted for.
func TestNodeRolledBackUnderItsProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range rollbacks() {
		t.Run(tt.how, func(t *testing.T) {
			t.Parallel()
			c, r := withReplica(t)
			rolledBack(t, c, r, tt, "redlock://"+strings.Join(c.addrs, ",")+"?fresh=1")
		})
	}
	t.Run("scripts, "+failover.how, func(t *testing.T) {
		t.Parallel()
		c, r := withReplica(t, "documented on >p "+rights)
		rolledBack(t, c, r, failover, "redlock://documented:p@"+strings.Join(c.addrs, ",")+"?fresh=1")
	})
}

// rolledBack locks with the votes of nodes 1 and 2, takes node 1 back, and locks with those of 1 and 3.
func rolledBack(t *testing.T, c *cluster, r *goredis.Client, tt rollback, url string) {
	t.Helper()
	proxies, _ := c.proxied(t, "")
	a := open(t, strings.Replace(url, c.addrs[2], proxies[2].Addr(), 1))
	unlock(t, lock(t, a.Mutex("warm")))
	await(t, 5*time.Second, "all have settled", func() bool {
		return c.settled(t, 0) && c.settled(t, 1) && c.settled(t, 2)
	})
	tt.before(t, c, r)
	refuse(proxies[2])
	le := lock(t, a.Mutex("a"))
	await(t, 5*time.Second, "the vote", func() bool { return c.value(t, 0, "a") != "" })
	tt.back(t, c, r)
	if v := c.value(t, 0, "a"); v != "" {
		t.Fatalf("after the roll-back the node has %q, want the vote forgotten", v)
	}
	// so that nodes 1 and 3 would be its majority
	b := open(t, strings.NewReplacer(c.addrs[1], "127.0.0.1:1", "fresh=1", "").Replace(url))
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		other, err := b.Mutex("a").TryLock(ctx)
		cancel()
		if err == nil {
			t.Fatalf("granted with token %d while another holds with %d, %v", other.Token(), le.Token(), le.Err())
		}
		if !errors.Is(err, fencelock.ErrUnavailable) || !strings.Contains(err.Error(), "quarantine") {
			t.Fatalf("got %v, want the quarantine", err)
		}
	}
	if c.settled(t, 0) {
		t.Error("the node votes, want it in quarantine")
	}
}

// What a node knows of its votes goes on over all that leaves the data as it is: no quarantine then.
func TestNoQuarantineWithoutALoss(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		how  string
		done func(t *testing.T, c *cluster, r *goredis.Client)
	}{
		{"a replica follows and goes", func(t *testing.T, c *cluster, r *goredis.Client) {
			follow(t, r, c.direct[0])
			promote(t, r)
		}},
		{"a lock is deleted by hand", func(t *testing.T, c *cluster, _ *goredis.Client) {
			must(t, c.direct[0].Del(t.Context(), "fencelock:held").Err())
		}},
		{"a client of another database comes", func(t *testing.T, c *cluster, _ *goredis.Client) {
			other := open(t, strings.Replace(c.url("fresh=1"), "/0?", "/1?", 1))
			unlock(t, lock(t, other.Mutex("n0")))
		}},
		{"another version has its own library", func(t *testing.T, c *cluster, _ *goredis.Client) {
			must(t,
				c.direct[0].Do(t.Context(), "FUNCTION", "LOAD",
					"#!lua name=other\nredis.register_function('other', function() end)").Err())
		}},
	} {
		for _, user := range []string{"functions", "scripts"} {
			t.Run(fmt.Sprint(tt.how, ", ", user), func(t *testing.T) {
				t.Parallel()
				c, r := withReplica(t, "functions on >p "+rights+functions, "scripts on >p "+rights)
				l := open(t, "redlock://"+user+":p@"+strings.Join(c.addrs, ",")+"?fresh=1")
				held := lock(t, l.Mutex("held"))
				tt.done(t, c, r)
				for i := range 3 {
					unlock(t, lock(t, l.Mutex(fmt.Sprint("n", i))))
					must(t, held.Renew(t.Context()))
				}
				for i := range c.direct {
					await(t, 5*time.Second, fmt.Sprintf("node %d votes", i+1), func() bool { return c.settled(t, i) })
				}
			})
		}
	}
}

// Databases of one server can be the nodes of a test: each has its own count.
func TestDatabasesOfOneServer(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	var clients []goredis.UniversalClient
	for db := range 3 {
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), DB: db})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	d, err := redlock.New(clients, &redlock.Options{Fresh: true})
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	for range 3 {
		unlock(t, lock(t, l.Mutex("a")))
	}
}

// A node is set back to before a renewal: it would free the lock when the first term ends, and vote
// for another while the holder trusts the second.
func TestRollbackBehindARenewal(t *testing.T) {
	t.Parallel()
	c, _ := withReplica(t)
	proxies, _ := c.proxied(t, "")
	a := open(t, strings.Replace(c.url("fresh=1"), c.addrs[2], proxies[2].Addr(), 1), fencelock.WithManualRenew())
	unlock(t, lock(t, a.Mutex("warm")))
	await(t, 5*time.Second, "all have settled", func() bool {
		return c.settled(t, 0) && c.settled(t, 1) && c.settled(t, 2)
	})
	refuse(proxies[2])
	le := lock(t, a.Mutex("a"))
	await(t, 5*time.Second, "the vote", func() bool { return c.value(t, 0, "a") != "" })
	restored := rollbacks()[2]
	restored.before(t, c, nil)
	must(t, le.Renew(t.Context()))
	restored.back(t, c, nil)
	must(t, c.direct[0].PExpire(t.Context(), "fencelock:a", time.Millisecond).Err()) // the first term is over
	await(t, 5*time.Second, "the lock has expired", func() bool { return c.value(t, 0, "a") == "" })
	b := open(t, strings.NewReplacer(c.addrs[1], "127.0.0.1:1").Replace(c.url("")))
	if other, err := b.Mutex("a").TryLock(t.Context()); err == nil {
		t.Errorf("granted with token %d while another holds with %d, %v", other.Token(), le.Token(), le.Err())
	}
}
