package redis_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

func TestGrantByReleaseIsAClaimUntilConfirmed(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	const ttl = 20 * time.Second
	le := lock(t, open(t, s.URL()).Mutex("x"))
	p, url := proxied(t, s)
	wait := queue(t, c, open(t, url, fencelock.WithTTL(ttl), fencelock.WithManualRenew()), "x", 1)

	p.Set(faultproxy.Mode{HoldRequests: true}) // the push gets through, the confirmation does not
	released := time.Now()
	unlock(t, le)
	must(t, p.Await(within(t, 2*time.Second), func(c faultproxy.Counts) bool { return c.HeldRequests > 0 }))
	left := c.PTTL(t.Context(), key("x")).Val()
	if left <= 0 || left > 2*time.Second {
		t.Errorf("the unconfirmed grant expires in %v, want 2 s at most", left)
	}
	if wait.Over() {
		t.Error("Lock returned before it had confirmed its grant")
	}
	<-time.After(100 * time.Millisecond) // how late the confirmation is
	p.Set(faultproxy.Mode{})
	got := wait.Granted(t, 2*time.Second)
	left, now := c.PTTL(t.Context(), key("x")).Val(), time.Now()
	if left < ttl-2*time.Second {
		t.Errorf("the confirmed grant expires in %v, want about %v", left, ttl)
	}
	const margin = 400 * time.Millisecond
	deadline := got.Deadline()
	if deadline.Before(released.Add(ttl - margin)) {
		t.Errorf("Deadline %v after the release: want at least TTL less margin", deadline.Sub(released))
	}
	if deadline.After(wait.At.Add(ttl-margin)) || deadline.After(now.Add(left)) {
		t.Errorf("Deadline %v after the release, the store's expiry %v: want it counted from before the confirmation",
			deadline.Sub(released), now.Add(left).Sub(released))
	}
	unlock(t, got)
	awaitClean(t, c, time.Second)
}

func TestKilledWaiterIsSkipped(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	p, url := proxied(t, s)
	dead := queue(t, c, open(t, url), "x", 1)
	next := queue(t, c, open(t, s.URL()), "x", 2)
	heard := listeners(t, c)
	p.Set(faultproxy.Mode{Refuse: true})
	p.Cut()
	await(
		t,
		2*time.Second,
		"the server sees the end of the connection",
		func() bool { return listeners(t, c) == heard-1 },
	)
	released := time.Now()
	unlock(t, le)
	unlock(t, next.Granted(t, time.Second))
	t.Logf("hand-over past a dead waiter: %v", next.At.Sub(released))
	if dead.Over() {
		t.Errorf("the waiter without a connection has given up before 5 s: %v", dead.Err)
	}
	p.Set(faultproxy.Mode{})
}

// deadWaiters puts waiters that died some time ago into a queue, in front of the waiters that are there or behind them.
func deadWaiters(t *testing.T, c goredis.Cmdable, name string, n int, inFront bool, ago time.Duration) {
	t.Helper()
	ours := redis.OursOf(key(name))
	queue, waiters := ours+"q"+key(name), ours+"m"+key(name)
	till := time.Now().Add(-ago).UnixMilli()
	ticket := float64(time.Now().Add(time.Minute).UnixMicro())
	if inFront {
		ticket = 1
	}
	_, err := c.Pipelined(t.Context(), func(p goredis.Pipeliner) error {
		for i := range n {
			nonce := fmt.Sprintf("%032x", i)
			p.ZAdd(t.Context(), queue, goredis.Z{Score: ticket, Member: nonce})
			p.HSet(t.Context(), waiters, nonce, fmt.Sprintf("%d process - owner", till))
		}
		return nil
	})
	must(t, err)
}

// Dead waiters behind a live one leave the queue while the lock is held.
func TestTheDeadBehindOneWhoWaits(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	wait := queue(t, c, open(t, s.URL()), "x", 1)
	deadWaiters(t, c, "x", 1, false, 2*time.Minute)
	await(t, 5*time.Second, "the dead are out of the queue", func() bool { return queued(t, c, "x") == 1 })
	unlock(t, le)
	unlock(t, wait.Granted(t, time.Second))
}

// A waiter that has lost its place behind another has it again after one look.
func TestLostPlacesAreTakenAgain(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	var waits []*pending
	for i := range 3 {
		waits = append(waits, queue(t, c, open(t, s.URL()), "x", int64(i)+1))
	}
	ours := redis.OursOf(key("x"))
	for _, nonce := range c.ZRange(t.Context(), ours+"q"+key("x"), 1, -1).Val() {
		must(t, c.ZRem(t.Context(), ours+"q"+key("x"), nonce).Err())
		must(t, c.HDel(t.Context(), ours+"m"+key("x"), nonce).Err())
	}
	must(t, c.ConfigResetStat(t.Context()).Err())
	await(t, 10*time.Second, "all three are back", func() bool { return queued(t, c, "x") == 3 })
	if what := c.InfoMap(t.Context(), "commandstats").Val()["Commandstats"]["cmdstat_zrem"]; what != "" {
		t.Errorf("one of them was dropped: ZREM: %s", what)
	}
	unlock(t, le)
	for _, w := range waits { // they subscribe anew, and look by themselves meanwhile
		unlock(t, w.Granted(t, 10*time.Second))
	}
}

// One call drops 1,000 dead waiters at the most, and nobody overtakes the live waiters behind them, which look again at
// once.
func TestManyDeadInFront(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	l, other := open(t, s.URL()), open(t, s.URL())
	for name, waits := range map[string]locks{"x": other.Mutex("x").Lock, "y": other.RWMutex("y").RLock} {
		le := lock(t, l.Mutex(name))
		wait := begin(t, waits)
		await(t, 10*time.Second, "it waits", func() bool { return queued(t, c, name) == 1 })
		deadWaiters(t, c, name, 15_000, true, 2*time.Minute)
		before := calls(t, c)["evalsha"]
		unlock(t, le)
		if left, n := queued(t, c, name), calls(t, c)["evalsha"]-before; left < 15_000-1000*n {
			t.Errorf("%d are in the queue after %d calls, want that each takes out 1,000 at the most", left, n)
		}
		for range 3 { // each drops some
			if le, err := l.Mutex(name).TryLock(t.Context()); err == nil {
				t.Error("one that came later has the lock first")
				unlock(t, le)
			}
		}
		unlock(t, wait.Granted(t, 5*time.Second))
	}
	awaitTombstones(t, c, time.Second)
}

// On a cluster only a push tells that a waiter has died. One call drops no more of those.
func TestManyDeadInFrontOnACluster(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 1})
	c, node := clusterClient(t, cl), foreign(t, cl.Servers()[0])
	l, other := open(t, cl.URL()), open(t, cl.URL())
	for name, waits := range map[string]locks{"x": other.Mutex("x").Lock, "y": other.RWMutex("y").RLock} {
		le := lock(t, l.Mutex(name))
		wait := begin(t, waits)
		waiters(t, l, name, 1)
		deadWaiters(t, c, name, 5000, true, -time.Minute) // alive for a minute, as far as the queue can tell
		before := calls(t, node)["evalsha"]
		unlock(t, le)
		left := c.ZCard(t.Context(), redis.OursOf(key(name))+"q"+key(name)).Val()
		if n := calls(t, node)["evalsha"] - before; left < 5000-1000*n {
			t.Errorf("%d are in the queue after %d calls, want that each takes out 1,000 at the most", left, n)
		}
		unlock(t, wait.Granted(t, 5*time.Second))
	}
}

func TestVanishedWaiterCostsOneClaim(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	p, url := proxied(t, s)
	queue(t, c, open(t, url), "x", 1)
	next := queue(t, c, open(t, s.URL()), "x", 2)
	p.Set(faultproxy.BlackHole)
	released := time.Now()
	unlock(t, le)
	unlock(t, next.Granted(t, 5*time.Second))
	took := next.At.Sub(released)
	t.Logf("hand-over past a vanished waiter: %v", took)
	if took < 1500*time.Millisecond || took > 3500*time.Millisecond { // two claims are 4 s
		t.Errorf("hand-over past a vanished waiter took %v, want one claim of 2 s", took)
	}
	p.Set(faultproxy.Mode{})
}

func TestTryLockDoesNotOvertake(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	must(t, c.Set(t.Context(), key("x"), ours, time.Minute).Err())
	wait := queue(t, c, open(t, s.URL()), "x", 1)
	other := open(t, s.URL())
	must(t, c.Del(t.Context(), key("x")).Err()) // free, and the waiter does not know
	_, err := other.Mutex("x").TryLock(t.Context())
	want(t, "TryLock of a free lock with a queue", err, fencelock.ErrLocked)
	unlock(t, wait.Granted(t, time.Second)) // the try has told it
	unlock(t, lock(t, other.Mutex("x")))
}

// A waiter that was skipped, because its connection was gone just then, comes back to its place.
func TestDroppedWaiterKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	p, url := proxied(t, s)
	first := queue(t, c, open(t, url), "x", 1)
	second := queue(t, c, open(t, s.URL()), "x", 2)
	third := queue(t, c, open(t, s.URL()), "x", 3)
	heard := listeners(t, c)
	p.Set(faultproxy.Mode{Refuse: true})
	p.Cut()
	await(
		t,
		2*time.Second,
		"the server sees the end of the connection",
		func() bool { return listeners(t, c) == heard-1 },
	)
	unlock(t, le)
	held := second.Granted(t, time.Second)
	if n := queued(t, c, "x"); n != 1 {
		t.Fatalf("in the queue: got %d, want the third alone", n)
	}
	p.Set(faultproxy.Mode{})
	await(t, 4*time.Second, "the first is back in the queue", func() bool { return queued(t, c, "x") == 2 })
	unlock(t, held)
	held = first.Granted(t, time.Second)
	if third.Over() {
		t.Error("the third was served before the first came back to its place")
	}
	unlock(t, held)
	unlock(t, third.Granted(t, time.Second))
	awaitClean(t, c, time.Second)
}

func TestHandOverCostsTheSameForAnyNumberOfWaiters(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	cost := map[int]float64{}
	counts := []int{5, 50}
	if testing.Short() {
		counts = []int{5, 20}
	}
	for _, n := range counts {
		name := fmt.Sprint("x-", n)
		le := lock(t, over(t, c).Mutex(name))
		var waits []*pending
		for i := range n {
			waits = append(waits, queue(t, c, over(t, c), name, int64(i+1)))
		}
		const hands = 4
		next := waits
		cost[n] = math.Inf(1)
		for len(next) > n/2 { // the least of several: others look every 2 s, and so between
			old, began := calls(t, c), time.Now()
			for _, w := range next[:hands] {
				unlock(t, le)
				le = w.Granted(t, 2*time.Second)
			}
			took, now := time.Since(began)/hands, calls(t, c)
			var all int64
			for name, k := range now {
				if name != "info" {
					all += k - old[name]
				}
			}
			t.Logf("%d waiters: a hand-over is %.2f scripts, %.2f pushes, %.1f commands in all, %v", n,
				float64(now["evalsha"]-old["evalsha"])/hands, float64(now["publish"]-old["publish"])/hands,
				float64(all)/hands, took)
			cost[n], next = min(cost[n], float64(all)/hands), next[hands:]
		}
		for _, w := range next {
			w.Cancel()
		}
		unlock(t, le)
		for _, w := range next {
			<-w.Done
			if w.Err == nil { // granted before it was cancelled
				unlock(t, w.Lease)
			} else if !errors.Is(w.Err, fencelock.ErrLocked) {
				t.Errorf("a cancelled wait: %v", w.Err)
			}
		}
	}
	few, many := cost[counts[0]], cost[counts[1]]
	if many > few*1.5+2 {
		t.Errorf(
			"commands of a hand-over: got %.1f with %d waiters and %.1f with %d, want the same",
			few,
			counts[0],
			many,
			counts[1],
		)
	}
	awaitClean(t, c, 2*time.Second)
}
