package redis_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// A late reply never lengthens a lease: the Deadline counts from before the request, not from the
// reply.
func TestDeadlineCountsFromTheRequest(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	const (
		ttl    = 10 * time.Second
		margin = ttl / 50
		slow   = 150 * time.Millisecond // each way
	)
	l := open(t, url, fencelock.WithTTL(ttl), fencelock.WithManualRenew())
	unlock(t, lock(t, l.Mutex("warm")))
	check := func(what string, le *fencelock.Lease, sent time.Time) {
		t.Helper()
		took := time.Since(sent)
		if took < 2*slow {
			t.Errorf("%s: took %v: the proxy did not delay it", what, took)
		}
		// The request that was answered left between the call and two ways before the answer.
		if late := le.Deadline().Sub(sent.Add(ttl - margin)); late < 0 || late > took-2*slow {
			t.Errorf("%s: the Deadline is %v after the call + TTL - margin, which took %v", what, late, took)
		}
		if left := c.PTTL(t.Context(), key(le.Name())).Val(); time.Now().Add(left).Before(le.Deadline()) {
			t.Errorf("%s: the store's expiry, in %v, is before the Deadline", what, left)
		}
	}
	p.Set(faultproxy.Mode{Delay: slow})
	sent := time.Now()
	le, err := l.Mutex("x").TryLock(t.Context())
	must(t, err)
	check("TryLock", le, sent)
	sent = time.Now()
	must(t, le.Renew(t.Context()))
	check("Renew", le, sent)
	unlock(t, le)

	// A waiter's Deadline counts from its confirmation, which it sends when the push has come.
	p.Set(faultproxy.Mode{})
	held := lock(t, open(t, s.URL()).Mutex("y"))
	wait := queue(t, c, l, "y", 1)
	p.Set(faultproxy.Mode{Delay: slow})
	released := time.Now()
	unlock(t, held)
	le = wait.Granted(t, 2*time.Second)
	asked := le.Deadline().Add(margin - ttl)
	if asked.Before(released.Add(slow)) || asked.After(wait.At.Add(-2*slow)) {
		t.Errorf("waiter: the Deadline counts from %v after the release, the grant came %v after it: want one way "+
			"before the confirmation, and two after it", asked.Sub(released), wait.At.Sub(released))
	}
	p.Set(faultproxy.Mode{})
	unlock(t, le)
}

// A grant whose reply comes after the deadline that it would set is given back.
func TestGrantAfterItsOwnDeadlineIsGivenBack(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	p.Set(faultproxy.Mode{Delay: 120 * time.Millisecond})
	le, err := l.Mutex("x", fencelock.WithTTL(200*time.Millisecond), fencelock.WithGrace(time.Minute)).
		TryLock(t.Context())
	if err == nil {
		t.Errorf("TryLock: got a lease with %v left", time.Until(le.Deadline()))
	}
	want(t, "TryLock", err, fencelock.ErrUnavailable)
	p.Set(faultproxy.Mode{})
	awaitClean(t, c, 2*time.Second) // long before the grace is over
}

// A token that the queue draws rises over a lost or stale counter too.
func TestTokensOfTheQueueRise(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	counter := redis.OursOf(key("x")) + "c"
	le := lock(t, open(t, s.URL()).Mutex("x"))
	wait := queue(t, c, open(t, s.URL()), "x", 1)
	must(t, c.Set(t.Context(), counter, "5", 0).Err()) // as a stale replica has it
	unlock(t, le)
	next := wait.Granted(t, time.Second)
	if next.Token() <= le.Token() {
		t.Errorf(
			"token granted by a release with a stale counter: got %d, want more than %d",
			next.Token(),
			le.Token(),
		)
	}
	wait = queue(t, c, open(t, s.URL()), "x", 1)
	must(t, c.Del(t.Context(), counter, key("x")).Err())
	must(
		t,
		c.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(),
	) // so that the waiter looks, and finds the key free
	last := wait.Granted(t, 6*time.Second)
	if last.Token() <= next.Token() {
		t.Errorf(
			"token taken from the queue without a counter: got %d, want more than %d",
			last.Token(),
			next.Token(),
		)
	}
	unlock(t, last)
}
