package redis_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/leaks"
	"github.com/fencelock/fencelock/internal/servers"
)

// The tests of this file count, and so do not run beside others.

func TestUncontendedCycleIsTwoRequests(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	p, url := proxied(t, s)
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm"))) // the server has the scripts now
	const cycles = 20
	others := 0
	for i := range cycles {
		p.ResetCounts()
		le := lock(t, l.Mutex(fmt.Sprint("lock-", i%3)))
		locked := p.Counts().Requests
		unlock(t, le)
		if all := p.Counts().Requests; locked != 1 || all != 2 {
			t.Logf("client writes of cycle %d: got %d for Lock and %d in all, want 1 and 2", i, locked, all)
			others++
		}
	}
	if others > cycles/4 { // where the machine stands still, the holder looks, and a call is sent again
		t.Errorf("%d of %d cycles were not two requests", others, cycles)
	}
}

func TestTryLockOfHeldNameIsOneRequest(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	lock(t, open(t, s.URL()).Mutex("held"))
	p, url := proxied(t, s)
	l := open(t, url)
	_, err := l.Mutex("held").TryLock(t.Context())
	want(t, "warm TryLock", err, fencelock.ErrLocked)
	p.ResetCounts()
	const tries = 20
	for range tries {
		_, err := l.Mutex("held").TryLock(t.Context())
		want(t, "TryLock", err, fencelock.ErrLocked)
	}
	if got := p.Counts().Requests; got != tries {
		t.Errorf("client writes of %d TryLocks: got %d, want %d", tries, got, tries)
	}
}

func TestManyLeasesAreRenewedInBatches(t *testing.T) {
	const ttl = 3 * time.Second
	held, rounds := 2000, 5
	if testing.Short() {
		rounds = 2
	}
	s := servers.Redis(t, servers.RedisOptions{})
	p, url := proxied(t, s)
	others := withoutProxies() // tests that wait for their turn have a goroutine each
	var seen events
	l := open(t, url, fencelock.WithTTL(ttl), fencelock.WithObserver(&seen))
	leases := make([]*fencelock.Lease, held)
	var wg sync.WaitGroup
	const lockers = 4
	for part := range lockers {
		wg.Go(func() {
			for i := part; i < held; i += lockers {
				var err error
				if leases[i], err = l.Mutex(fmt.Sprint("many-", i)).TryLock(t.Context()); err != nil {
					t.Errorf("TryLock %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	p.ResetCounts()
	before, renewed, most := seen.count(fencelock.Renewed), 0, 0
	began, span := time.Now(), time.Duration(0)
	latest := time.Duration(rounds) * ttl / 2 // they come at TTL/3, a little before it
	for ; renewed < held*rounds && span < latest; <-time.After(20 * time.Millisecond) {
		if runtime.NumGoroutine()-others > most { // stacks are dear: look only at what may be a new peak
			most = max(most, withoutProxies()-others)
		}
		renewed, span = seen.count(fencelock.Renewed)-before, time.Since(began)
	}
	writes := p.Counts().Requests
	t.Logf(
		"%d leases of TTL %v over %v: %d renewals in %d client writes (checks included): "+
			"%.1f a write; at most %d goroutines",
		held,
		ttl,
		span,
		renewed,
		writes,
		float64(renewed)/float64(writes),
		most,
	)
	if most >= 30 {
		t.Errorf("goroutines: got %d, want less than 30", most)
	}
	if renewed < held*rounds {
		t.Errorf("renewals within %v: got %d, want %d", span, renewed, held*rounds)
	}
	if writes*10 > int64(renewed) {
		t.Errorf("client writes: got %d for %d renewals, want one for ten at most", writes, renewed)
	}
	for i, le := range leases {
		if err := le.Err(); err != nil {
			t.Errorf("lease %d: %v", i, err)
		}
	}
	if n := seen.count(fencelock.RenewFailed) + seen.count(fencelock.Lost); n != 0 {
		t.Errorf("failed renewals and losses: got %d, want none", n)
	}
}

// withoutProxies is the number of goroutines that are not a fault proxy's.
func withoutProxies() int {
	n := 0
	for _, g := range leaks.Goroutines() {
		if !strings.Contains(g, "/faultproxy.") {
			n++
		}
	}
	return n
}

func TestManyWaitersAreOneAtTheServer(t *testing.T) {
	span := 3 * time.Second
	if testing.Short() {
		span = time.Second
	}
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	holder := open(t, s.URL())
	le := lock(t, holder.Mutex("popular"))
	p, url := proxied(t, s)
	l := open(t, url)
	before := clients(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const waiting = 200
	var wg sync.WaitGroup
	var mu sync.Mutex
	var odd []error
	for range waiting {
		wg.Go(func() {
			if _, err := l.Mutex("popular").Lock(ctx); !errors.Is(err, context.Canceled) ||
				!errors.Is(err, fencelock.ErrLocked) {
				mu.Lock()
				odd = append(odd, err)
				mu.Unlock()
			}
		})
	}
	await(t, 5*time.Second, "the process waits", func() bool { return queued(t, c, "popular") == 1 })
	p.ResetCounts()
	old, from := calls(t, c), time.Now()
	<-time.After(span)
	now, took := calls(t, c), time.Since(from).Seconds()
	added := clients(t, c) - before
	var all, outer int64
	for name, n := range now {
		n -= old[name]
		if name == "info" || name == "client|list" || name == "zcard" { // the test's own
			continue
		}
		all += n
		switch name {
		case "evalsha", "eval", "ping", "subscribe", "hello", "client|setinfo":
			outer += n
		}
	}
	writes := p.Counts().Requests
	t.Logf(
		"%d goroutines wait: %d more connections; commands a second: %.1f sent, "+
			"%.1f with those inside scripts (the holder's checks included); "+
			"%.1f client writes a second of the waiting process",
		waiting,
		added,
		float64(outer)/took,
		float64(all)/took,
		float64(writes)/took,
	)
	if added > 4 {
		t.Errorf("connections: got %d more, want 4 at most", added)
	}
	if rate := float64(all) / took; rate > 15 {
		t.Errorf("commands a second: got %.1f, want 15 at most", rate)
	}
	cancel()
	wg.Wait()
	if len(odd) > 0 {
		t.Errorf("%d waits ended otherwise than cancelled while locked; the first: %v", len(odd), odd[0])
	}
	unlock(t, le)
	awaitClean(t, c, time.Second)
}

func TestConnectionsEndWithClose(t *testing.T) {
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	before, routines := clients(t, c), runtime.NumGoroutine()
	l, err := fencelock.Open(t.Context(), s.URL())
	must(t, err)
	other, err := fencelock.Open(t.Context(), s.URL())
	must(t, err)
	for i := range 50 {
		lock(t, l.Mutex(fmt.Sprint("kept-", i)))
	}
	wait := queue(t, c, other, "kept-7", 1)
	must(t, l.Close())
	unlock(t, wait.Granted(t, 2*time.Second))
	must(t, other.Close())
	await(t, 2*time.Second, "connections as before", func() bool { return clients(t, c) == before })
	await(t, 2*time.Second, "goroutines as before", func() bool { return runtime.NumGoroutine() <= routines })
	if left := leftovers(t, c); len(left) > 0 {
		t.Errorf("keys left after Close: %q", left)
	}
}
