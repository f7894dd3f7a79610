package fencelock_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

func TestTenThousandLeases(t *testing.T) {
	const n = 10000
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(30*time.Second))
		synctest.Wait()
		base := runtime.NumGoroutine()
		var leases []*fencelock.Lease
		for i := range n {
			leases = append(leases, lock(t, l.Mutex(fmt.Sprint(i))))
			if i%100 == 0 {
				time.Sleep(10 * time.Millisecond) // they are not all of one moment
			}
		}
		var most atomic.Int64
		d.on("renew", func(c call) error {
			most.Store(max(most.Load(), int64(runtime.NumGoroutine())))
			if len(c.reqs) > 2000 {
				t.Errorf("got %d leases in one call, want at most 2,000", len(c.reqs))
			}
			return c.apply()
		})
		for range 3 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if got := runtime.NumGoroutine(); got > base+5 {
				t.Errorf("got %d goroutines with %d leases, %d without", got, n, base)
			}
		}
		if got := most.Load(); got > int64(base+10) {
			t.Errorf("got %d goroutines while renewing, %d without leases", got, base)
		}
		for _, le := range leases {
			if err := le.Err(); err != nil {
				t.Fatalf("%s: %v", le.Name(), err)
			}
		}
		calls, holds := d.count("renew"), d.about("renew")
		if holds < 3*n || holds/calls < 10 {
			t.Errorf("got %d renewals in %d calls, want at least %d, and 10 in a call", holds, calls, 3*n)
		}
	})
}

// Leases of different TTLs are each renewed at their own rate.
func TestScheduleIsFair(t *testing.T) {
	const brief, long = time.Minute, 2 * time.Hour // how long they are held
	tests := []struct{ ttl, held time.Duration }{
		{200 * time.Millisecond, brief},
		{time.Second, brief},
		{10 * time.Second, long},
		{time.Minute, long},
		{time.Hour, long},
	}
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		counts := map[string]int{}
		var mu sync.Mutex
		d.on("renew", func(c call) error {
			mu.Lock()
			defer mu.Unlock()
			for _, r := range c.reqs {
				counts[r.Name]++
			}
			return c.apply()
		})
		for _, tt := range tests {
			le := lock(t, l.Mutex(tt.ttl.String(), fencelock.WithTTL(tt.ttl)))
			time.AfterFunc(tt.held, func() {
				wantHeld(t, le.Name(), le)
				unlock(t, le)
			})
		}
		time.Sleep(long + time.Second)
		mu.Lock()
		defer mu.Unlock()
		for _, tt := range tests {
			least := int(tt.held / (tt.ttl / 3))
			if got := counts[tt.ttl.String()]; got < least-1 || got > least*3/2+2 {
				t.Errorf("TTL %v: got %d renewals in %v, want about %d", tt.ttl, got, tt.held, least)
			}
		}
	})
}

// A store that does not answer for one lease does not hold up the others.
func TestRenewalsDoNotWaitForEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("renew", about(func(name string) bool { return name == "bad" }, hang))
		bad := lock(t, l.Mutex("bad"))
		time.Sleep(2 * time.Second)
		var good []*fencelock.Lease
		for i := range 20 {
			good = append(good, lock(t, l.Mutex(fmt.Sprint(i))))
			time.Sleep(100 * time.Millisecond)
		}
		<-bad.Done()
		wantLost(t, "bad", bad, fencelock.Expired)
		time.Sleep(10 * ttl)
		for _, le := range good {
			wantHeld(t, le.Name(), le)
		}
	})
}

func TestBreakIsSeenWithinRevoked(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other())
		le := lock(t, a.Mutex("n"))
		if err := b.Break(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(a.Traits().Revoked)
		wantLost(t, "the holder", le, fencelock.Revoked)
	})
}

func TestBreakBySelfNeedsNoPush(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.deaf = true
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		if err := l.Break(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		wantLost(t, "the holder", le, fencelock.Revoked)
	})
}
