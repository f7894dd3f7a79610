package redis_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

func TestCancelledWaiterLeavesNothing(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	first := queue(t, c, open(t, s.URL()), "x", 1)
	second := queue(t, c, open(t, s.URL()), "x", 2)
	cancelled := time.Now()
	first.Cancel()
	<-first.Done
	want(t, "a cancelled wait", first.Err, context.Canceled)
	want(t, "a cancelled wait", first.Err, fencelock.ErrLocked)
	if took := first.At.Sub(cancelled); took > time.Second {
		t.Errorf("a cancelled wait returned after %v", took)
	}
	await(t, time.Second, "it has left the queue", func() bool { return queued(t, c, "x") == 1 })
	waiters := redis.OursOf(key("x")) + "m" + key("x")
	if n := c.HLen(t.Context(), waiters).Val(); n != 1 {
		t.Errorf("waiters described: got %d, want 1", n)
	}
	for _, k := range leftovers(t, c) {
		if strings.HasPrefix(k, redis.OursOf(key("x"))+"x") {
			t.Errorf("tombstone %q, though no request of it is under way", k)
		}
	}
	unlock(t, le)
	unlock(t, second.Granted(t, time.Second)) // next in line now
	awaitClean(t, c, time.Second)
}

func TestCancelledWaiterPassesItsGrantOn(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	p, url := proxied(t, s)
	first := queue(t, c, open(t, url), "x", 1)
	second := queue(t, c, open(t, s.URL()), "x", 2)
	p.Set(faultproxy.Mode{HoldReplies: true}) // the grant does not reach it
	unlock(t, le)
	first.Cancel()
	<-first.Done
	want(t, "a cancelled wait", first.Err, context.Canceled)
	unlock(t, second.Granted(t, 1500*time.Millisecond)) // before the claim is over
	p.Set(faultproxy.Mode{})
	awaitClean(t, c, time.Second)
}

// route is a Dialer whose way to the server can change.
type route struct{ addr atomic.Pointer[string] }

func (r *route) to(addr string) { r.addr.Store(&addr) }

func (r *route) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, *r.addr.Load())
}

// A request that was given up and arrives after its Abandon finds the tombstone. The second case
// takes the tombstone away first, and so shows that the first one does deliver the request.
func TestLateAcquireFindsTombstone(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	for _, tt := range []struct {
		name string
		bare bool
		want int64 // of the lock key
	}{
		{"kept", false, 0},
		{"taken away", true, 1},
	} {
		p, _ := proxied(t, s)
		var way route
		way.to(p.Addr())
		client := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Dialer: way.dial, PoolSize: 1})
		t.Cleanup(func() { _ = client.Close() })
		var seen events
		l := over(t, client, fencelock.WithObserver(&seen))
		unlock(t, lock(t, l.Mutex("warm")))

		p.Set(faultproxy.Mode{HoldRequests: true})
		way.to(s.Addr()) // every other connection
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := l.Mutex("x").TryLock(ctx)
			failed <- err
		}()
		must(t, p.Await(within(t, 2*time.Second), func(c faultproxy.Counts) bool { return c.HeldRequests > 0 }))
		cancel()
		cancelled := time.Now()
		want(t, "TryLock", <-failed, context.Canceled)
		if took := time.Since(cancelled); took > time.Second {
			t.Errorf("%s: TryLock returned %v after its ctx was cancelled, want a second at most", tt.name, took)
		}
		await(t, 2*time.Second, "abandoned", func() bool { return seen.count(fencelock.CleanedUp) == 1 })
		var stone string
		for _, k := range leftovers(t, c) {
			if strings.HasPrefix(k, redis.OursOf(key("x"))+"x") {
				stone = k
			}
		}
		if ttl := c.PTTL(t.Context(), stone).Val(); stone == "" || ttl <= 30*time.Second || ttl > time.Minute {
			t.Fatalf("%s: tombstone %q expires in %v, want one that outlives the TTL", tt.name, stone, ttl)
		}
		if tt.bare {
			must(t, c.Del(t.Context(), stone).Err())
		}
		before := calls(t, c)["evalsha"]
		p.Set(faultproxy.Mode{})
		await(
			t,
			2*time.Second,
			"the late request has arrived",
			func() bool { return calls(t, c)["evalsha"] > before },
		)
		if got := c.Exists(t.Context(), key("x")).Val(); got != tt.want {
			t.Errorf("%s: lock keys after the late request: got %d, want %d", tt.name, got, tt.want)
		}
		must(t, c.Del(t.Context(), key("x"), stone).Err())
	}
}
