package redis_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// A push grants by itself: the holder asks for nothing before it has the lock. What it trusts until
// its first renewal is over before the key expires, also where that renewal never comes.
func TestPushGrants(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	for _, gone := range []bool{false, true} {
		le := lock(t, open(t, s.URL()).Mutex("x"))
		p, url := proxied(t, s)
		var seen events
		wait := queue(t, c, open(t, url, fencelock.WithObserver(&seen)), "x", 1)
		p.Set(faultproxy.BlackHole) // the push comes late
		unlock(t, le)
		<-time.After(150 * time.Millisecond)
		p.Set(faultproxy.Mode{HoldRequests: true})
		got := wait.Granted(t, time.Second)
		left := c.PTTL(t.Context(), key("x")).Val()
		expires, deadline := time.Now().Add(left), got.Deadline()
		if left <= 0 || left > 2*time.Second || !deadline.Before(expires) {
			t.Errorf("the key expires in %v, the deadline is %v before that", left, expires.Sub(deadline))
		}
		if gone {
			lost(t, got, 3*time.Second, fencelock.Expired)
			if moved := got.Deadline().Sub(deadline); moved != 0 {
				t.Errorf("the deadline has moved by %v, though no renewal was answered", moved)
			}
			p.Set(faultproxy.Mode{})
			continue
		}
		p.Set(faultproxy.Mode{})
		await(t, time.Second, "a renewal", func() bool { return seen.count(fencelock.Renewed) > 0 })
		left, trusted := c.PTTL(t.Context(), key("x")).Val(), time.Until(got.Deadline())
		if left < 25*time.Second || trusted < 25*time.Second {
			t.Errorf("after the renewal the key expires in %v, the deadline is in %v", left, trusted)
		}
		unlock(t, got)
		awaitClean(t, c, time.Second)
	}
}

// A push that names another ask than the one that was answered last is worth a look, and no more.
func TestPushOfAnotherAsk(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	wait := queue(t, c, open(t, s.URL()), "x", 1)
	waits, err := c.HGetAll(t.Context(), redis.OursOf(key("x"))+"m"+key("x")).Result()
	must(t, err)
	for nonce, text := range waits {
		words := strings.Fields(text) // until process ask/version owner
		ask, _, _ := strings.Cut(words[2], "/")
		for _, push := range []string{"h%s1:5 %s", "h%s:x %s", "h%s:-5 %s", "h%s: %s", "h%s %s", "h %.0s%s"} {
			must(t, c.Publish(t.Context(), "fl\x00p"+words[1], fmt.Sprintf(push, ask, nonce)).Err())
		}
	}
	if len(waits) != 1 {
		t.Fatalf("%d waiters, want 1", len(waits))
	}
	<-time.After(200 * time.Millisecond)
	if wait.Over() {
		t.Fatalf("granted beside its holder: %v", wait.Err)
	}
	unlock(t, le)
	unlock(t, wait.Granted(t, time.Second))
}

// Gates that the waiter was not judged by grant nothing by a push.
func TestPushIsJudgedByTheGates(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	p, url := proxied(t, s)
	wait := queue(t, c, open(t, url), "x", 1)
	must(t, closing(t, s.URL()).SetGate(t.Context(), closedGate("other*"), 0))
	p.Set(faultproxy.Mode{HoldRequests: true})
	unlock(t, le)
	<-time.After(200 * time.Millisecond)
	if wait.Over() {
		t.Errorf("granted by gates that are over: %v", wait.Err)
	}
	if v := c.Get(t.Context(), key("x")).Val(); !strings.HasSuffix(v, "\x00") {
		t.Errorf("the lock's value is %q, want a claim", v)
	}
	p.Set(faultproxy.Mode{})
	unlock(t, wait.Granted(t, 2*time.Second))
}
