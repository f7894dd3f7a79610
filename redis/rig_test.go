package redis_test

import (
	"context"
	"errors"
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
	"github.com/fencelock/fencelock/redis"
)

// key is the Redis key of a lock, with the default prefix.
func key(name string) string { return "fencelock:" + name }

// ours is the value of a lock key that looks like one of ours, held by nobody.
const ours = "0123456789abcdef0123456789abcdef:5:somebody"

// open returns a Locker of its own: one more client of the store.
func open(t *testing.T, url string, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l, err := fencelock.Open(t.Context(), url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the test may have taken its server away
	return l
}

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
	p, err := faultproxy.New(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, "redis://" + p.Addr() + "/0"
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
	le, err := m.Lock(within(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return le
}

// unlock frees a lock that is surely held.
func unlock(t *testing.T, le *fencelock.Lease) {
	t.Helper()
	if err := le.Unlock(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
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

// granted returns the lease of a wait, which must have been granted in time.
func (p *pending) granted(t *testing.T, most time.Duration) *fencelock.Lease {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(most):
		t.Fatalf("not granted within %v", most)
	}
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.lease
}

// over reports whether a wait has ended.
func (p *pending) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
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

// want fails the test unless err matches target.
func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

// lost waits for the end of a lease and checks its reason; it returns when the end was seen.
func lost(t *testing.T, le *fencelock.Lease, most time.Duration, reason fencelock.Reason) time.Time {
	t.Helper()
	select {
	case <-le.Done():
	case <-time.After(most):
		t.Fatalf("the loss was not seen within %v", most)
	}
	at := time.Now()
	var l *fencelock.LostError
	if !errors.As(le.Err(), &l) || l.Reason != reason {
		t.Errorf("got %v, want a loss: %v", le.Err(), reason)
	}
	return at
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
