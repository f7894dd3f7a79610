package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// crowd calls do from n goroutines at once and returns when all have.
func crowd(n int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// crowdShares: what many lock and release at once shares transactions; each has its own lock and a
// token of its own that rises.
func crowdShares(t *testing.T, r *rig) {
	l, n := r.counted(t, fencelock.WithTTL(10*time.Minute))
	unlock(t, lock(t, l.Mutex("first")))
	n.take()
	const goroutines, cycles = 32, 20
	crowd(goroutines, func(i int) {
		var last fencelock.Token
		for range cycles {
			le, err := l.Mutex(fmt.Sprint("x", i)).Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			rising(t, "of a cycle", last, le.Token())
			last = le.Token()
			if err := le.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	if got := n.take(); got["Txn"] > goroutines*cycles {
		t.Errorf("calls for %d cycles of %d goroutines: got %v, want no more than a Txn each",
			goroutines*cycles, goroutines, got)
	}
	if keys := r.keys(t); len(keys) > tombs(keys) {
		t.Errorf("left: %q", keys)
	}
}

// crowdWithOwnLeases: locks that need a lease each share transactions too, and take over the leases
// of those that were released.
func crowdWithOwnLeases(t *testing.T, r *rig) {
	l, n := r.counted(t, fencelock.WithTTL(10*time.Minute), fencelock.WithManualRenew())
	unlock(t, lock(t, l.Mutex("first")))
	n.take()
	const goroutines, cycles = 32, 20
	crowd(goroutines, func(i int) {
		for range cycles {
			le, err := l.Mutex(fmt.Sprint("x", i)).Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if err := le.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	got := n.take()
	if got["Txn"] > goroutines*cycles || got["LeaseGrant"] > 2*goroutines {
		t.Errorf("calls for %d cycles of %d goroutines: got %v, want no more than a Txn each, "+
			"and a few leases", goroutines*cycles, goroutines, got)
	}
}

// crowdOfOneName: requests for one name that come at once are not granted it at once, whatever they share.
func crowdOfOneName(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	var held [3]atomic.Int32
	var grants atomic.Int32
	crowd(48, func(i int) {
		for n := range 10 {
			req := request(fmt.Sprint("x", i%3), i*100+n+1, 20*time.Second)
			g, err := d.Acquire(t.Context(), req)
			if errors.Is(err, backend.ErrLocked) {
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			grants.Add(1)
			if held[i%3].Add(1) > 1 {
				t.Errorf("two hold %s", req.Name)
			}
			<-time.After(2 * time.Millisecond) // so that another holder is seen
			held[i%3].Add(-1)
			if err := d.Release(t.Context(), &core.Hold{Request: req, Grant: g}); err != nil {
				t.Errorf("release: %v", err)
			}
		}
	})
	if grants.Load() < 3 {
		t.Errorf("%d grants, want some of each name", grants.Load())
	}
	for i := range held {
		r.awaitFree(t, fmt.Sprint("x", i))
	}
}

// crowdLosesReplies: the answers to transactions that many share are lost. Each lock is granted once
// and released. Some try locks that are held, so that transactions are also sent part by part.
func crowdLosesReplies(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("first")))
	lock(t, open(t, r.url()).Mutex("held"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			_, err := l.Mutex("held").TryLock(t.Context())
			if !errors.Is(err, fencelock.ErrLocked) && !errors.Is(err, fencelock.ErrUnavailable) {
				t.Errorf("TryLock of a lock that is held: %v", err)
			}
		}
	})
	wg.Go(func() {
		for range 5 {
			<-time.After(100 * time.Millisecond)
			p.Set(faultproxy.Mode{HoldReplies: true})
			<-time.After(30 * time.Millisecond)
			p.Cut() // with all that was answered meanwhile
			p.Set(faultproxy.Mode{})
		}
	})
	crowd(32, func(i int) {
		m := l.Mutex(fmt.Sprint("x", i))
		var last fencelock.Token
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			le, err := m.Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			rising(t, "after a lost reply", last, le.Token())
			last = le.Token()
			if err := le.Unlock(t.Context()); err != nil &&
				(!errors.Is(err, fencelock.ErrUnavailable) || le.Unlock(t.Context()) != nil) {
				t.Errorf("Unlock: %v", err)
			}
		}
	})
	wg.Wait()
	for i := range 32 {
		r.awaitFree(t, fmt.Sprint("x", i))
	}
}

// crowdWithoutLease: the lease of one TTL ends behind the library's back, again and again. Those
// who lock and release with another TTL, and share transactions that the server refuses for that,
// do not notice.
func crowdWithoutLease(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	var nonces atomic.Int64
	cycle := func(name string, ttl time.Duration) {
		req := request(name, int(nonces.Add(1)), ttl)
		g, err := d.Acquire(t.Context(), req)
		if err != nil {
			t.Errorf("acquire %s: %v", name, err)
			return
		}
		if err := d.Release(t.Context(), &core.Hold{Request: req, Grant: g}); err != nil {
			t.Errorf("release %s: %v", name, err)
		}
	}
	var over atomic.Bool
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for !over.Load() {
				cycle(fmt.Sprint("kept", i), 20*time.Second)
			}
		})
	}
	for range 4 {
		h := hold(t, d, request("lost", int(nonces.Add(1)), 10*time.Second))
		_, err := r.c.Revoke(t.Context(), r.lease(t, "lost"))
		must(t, err)
		crowd(8, func(i int) { cycle(fmt.Sprint("lost", i), 10*time.Second) })
		want(t, "Release of the one whose lease ended", d.Release(t.Context(), h), backend.ErrLost)
	}
	over.Store(true)
	wg.Wait()
}

// crowdInSilence: no answer comes. A call ends with its ctx, also one that waits for others to end, and leaves nothing.
func crowdInSilence(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	d := r.driver(t, url)
	must(t, d.Release(t.Context(), hold(t, d, request("first", 1, 20*time.Second))))
	p.Set(faultproxy.Mode{HoldRequests: true})
	reqs := make([]*backend.Request, 12)
	crowd(len(reqs), func(i int) {
		reqs[i] = request(fmt.Sprint("x", i), 100+i, 20*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+50*i)*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := d.Acquire(ctx, reqs[i])
		if err == nil {
			t.Error("Acquire in silence: got a grant")
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Acquire with %v took %v", time.Duration(100+50*i)*time.Millisecond, took)
		}
	})
	p.Set(faultproxy.Mode{})
	crowd(len(reqs), func(i int) {
		if err := d.Abandon(within(t, 10*time.Second), reqs[i]); err != nil {
			t.Errorf("Abandon: %v", err)
		}
	})
	for i := range reqs {
		r.awaitFree(t, fmt.Sprint("x", i))
	}
}
