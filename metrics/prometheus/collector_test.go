package prometheus_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/metrics/internal/measure"
	"github.com/fencelock/fencelock/metrics/prometheus"
)

func TestALeaseInNumbers(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, l *fencelock.Locker, c *prometheus.Collector) {
		m := l.Mutex("jobs/nightly")
		le := lock(t, m)
		done := make(chan *fencelock.Lease)
		go func() { done <- lock(t, m) }()
		go func() { done <- lock(t, m) }()
		synctest.Wait()
		want(t, "one holds, two wait", c, numbers{
			"held{memory,jobs}": 1, "waiting{memory,jobs}": 2, "wait_seconds_count{memory,jobs}": 1,
		})
		time.Sleep(2 * time.Second)
		unlock(t, le)
		le = <-done
		time.Sleep(time.Second)
		unlock(t, le)
		le = <-done
		if err := le.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		want(t, "the third holds", c, numbers{
			"held{memory,jobs}": 1, "wait_seconds_count{memory,jobs}": 3, "wait_seconds_sum{memory,jobs}": 5,
			"hold_seconds_count{memory,jobs}": 2, "hold_seconds_sum{memory,jobs}": 3,
			"renewals_total{memory,jobs,ok}": 1,
		})
		inner, err := l.Mutex("jobs/nightly", fencelock.WithReentrancy()).Lock(leaseContext(t, le))
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, le)
		unlock(t, inner)
		want(t, "re-entry is no second hold", c, numbers{
			"wait_seconds_count{memory,jobs}": 3, "wait_seconds_sum{memory,jobs}": 5,
			"hold_seconds_count{memory,jobs}": 3, "hold_seconds_sum{memory,jobs}": 3,
			"renewals_total{memory,jobs,ok}": 1,
		})
	})
}

// Readers and permits are apart from who holds alone.
func TestModes(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, l *fencelock.Locker, c *prometheus.Collector) {
		m, s := l.RWMutex("jobs/report"), l.Semaphore("jobs/seats", 3)
		reader, err := m.RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		permit, err := s.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.TryLock(t.Context()); !errors.Is(err, fencelock.ErrLocked) {
			t.Errorf("got %v, want %v", err, fencelock.ErrLocked)
		}
		want(t, "a reader and a permit", c, numbers{
			"held{memory,jobs,reader}": 1, "held{memory,jobs,permit}": 1,
			"wait_seconds_count{memory,jobs,reader}": 1, "wait_seconds_count{memory,jobs,permit}": 1,
			"failures_total{memory,jobs,locked}": 1,
		})
		unlock(t, reader)
		unlock(t, permit)
		got := scrape(t, c)
		if got["held{memory,jobs,reader}"] != 0 || got["hold_seconds_count{memory,jobs,permit}"] != 1 {
			t.Errorf("got %v, want nothing held", got)
		}
	})
}

func leaseContext(t *testing.T, le *fencelock.Lease) context.Context {
	ctx, cancel := le.Context(t.Context())
	t.Cleanup(cancel)
	return ctx
}

func TestFailuresByReason(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, l *fencelock.Locker, c *prometheus.Collector) {
		le := lock(t, l.Mutex("a/1"))
		fails := func(name string, call func(m fencelock.Mutex) (*fencelock.Lease, error), want error) {
			t.Helper()
			if _, err := call(l.Mutex(name)); !errors.Is(err, want) {
				t.Errorf("%q: got error %v, want %v", name, err, want)
			}
		}
		locked := func(ctx context.Context) func(fencelock.Mutex) (*fencelock.Lease, error) {
			return func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.Lock(ctx) }
		}
		tried := func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.TryLock(t.Context()) }
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		cancelled, cancelIt := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancelIt)
		fails("a/1", tried, fencelock.ErrLocked)
		fails("a/1", locked(leaseContext(t, le)), fencelock.ErrDeadlock)
		fails("a/1", locked(short), context.DeadlineExceeded)
		fails("a/1", locked(cancelled), context.Canceled)
		fails("a\x00/1", locked(t.Context()), fencelock.ErrInvalid)
		fails("a/\xff", tried, fencelock.ErrInvalid)
		unlock(t, le)
		if err := le.Unlock(t.Context()); !errors.Is(err, fencelock.ErrReleased) {
			t.Errorf("got %v, want released", err)
		}
		s.down.Store(true)
		fails("a/2", locked(t.Context()), fencelock.ErrUnavailable)
		s.down.Store(false)
		time.Sleep(time.Minute)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		fails("a/1", locked(t.Context()), fencelock.ErrClosed)
		got := scrape(t, c)
		cleanups := got["cleanups_total{memory,a}"]
		want(t, "all failures", c, numbers{
			"failures_total{memory,a,locked}": 1, "failures_total{memory,a,deadlock}": 1,
			"failures_total{memory,a,timeout}":  1,
			"failures_total{memory,a,canceled}": 1, "failures_total{memory,other,invalid}": 2,
			"failures_total{memory,a,unavailable}": 1, "failures_total{memory,a,closed}": 1,
			// The grant, and the waits of 2 s and of 3 s more, and the one that the store did not answer.
			"wait_seconds_count{memory,a}": 4, "wait_seconds_sum{memory,a}": 5,
			"hold_seconds_count{memory,a}": 1, "hold_seconds_sum{memory,a}": 5,
			"unlock_failures_total{memory,a,released}": 1, "cleanups_total{memory,a}": cleanups,
			"renewals_total{memory,a,ok}": 1,
		})
		if cleanups < 3 {
			t.Errorf("got %v cleanups, want one for each of three acquisitions that did not end in an answer", cleanups)
		}
	})
}

func TestLossesAndTheirMargin(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, l *fencelock.Locker, c *prometheus.Collector) {
		expired := lock(t, l.Mutex("expired/1", fencelock.WithManualRenew()))
		bounded := lock(t, l.Mutex("bounded/1", fencelock.WithMaxHold(time.Second)))
		broken := lock(t, l.Mutex("broken/1"))
		ended := error(&fencelock.LostError{Reason: fencelock.SessionLost})
		s.lose.Store(&ended)
		session := lock(t, l.Mutex("session/1"))
		if err := l.Break(t.Context(), "broken/1"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		for _, le := range []*fencelock.Lease{expired, bounded, broken, session} {
			if err := le.Unlock(t.Context()); !errors.Is(err, fencelock.ErrLost) {
				t.Errorf("%s: got %v, want lost", le.Name(), err)
			}
		}
		const trusted = 9.8 // the TTL of 10 s less 2 %
		want(t, "losses", c, numbers{
			"lost_total{memory,expired,expired}": 1, "loss_margin_seconds_count{memory,expired}": 1,
			"loss_margin_seconds_sum{memory,expired}":   10 - trusted,
			"lost_total{memory,bounded,max_hold}":       1,
			"loss_margin_seconds_count{memory,bounded}": 1,
			"loss_margin_seconds_sum{memory,bounded}":   9,
			"lost_total{memory,broken,revoked}":         1, "lost_total{memory,session,session_lost}": 1,
			"hold_seconds_count{memory,expired}": 1, "hold_seconds_sum{memory,expired}": trusted,
			"hold_seconds_count{memory,bounded}": 1, "hold_seconds_sum{memory,bounded}": 1,
			"hold_seconds_count{memory,broken}": 1, "hold_seconds_count{memory,session}": 1,
			"hold_seconds_sum{memory,session}":   1,
			"wait_seconds_count{memory,expired}": 1, "wait_seconds_count{memory,bounded}": 1,
			"wait_seconds_count{memory,broken}": 1, "wait_seconds_count{memory,session}": 1,
			"unlock_failures_total{memory,expired,lost}": 1, "unlock_failures_total{memory,bounded,lost}": 1,
			"unlock_failures_total{memory,broken,lost}": 1, "unlock_failures_total{memory,session,lost}": 1,
			"cleanups_total{memory,expired}": 1, "cleanups_total{memory,bounded}": 1,
			"cleanups_total{memory,broken}": 1, "cleanups_total{memory,session}": 1,
		})
	})
}

// A process that was stopped hears of the loss too late: it is counted by itself.
func TestALateLoss(t *testing.T) {
	c := prometheus.New(nil)
	lost := fencelock.Event{
		Kind: fencelock.Lost, Backend: "redis", Name: "a/1", Reason: fencelock.Expired,
		Margin: time.Millisecond,
	}
	c.Observe(t.Context(), lost)
	lost.Margin = -2 * time.Second
	c.Observe(t.Context(), lost)
	got := scrape(t, c)
	if got["lost_late_total{redis,a}"] != 1 || got["lost_total{redis,a,expired}"] != 2 {
		t.Errorf("got %v, want two losses, one of them late", got)
	}
}

func TestRenewalsThatFail(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, l *fencelock.Locker, c *prometheus.Collector) {
		le := lock(t, l.Mutex("a/1"))
		s.down.Store(true)
		time.Sleep(5 * time.Second)
		if err := le.Unlock(t.Context()); !errors.Is(err, fencelock.ErrUnavailable) {
			t.Errorf("got %v, want unavailable", err)
		}
		got := scrape(t, c)
		if got["renewals_total{memory,a,failed}"] < 1 || got["renewals_total{memory,a,ok}"] != 0 ||
			got["held{memory,a}"] != 1 ||
			got["unlock_failures_total{memory,a,unavailable}"] != 1 {
			t.Errorf("got %v, want renewals that failed, and a lease that is held", got)
		}
		s.down.Store(false)
		unlock(t, le)
		// Unlock may overtake a renewal: that is no failure.
		c.Observe(t.Context(), fencelock.Event{
			Kind: fencelock.RenewFailed, Backend: "memory", Name: "a/1", Err: fencelock.ErrReleased,
		})
		if after := scrape(t, c); after["held{memory,a}"] != 0 ||
			after["renewals_total{memory,a,failed}"] != got["renewals_total{memory,a,failed}"] {
			t.Errorf("got %v, want nothing held and no more renewals that failed", after)
		}
	})
}

func TestCloseCountsLeasesAndWaitersDown(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, l *fencelock.Locker, c *prometheus.Collector) {
		for i := range 3 {
			lock(t, l.Mutex(fmt.Sprint("a/", i)))
		}
		failed := make(chan error)
		go func() {
			_, err := l.Mutex("a/0").Lock(context.Background())
			failed <- err
		}()
		synctest.Wait()
		if got := scrape(t, c); got["held{memory,a}"] != 3 || got["waiting{memory,a}"] != 1 {
			t.Errorf("got %v, want three held and one waiting", got)
		}
		s.down.Store(true)
		if err := l.Close(); !errors.Is(err, fencelock.ErrUnavailable) {
			t.Errorf("close: got %v, want unavailable", err)
		}
		if err := <-failed; !errors.Is(err, fencelock.ErrClosed) {
			t.Errorf("lock: got %v, want closed", err)
		}
		got := scrape(t, c)
		if got["held{memory,a}"] != 0 || got["waiting{memory,a}"] != 0 ||
			got["hold_seconds_count{memory,a}"] != 3 || got["lost_total{memory,a,revoked}"] != 3 {
			t.Errorf("got %v, want nothing held or waiting, and three holds that ended without the store's word", got)
		}
	})
}

// increase() sees the first loss of a resource only if the counter was there before.
func TestCountersAreThereBeforeTheyCount(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, l *fencelock.Locker, c *prometheus.Collector) {
		unlock(t, lock(t, l.Mutex("a/1")))
		got := scrape(t, c)
		var names []string
		for _, r := range measure.Losses {
			names = append(names, "lost_total{memory,a,"+r+"}")
		}
		for _, r := range measure.Failures {
			names = append(names, "failures_total{memory,a,"+r+"}")
		}
		for _, r := range measure.UnlockFailures {
			names = append(names, "unlock_failures_total{memory,a,"+r+"}")
		}
		names = append(names, "renewals_total{memory,a,ok}", "renewals_total{memory,a,failed}",
			"lost_late_total{memory,a}",
			"cleanups_total{memory,a}", "clock_jumps_total{forward}", "clock_jumps_total{backward}")
		for _, n := range names {
			if v, ok := got[n]; !ok || v != 0 {
				t.Errorf("%s: got %v (there: %v), want 0", n, v, ok)
			}
		}
	})
}

func TestManyNamesAreNotManySeries(t *testing.T) {
	const names = 100_000 // a thousand times as many as there may be resources
	tests := map[string]struct {
		options *prometheus.Options
		name    func(i int) string
		most    int // resources
	}{
		"of one group":              {nil, func(i int) string { return fmt.Sprint("users/", i) }, 1},
		"without a slash":           {nil, func(i int) string { return fmt.Sprint("user-", i) }, 1},
		"the number before a slash": {nil, func(i int) string { return fmt.Sprint(i, "/lock") }, 101},
		"a function that groups not": {
			&prometheus.Options{Resource: func(n string) string { return n }, MaxResources: 7},
			func(i int) string { return fmt.Sprint(i) }, 8,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := prometheus.New(tt.options)
			for i := range names {
				c.Observe(context.Background(),
					fencelock.Event{Kind: fencelock.Acquired, Backend: "redis", Name: tt.name(i)})
			}
			got, sum := 0, 0.0
			for k, v := range scrape(t, c) {
				if len(k) > 5 && k[:5] == "held{" {
					got, sum = got+1, sum+v
				}
			}
			if got > tt.most || sum != names {
				t.Errorf("got %d resources with %v leases, want at most %d with all %d", got, sum, tt.most, names)
			}
		})
	}
}

// A resource costs what the documents say.
func TestSeriesOfAResource(t *testing.T) {
	c := prometheus.New(nil)
	count := func() int {
		r := client.NewRegistry()
		r.MustRegister(c)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range families {
			for _, m := range f.GetMetric() {
				n++
				if h := m.GetHistogram(); h != nil {
					n += len(h.GetBucket()) + 2 // +Inf, the sum and the count
				}
			}
		}
		return n
	}
	before := count()
	c.Observe(t.Context(), fencelock.Event{Kind: fencelock.Acquired, Backend: "redis", Name: "a/1"})
	if got := count() - before; got < 60 || got > 70 {
		t.Errorf("got %d series, want about 70", got)
	}
}

func TestClassicAndNativeHistograms(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, l *fencelock.Locker, c *prometheus.Collector) {
		<-lock(t, l.Mutex("a/1", fencelock.WithManualRenew())).Done()
		synctest.Wait() // the event comes after Done
		r := client.NewRegistry()
		r.MustRegister(c)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, f := range families {
			h := f.GetMetric()[0].GetHistogram()
			if h == nil {
				continue
			}
			seen[f.GetName()] = true
			if h.Schema == nil || h.ZeroThreshold == nil || h.GetSampleCount() != 1 {
				t.Errorf("%s: got %v, want one sample in a native histogram", f.GetName(), h)
			}
			if f.GetName() != "distributed_lock_wait_seconds" {
				continue
			}
			var bounds []float64
			for _, b := range h.GetBucket() {
				bounds = append(bounds, b.GetUpperBound())
			}
			if got, want := fmt.Sprint(bounds), "[0.001 0.005 0.01 0.05 0.1 0.5 1 5]"; got != want {
				t.Errorf("the buckets of the wait: got %s, want %s", got, want)
			}
		}
		if len(seen) != 3 {
			t.Errorf("got histograms %v, want wait, hold and margin", seen)
		}
	})
}

func TestClockJumpsAreSeenAtTheScrape(t *testing.T) {
	c := prometheus.New(nil)
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := measure.Reading{Wall: start}
	c.SetClock(func() measure.Reading { return now })
	for _, step := range []struct {
		what              string
		wall, run         time.Duration
		forward, backward float64
	}{
		{"nothing", 15 * time.Second, 15 * time.Second, 0, 0},
		{"slewing", 15*time.Second + 7*time.Millisecond, 15 * time.Second, 0, 0},
		{"an hour forward", time.Hour + 15*time.Second, 15 * time.Second, 1, 0},
		{"nothing again", 15 * time.Second, 15 * time.Second, 1, 0},
		{"an hour back", 15*time.Second - time.Hour, 15 * time.Second, 1, 1},
		{"half a second back", -500 * time.Millisecond, 0, 1, 2},
		{"a long time without a scrape", 100 * time.Hour, 100 * time.Hour, 1, 2},
	} {
		now.Wall, now.Run = now.Wall.Add(step.wall), now.Run+step.run
		got := scrape(t, c)
		if got["clock_jumps_total{forward}"] != step.forward || got["clock_jumps_total{backward}"] != step.backward {
			t.Errorf("%s: got %v, want %v forward and %v backward", step.what, got, step.forward, step.backward)
		}
	}
}

func TestOneCollectorForManyLockers(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, l *fencelock.Locker, c *prometheus.Collector) {
		second, err := s.memory.Client("second:")
		if err != nil {
			t.Fatal(err)
		}
		l2, err := fencelock.New(second, fencelock.WithObserver(c))
		if err != nil {
			t.Fatal(err)
		}
		lock(t, l.Mutex("a/1"))
		lock(t, l2.Mutex("a/1"))
		if got := scrape(t, c)["held{memory,a}"]; got != 2 {
			t.Errorf("got %v held, want 2", got)
		}
		if err := l2.Close(); err != nil {
			t.Error(err)
		}
		if got := scrape(t, c)["held{memory,a}"]; got != 1 {
			t.Errorf("got %v held after one was closed, want 1", got)
		}
	})
}
