package redlock_test

import (
	"errors"
	"fmt"
	neturl "net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// TLS and a password, on real servers, and what is said without them.
func TestTLSAndPassword(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-of-redlock"
	g := servers.Redises(t, 3, servers.RedisOptions{TLS: true, Password: secret})
	var pem []byte
	for _, s := range g.Servers() {
		one, err := os.ReadFile(s.CAFile())
		must(t, err)
		pem = append(pem, one...)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem, 0o600))
	hosts := strings.Join(g.Addrs(), ",")
	for _, tt := range []struct {
		what, url string
		want      error
	}{
		{
			"the wrong password",
			"redlocks://:" + secret + "x@" + hosts + "?tls_ca=" + neturl.QueryEscape(ca),
			fencelock.ErrInvalid,
		},
		{"no authority", "redlocks://:" + secret + "@" + hosts, fencelock.ErrUnavailable},
		{"no TLS", "redlock://:" + secret + "@" + hosts, fencelock.ErrUnavailable},
		{
			"TLS keys without TLS",
			"redlock://:" + secret + "@" + hosts + "?tls_ca=" + neturl.QueryEscape(ca),
			fencelock.ErrInvalid,
		},
		{"both", "redlocks://:" + secret + "@" + hosts + "?fresh=1&tls_ca=" + neturl.QueryEscape(ca), nil},
	} {
		l, err := fencelock.Open(t.Context(), tt.url)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.what, err, tt.want)
		}
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error shows the password: %v", tt.what, err)
			}
			continue
		}
		t.Cleanup(func() { _ = l.Close() })
		le, err := l.Mutex("n").TryLock(t.Context())
		must(t, err)
		must(t, le.Unlock(t.Context()))
	}
}

// The rights that the package documentation names, for the default prefix: those that are needed,
// and those of functions.
const (
	rights = "~fencelock:* ~fl* resetchannels &fl* -@all +eval +evalsha +info +time +get +set " +
		"+del +exists +pexpire +pttl +hget +hset +hdel +hmget +hgetall +hvals +rpush +ltrim " +
		"+lpos +zadd +zrem +zrange +scan +publish +subscribe"
	functions = " +fcall +function|load"
)

// All that a program does, with what the documentation asks for and no more: with functions and without.
func TestRights(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ user, extra, called string }{
		{"functions", functions, "fcall"},
		{"scripts", "", "evalsha"},
	} {
		t.Run(tt.user, func(t *testing.T) {
			t.Parallel()
			g := servers.Redises(t, 3, servers.RedisOptions{Users: []string{
				"documented on >p " + rights + tt.extra, "elsewhere on >p ~other:* ~fl* &* +@all",
				"idle on >p ~* &* -@all +ping",
			}})
			c := over(t, g, g.Addrs())
			as := func(user string) string {
				return "redlock://" + user + ":p@" + strings.Join(g.Addrs(), ",") + "?fresh=1"
			}
			a, b := open(t, as("documented")), open(t, as("documented"))
			le := lock(t, a.Mutex("x"))
			next := make(chan *fencelock.Lease, 1)
			go func() { next <- lock(t, b.Mutex("x")) }()
			await(t, 5*time.Second, "one waits", func() bool {
				info, err := a.Inspect(t.Context(), "x")
				return err == nil && info.Waiters == 1
			})
			must(t, le.Renew(t.Context()))
			for info, err := range a.List(t.Context(), "") {
				if err != nil || info.Name != "x" || info.Waiters != 1 {
					t.Errorf("List: got %+v, %v", info, err)
				}
			}
			unlock(t, le)
			le = <-next
			must(t, a.Break(t.Context(), "x"))
			select {
			case <-le.Done():
			case <-time.After(2 * time.Second):
				t.Error("the Break was not noticed")
			}
			migrate(t, closing(t, as("documented")))
			for i, n := range c.direct {
				stats, err := n.Info(t.Context(), "commandstats").Result()
				must(t, err)
				if !strings.Contains(stats, "cmdstat_"+tt.called+":") {
					t.Errorf("node %d was not asked by %s", i, tt.called)
				}
			}
			for user, says := range map[string]string{"elsewhere": "keys", "idle": "commands"} {
				l, err := fencelock.Open(t.Context(), as(user))
				if err == nil {
					t.Cleanup(func() { _ = l.Close() })
					_, err = l.Mutex("y").TryLock(t.Context())
				}
				want(t, user, err, fencelock.ErrInvalid)
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: got %v, want it to say which %s", user, err, says)
				}
			}
		})
	}
}

// migrate does what a migration does.
func migrate(t *testing.T, d caller) {
	t.Helper()
	g := gate(backend.GateOpen, "moving/*")
	must(t, d.SetGate(t.Context(), g, 0))
	_, err := d.Gates(t.Context())
	must(t, err)
	r := request("moving/x", "a", backend.PhaseBoth)
	grant, err := d.Acquire(t.Context(), r)
	must(t, err)
	h := &core.Hold{Request: r, Grant: grant}
	must(t, d.RaiseHeld(t.Context(), h, grant.Token+1))
	must(t, d.Release(t.Context(), h))
	_, err = d.Undrained(t.Context(), g)
	must(t, err)
	_, err = d.Source(t.Context())
	must(t, err)
	must(t, d.Raise(t.Context(), grant.Token+2))
	must(t, d.Report(t.Context(), backend.Client{ID: "c", Move: "m"}, time.Minute))
	_, err = d.Clients(t.Context(), "m")
	must(t, err)
}

// Without functions (Redis 6.2, or a user without the right to them) a node that has no memory left
// refuses the first write of a call: a release deletes before it leaves a tombstone, also of a lock
// that was asked for twice, and so does Break.
func TestScriptsWithoutMemory(t *testing.T) {
	t.Parallel()
	g := servers.Redises(t, 3, servers.RedisOptions{Users: []string{"scripts on >p " + rights}})
	c := over(t, g, g.Addrs())
	proxies, u := c.proxied(t, "fresh=1")
	l := open(t, strings.Replace(u, "//", "//scripts:p@", 1))
	free := func(name string) {
		t.Helper()
		await(t, 5*time.Second, name+" is free", func() bool {
			return c.value(t, 0, name)+c.value(t, 1, name)+c.value(t, 2, name) == ""
		})
	}
	unlock(t, lock(t, l.Mutex("before")))
	free("before") // the first node's connection stands, and its greeting is not what is held back
	proxies[0].Set(faultproxy.Mode{HoldReplies: true})
	doubtful := lock(t, l.Mutex("doubtful")) // the others' votes are enough
	await(t, 5*time.Second, "the vote of the first node", func() bool { return c.value(t, 0, "doubtful") != "" })
	proxies[0].Cut() // of its vote a copy may be under way
	proxies[0].Set(faultproxy.Mode{})
	lock(t, l.Mutex("broken"))
	var held [50]*fencelock.Lease
	for i := range held {
		held[i] = lock(t, l.Mutex(fmt.Sprint("held", i)))
	}
	for _, r := range c.direct {
		must(t, r.ConfigSet(t.Context(), "maxmemory", "1").Err())
	}
	_, err := l.Mutex("new").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrUnavailable)
	unlock(t, doubtful)
	free("doubtful") // by itself: what travels with a script that has deleted something may write too
	must(t, l.Break(t.Context(), "broken"))
	var work sync.WaitGroup
	for i, le := range held { // what is refused travels with what is not
		work.Go(func() { _, _ = l.Mutex(fmt.Sprint("new", i)).TryLock(t.Context()) })
		work.Go(func() {
			if err := le.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock beside tries that are refused: %v", err)
			}
		})
	}
	work.Wait()
	free("broken")
}

// A node that once refused our functions, for lack of memory or of replicas, gets them when it takes them: scripts do
// not count what they write, and so do not notice that a node has forgotten some of it.
func TestFunctionsOnceTheyAreTaken(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"maxmemory", "min-replicas-to-write"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			c := start(t, 3)
			l := open(t, c.url("fresh=1"))
			le := lock(t, l.Mutex("a"))
			await(t, 5*time.Second, "the vote", func() bool { return c.value(t, 0, "a") != "" })
			unlock(t, le)
			await(t, 5*time.Second, "nothing is under way", func() bool { return c.value(t, 0, "a") == "" })
			lists := func() string {
				t.Helper()
				res, err := c.direct[0].FunctionList(t.Context(), goredis.FunctionListQuery{}).Result()
				must(t, err)
				return fmt.Sprint(res)
			}
			loads := func() string {
				t.Helper()
				stats, err := c.direct[0].Info(t.Context(), "commandstats").Result()
				must(t, err)
				_, load, _ := strings.Cut(stats, "cmdstat_function|load:")
				load, _, _ = strings.Cut(load, "\n")
				return load
			}
			had, before := lists(), loads()
			must(t, c.direct[0].FunctionFlush(t.Context()).Err())
			must(t, c.direct[0].ConfigSet(t.Context(), setting, "1").Err())
			await(t, 5*time.Second, "the functions are refused", func() bool {
				le := lock(t, l.Mutex("a"))
				must(t, le.Renew(t.Context()))
				unlock(t, le)
				return loads() != before
			})
			if got := lists(); got == had {
				t.Fatalf("it has the functions that it refuses: %s", got)
			}
			must(t, c.direct[0].ConfigSet(t.Context(), setting, "0").Err())
			await(t, 5*time.Second, "its functions are there again", func() bool {
				unlock(t, lock(t, l.Mutex("a")))
				return lists() == had
			})
		})
	}
}

// A user with rights to some names keeps what it holds of them, though what it may not have any more is renewed in the
// same call. It has a right to functions all the same.
func TestRightsToSomeNames(t *testing.T) {
	t.Parallel()
	g := servers.Redises(t, 3, servers.RedisOptions{Users: []string{"u on >p ~* &* +@all"}})
	c := over(t, g, g.Addrs())
	d := closing(t, strings.Replace(c.url("fresh=1"), "//", "//u:p@", 1))
	var hs []*core.Hold
	for i, name := range []string{"mine-1", "other-1", "mine-2", "mine-3", "other-2"} {
		r := request(name, fmt.Sprint(i), "")
		grant, err := d.Acquire(t.Context(), r)
		must(t, err)
		hs = append(hs, &core.Hold{Request: r, Grant: grant})
	}
	for _, r := range c.direct {
		must(t, r.Do(t.Context(), "ACL", "SETUSER", "u", "resetkeys", "~fencelock:mine*", "~fl*").Err())
	}
	for what, errs := range map[string][]error{"Renew": d.Renew(t.Context(), hs), "Check": d.Check(t.Context(), hs)} {
		for i, h := range hs {
			if strings.HasPrefix(h.Name, "mine") {
				must(t, errs[i])
			} else {
				want(t, what+" of "+h.Name, errs[i], backend.ErrInvalid)
			}
		}
	}
	must(t, d.Release(t.Context(), hs[0]))
	for i, r := range c.direct {
		stats, err := r.Info(t.Context(), "commandstats").Result()
		must(t, err)
		if strings.Contains(stats, "cmdstat_evalsha:") {
			t.Errorf("node %d was asked by scripts, which notice less of what it has forgotten", i)
		}
	}
}
