package fencelock_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
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

func TestCheckerIsUsed(t *testing.T) {
	for name, opts := range map[string][]fencelock.Option{"renewed": nil, "manual": {fencelock.WithManualRenew()}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				d.deaf = true
				d.traits = func(tr *backend.Traits) { tr.Revoked = time.Second }
				a, b := open(t, checking{d}, append(opts, fencelock.WithTTL(time.Hour))...), open(t, d.other())
				le := lock(t, a.Mutex("n"))
				for range 50 {
					time.Sleep(777 * time.Millisecond)
				}
				wantHeld(t, "while it is ours", le)
				if err := b.Break(t.Context(), "n"); err != nil {
					t.Fatal(err)
				}
				next := lock(t, b.Mutex("n"))
				start := time.Now()
				<-le.Done()
				wantTook(t, "the holder was told", start, 0, a.Traits().Revoked)
				wantLost(t, "the holder", le, fencelock.Revoked)
				wantHeld(t, "the next holder", next)
				checks := d.count("check")
				time.Sleep(time.Minute)
				if got := d.count("check"); got != checks {
					t.Errorf("got %d checks of a lost lease", got-checks)
				}
			})
		})
	}
}

func TestChecksDoNotPostponeRenewals(t *testing.T) {
	for name, s := range map[string]step{
		"prompt": pass, "slow": slowBack(400 * time.Millisecond), "failing": refuse(errStore),
		"hanging": hang,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				d.traits = func(tr *backend.Traits) { tr.Revoked = time.Second }
				l := open(t, checking{d})
				le := lock(t, l.Mutex("n"))
				d.on("check", s)
				time.Sleep(10 * time.Minute)
				wantHeld(t, "after ten minutes of checks", le)
				if d.count("check") == 0 {
					t.Error("there were no checks")
				}
			})
		})
	}
}

func TestChecksAreBatched(t *testing.T) {
	const n = 500
	bubble(t, func(t *testing.T, d *fake) {
		d.traits = func(tr *backend.Traits) { tr.Revoked = time.Second }
		l := open(t, checking{d}, fencelock.WithTTL(time.Minute))
		for i := range n {
			lock(t, l.Mutex(fmt.Sprint(i)))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		calls, holds := d.count("check"), d.about("check")
		if holds < 10*n || holds/calls < 10 {
			t.Errorf("got %d checks in %d calls, want at least %d, and 10 in a call", holds, calls, 10*n)
		}
	})
}

func TestNoChecksWithoutNeed(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.traits = func(tr *backend.Traits) { tr.Revoked = 0 }
		l := open(t, checking{d})
		lock(t, l.Mutex("n"))
		time.Sleep(10 * ttl)
		if got := d.count("check"); got != 0 {
			t.Errorf("got %d checks of a backend that promises nothing about Break", got)
		}
	})
}

// A check's "lost" that comes while Unlock is under way leaves the answer to Unlock.
func TestUnlockOvertakesACheck(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.traits = func(tr *backend.Traits) { tr.Revoked = time.Second }
		l := open(t, checking{d})
		le := lock(t, l.Mutex("n"))
		d.on("check", func(call) error {
			time.Sleep(2 * time.Second)
			return context.DeadlineExceeded
		})
		time.Sleep(time.Second) // a check is in flight
		unlock(t, le)
		time.Sleep(ttl)
		wantErr(t, "err", le.Err(), fencelock.ErrReleased)
	})
}

// A grant says that the lock is ours, whenever its expiry was set: the first look comes a while after it.
func TestAGrantIsNotCheckedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, checking{d}, fencelock.WithTTL(time.Minute))
		long := backend.Now()
		time.Sleep(10 * time.Second)
		d.grant = func(g *backend.Grant) { g.Asked = long } // under a session that was confirmed then
		lock(t, l.Mutex("n"))
		time.Sleep(50 * time.Millisecond)
		if got := d.count("check"); got != 0 {
			t.Errorf("got %d looks right after the grant, want none", got)
		}
		time.Sleep(5 * time.Second)
		if got := d.count("check"); got == 0 {
			t.Error("got no look within 5 s, want some")
		}
	})
}

// answers is a Checker that finds every hold its own, and allocates nothing.
type answers struct {
	*fake
	errs  []error
	calls atomic.Int64
	most  atomic.Int64 // holds of one call
	wants int          // at most
}

func (d *answers) Calls() backend.Calls { return backend.Calls{Most: 1, Looks: d.wants} }

func (d *answers) Tells() bool { return false }

func (d *answers) Check(_ context.Context, hs []*core.Hold) []error {
	d.calls.Add(1)
	d.most.Store(max(d.most.Load(), int64(len(hs)))) // of one look after the other
	return d.errs[:len(hs)]
}

// One look is about 2,000 holds at most, or about as many as the driver wants.
func TestLooksAreAboutSoMany(t *testing.T) {
	const n = 3100
	for wants, want := range map[int]int64{0: 2000, 3000: 3000} {
		bubble(t, func(t *testing.T, d *fake) {
			d.traits = func(tr *backend.Traits) { tr.Revoked = time.Second }
			looked := &answers{fake: d, errs: make([]error, n), wants: wants}
			l := open(t, looked, fencelock.WithTTL(time.Hour))
			for i := range n {
				lock(t, l.Mutex(fmt.Sprint(i)))
			}
			time.Sleep(10 * time.Second)
			if got := looked.most.Load(); got != want {
				t.Errorf("got %d holds in one look of a driver that wants %d, want %d", got, wants, want)
			}
		})
	}
}

func TestLooksAllocateNothing(t *testing.T) {
	const n = 200
	bubble(t, func(t *testing.T, d *fake) {
		d.traits = func(tr *backend.Traits) { tr.Revoked = time.Second }
		looked := &answers{fake: d, errs: make([]error, n)}
		l := open(t, looked, fencelock.WithTTL(time.Hour))
		for i := range n {
			lock(t, l.Mutex(fmt.Sprint(i)))
		}
		time.Sleep(10 * time.Second)
		var before, after runtime.MemStats
		calls := looked.calls.Load()
		runtime.ReadMemStats(&before)
		time.Sleep(time.Minute)
		synctest.Wait()
		runtime.ReadMemStats(&after)
		calls = looked.calls.Load() - calls
		if calls < 100 || calls > 120 {
			t.Errorf("got %d looks in a minute, want one every 0.54 to 0.6 s", calls)
		}
		if got := float64(after.Mallocs-before.Mallocs) / float64(calls); got > 40 {
			t.Errorf("got %.0f allocations a look at %d holds, want a handful", got, n)
		}
	})
}

// A look that gets no answer holds up neither the renewal of its own holds for long, nor the looks at others.
func TestLooksAtOthersGoOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.traits = func(tr *backend.Traits) { tr.Revoked = time.Second }
		d.deaf = true
		d.on("check", about(func(name string) bool { return name == "bad" }, hang))
		l, other := open(t, checking{d}, fencelock.WithTTL(time.Minute)), open(t, d.other())
		lock(t, l.Mutex("bad"))
		time.Sleep(time.Second) // it is being looked at for the next 5 s
		good := lock(t, l.Mutex("good"))
		if err := other.Break(t.Context(), "good"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		wantLost(t, "beside one without an answer", good, fencelock.Revoked)
	})
}

// Each of several drivers is asked about its own holds, as often as it promises.
func TestLooksOfSeveralDrivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quick, slow := newFake(t), newFake(t)
		quick.traits = func(tr *backend.Traits) { tr.Revoked = time.Second }
		slow.traits = func(tr *backend.Traits) { tr.Revoked = 10 * time.Second }
		l := open(t,
			fork("qs", backend.Route{Driver: checking{quick}},
				backend.Route{Driver: checking{slow}}), fencelock.WithTTL(time.Hour))
		for i := range 10 {
			lock(t, l.Mutex(fmt.Sprint("q", i)))
			lock(t, l.Mutex(fmt.Sprint("s", i)))
		}
		time.Sleep(10 * time.Minute)
		for _, tt := range []struct {
			name        string
			of          *fake
			least, most int
		}{{"quick", quick, 1000, 1120}, {"slow", slow, 100, 112}} {
			calls, holds := tt.of.count("check"), tt.of.about("check")
			if calls < tt.least || calls > tt.most || holds != 10*calls {
				t.Errorf("%s: got %d looks at %d holds, want %d to %d at 10 each",
					tt.name, calls, holds, tt.least, tt.most)
			}
		}
	})
}
