package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/redis"
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

// key is the Redis key of a lock, with the default prefix.
func key(name string) string { return "fencelock:" + name }

// ours is the value of a lock key that looks like one of ours, held by nobody.
const ours = "0123456789abcdef0123456789abcdef:5:somebody"

// over returns a Locker over a client that the test has made.
func over(t *testing.T, c goredis.UniversalClient, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	d, err := redis.New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := fencelock.New(d, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// foreign returns a plain client of the server, which knows nothing of locks.
func foreign(t *testing.T, s *servers.Server) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), TLSConfig: s.TLSConfig(), PoolSize: 2})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// proxied puts a fault proxy in front of the server; the string is the URL through it.
func proxied(t *testing.T, s *servers.Server) (*faultproxy.Proxy, string) {
	t.Helper()
	p := testkit.Proxied(t, s.Addr())
	return p, "redis://" + p.Addr() + "/0"
}

// lateAfter is how long after the end of its ctx a call has returned. The ctx ends when this process sees that.
func lateAfter(ctx context.Context, call func(context.Context) error) (time.Duration, error) {
	over := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { over <- time.Now() })
	err := call(ctx)
	ended := time.Now()
	return ended.Sub(<-over), err
}

// queue begins to wait for a lock that is held and returns when the server has n waiters.
func queue(t *testing.T, c *goredis.Client, l *fencelock.Locker, name string, n int64) *pending {
	t.Helper()
	p := start(t, l.Mutex(name))
	await(
		t,
		10*time.Second,
		fmt.Sprintf("%d in the queue for %q", n, name),
		func() bool { return queued(t, c, name) == n },
	)
	return p
}

// queued is how many wait at the server.
func queued(t *testing.T, c *goredis.Client, name string) int64 {
	t.Helper()
	n, err := c.ZCard(t.Context(), redis.OursOf(key(name))+"q"+key(name)).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// calls reads INFO commandstats: how often each command was called, those of scripts included.
func calls(t *testing.T, c *goredis.Client) map[string]int64 {
	t.Helper()
	text, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int64{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		count, _, _ := strings.Cut(rest, ",")
		n[name], err = strconv.ParseInt(count, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// clients is how many connections the server has, that of c included.
func clients(t *testing.T, c *goredis.Client) int {
	t.Helper()
	list, err := c.ClientList(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "id=")
}

// listeners is how many connections are subscribed to something.
func listeners(t *testing.T, c *goredis.Client) int {
	t.Helper()
	list, err := c.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "id=")
}

// allKeys is every key of the server.
func allKeys(t *testing.T, c *goredis.Client) []string {
	t.Helper()
	ks, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return ks
}

// leftovers is every key but the counters.
func leftovers(t *testing.T, c *goredis.Client) []string {
	t.Helper()
	var left []string
	for _, k := range allKeys(t, c) {
		if !strings.HasPrefix(k, "fl\x00{") || !strings.HasSuffix(k, "}c") {
			left = append(left, k)
		}
	}
	return left
}

// awaitClean returns when only counters are left.
func awaitClean(t *testing.T, c *goredis.Client, most time.Duration) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("left: %q", leftovers(t, c))
		}
	}()
	await(t, most, "only counters are left", func() bool { return len(leftovers(t, c)) == 0 })
}

// awaitTombstones returns when all that is left besides are tombstones of acquisitions that were
// sent twice, which expire.
func awaitTombstones(t *testing.T, c *goredis.Client, most time.Duration) {
	t.Helper()
	await(t, most, "tombstones with an expiry at the most are left", func() bool {
		for _, k := range leftovers(t, c) {
			// One that has expired since it was listed is gone, which is -2.
			if ttl, err := c.PTTL(t.Context(), k).Result(); err != nil || ttl == -1 || !strings.Contains(k, "}x") {
				return false
			}
		}
		return true
	})
}

// events counts what an observer sees.
type events struct {
	mu sync.Mutex
	n  map[fencelock.EventKind]int
}

func (e *events) Observe(_ context.Context, ev fencelock.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == nil {
		e.n = map[fencelock.EventKind]int{}
	}
	e.n[ev.Kind]++
}

func (e *events) count(k fencelock.EventKind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n[k]
}

// lostMoreThan is a condition for Proxy.Await.
func lostMoreThan(n int64) func(faultproxy.Counts) bool {
	return func(c faultproxy.Counts) bool { return c.LostReplies > n }
}

// caller is a driver, and how the engine calls it.
type caller struct {
	*redis.Driver
	core.Gater
}

// call returns the caller of d; as in Go, nothing comes of an error before.
func call(d *redis.Driver) caller { return caller{d, core.Of(d).(core.Gater)} }
