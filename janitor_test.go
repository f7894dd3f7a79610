package fencelock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

func TestUnknownOutcomeIsCleanedUp(t *testing.T) {
	for name, acquire := range map[string]func(fencelock.Mutex, context.Context) (*fencelock.Lease, error){
		"lock": fencelock.Mutex.Lock, "trylock": fencelock.Mutex.TryLock,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, other := open(t, d), open(t, d.other())
				d.on("acquire", loseReply)
				_, err := acquire(l.Mutex("n"), t.Context())
				wantErr(t, name, err, fencelock.ErrUnavailable)
				start := time.Now()
				lock(t, other.Mutex("n"))
				wantTook(t, "another's lock", start, 0, time.Second)
			})
		})
	}
}

func TestRefusedTryLeavesNothingToCleanUp(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d.other()), open(t, d)
		lock(t, a.Mutex("n"))
		for range 10 {
			_, err := b.Mutex("n").TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrLocked)
		}
		time.Sleep(time.Second)
		if got := d.count("abandon"); got != 0 {
			t.Errorf("got %d clean-ups after plain refusals, want none", got)
		}
	})
}

func TestCancelledLockLeavesTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b, c := open(t, d.other()), open(t, d), open(t, d.other())
		le := lock(t, a.Mutex("n"))
		ctx, cancel := context.WithCancel(t.Context())
		gone := background(ctx, b.Mutex("n"))
		next := background(t.Context(), c.Mutex("n"))
		cancel()
		wantErr(t, "lock", (<-gone).err, context.Canceled)
		time.Sleep(time.Second)
		info, err := a.Inspect(t.Context(), "n")
		if err != nil || info.Waiters != 1 {
			t.Errorf("waiters a second later: got %d (%v), want 1", info.Waiters, err)
		}
		unlock(t, le)
		if r := <-next; r.err != nil {
			t.Error(r.err)
		}
	})
}

func TestCleanUpIsTriedAgain(t *testing.T) {
	tests := map[string]struct {
		step  step
		most  time.Duration
		tries int
	}{
		"errors":           {first(5, refuse(errStore)), 2 * time.Second, 6},
		"lost replies":     {first(5, loseReply), 2 * time.Second, 6},
		"no answer":        {first(1, hang), 3 * time.Second, 2},
		"nothing was left": {refuse(fencelock.ErrLost), time.Second, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var seen record
				l := open(t, d, fencelock.WithObserver(&seen))
				d.on("acquire", first(1, loseReply))
				d.on("abandon", tt.step)
				_, err := l.Mutex("n").Lock(t.Context())
				wantErr(t, "lock", err, fencelock.ErrUnavailable)
				time.Sleep(tt.most)
				if got := len(seen.of(fencelock.CleanedUp)); got != 1 {
					t.Errorf("got %d events of clean-up after %v, want 1", got, tt.most)
				}
				time.Sleep(time.Minute)
				if got := d.count("abandon"); got != tt.tries {
					t.Errorf("got %d calls of Abandon, want %d", got, tt.tries)
				}
			})
		})
	}
}

// An answer that asking again will not change ends a clean-up, and is not told as one.
func TestCleanUpEndsWithAFinalAnswer(t *testing.T) {
	for answer, acquire := range map[error]step{
		fencelock.ErrInvalid: refuse(errStore), fencelock.ErrUnsupported: loseReply,
	} {
		bubble(t, func(t *testing.T, d *fake) {
			var seen record
			l := open(t, d, fencelock.WithObserver(&seen))
			d.on("acquire", acquire)
			d.on("abandon", refuse(answer))
			_, err := l.Mutex("n").Lock(t.Context())
			wantErr(t, "lock", err, fencelock.ErrUnavailable)
			time.Sleep(time.Minute)
			if got, told := d.count("abandon"), len(seen.of(fencelock.CleanedUp)); got != 1 || told != 0 {
				t.Errorf("%v: got %d tries and %d clean-ups told, want 1 and none", answer, got, told)
			}
		})
	}
}

// In some stores a lock lives as long as a session of the process: tries go on after its TTL, less
// often, until one succeeds.
func TestCleanUpGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", first(1, loseReply))
		d.on("abandon", refuse(errStore))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(ttl)
		during := d.count("abandon")
		time.Sleep(time.Minute)
		after := d.count("abandon")
		time.Sleep(time.Hour)
		if got := d.count("abandon") - after; during < 5 || got < 60 || got > 240 {
			t.Errorf("got %d tries within the TTL and %d in an hour after it, want some and 60 to 240", during, got)
		}
		d.on("abandon", nil)
		time.Sleep(time.Minute)
		done := d.count("abandon")
		time.Sleep(time.Hour)
		if got := d.count("abandon") - done; got != 0 {
			t.Errorf("got %d tries after one that succeeded, want none", got)
		}
	})
}

// A store that answers again is asked at once, whatever pause its silence has led to.
func TestCleanUpWhenTheStoreAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", first(1, loseReply))
		d.on("abandon", refuse(errStore))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		for range 3 {
			time.Sleep(20 * time.Minute)
			d.on("abandon", nil)
			done := d.count("abandon")
			le, err := l.Mutex("another").TryLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if d.count("abandon") == done {
				t.Error("the store has answered a call, and nothing was cleaned up for a second")
			}
			unlock(t, le)
			d.on("abandon", refuse(errStore))
			d.on("acquire", first(1, loseReply))
			_, err = l.Mutex("n").TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
	})
}

// Until the store should have let go by itself, 10 s after TTL and grace, a clean-up is tried every second or so.
func TestCleanUpIsTriedOftenUntilItIsDue(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithGrace(ttl))
		d.on("acquire", first(1, loseReply))
		d.on("abandon", refuse(errStore))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(2*ttl + 5*time.Second)
		before := d.count("abandon")
		time.Sleep(4 * time.Second)
		if got := d.count("abandon") - before; got < 2 {
			t.Errorf("got %d tries in 4 s, shortly before it is due, want 2 at least", got)
		}
		d.on("abandon", nil)
	})
}

// Clean-ups that failed together are not tried again at the same moment.
func TestCleanUpsDoNotMarchInStep(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var mu sync.Mutex
		at := map[time.Time]int{}
		l := open(t, d)
		d.on("acquire", loseReply)
		d.on("abandon", func(c call) error {
			mu.Lock()
			defer mu.Unlock()
			at[time.Now()]++
			return errStore
		})
		for i := range 50 {
			_, err := l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		synctest.Wait()
		mu.Lock()
		clear(at) // of the first tries
		mu.Unlock()
		time.Sleep(35 * time.Millisecond)
		d.on("abandon", nil)
		mu.Lock()
		defer mu.Unlock()
		if len(at) < 40 {
			t.Errorf("50 were tried again at %d different moments, want nearly as many", len(at))
		}
	})
}

// A store that answers other calls is asked for what it has not answered for long once a second, and for 64 at a time.
func TestCleanUpSparesAStoreThatAnswersOthers(t *testing.T) {
	for _, tt := range []struct{ unknown, answers, want, most int }{{1, 100, 10, 11}, {200, 1, 64, 64}} {
		bubble(t, func(t *testing.T, d *fake) {
			var seen record
			l := open(t, d, fencelock.WithObserver(&seen))
			d.on("acquire", loseReply)
			d.on("abandon", refuse(errStore))
			for i := range tt.unknown {
				_, err := l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
				wantErr(t, "trylock", err, fencelock.ErrUnavailable)
			}
			d.on("acquire", nil)
			time.Sleep(10 * time.Minute)
			before, got := d.count("abandon"), 0
			for range tt.answers {
				unlock(t, lock(t, l.Mutex("good")))
				synctest.Wait()
				got = d.count("abandon") - before
				time.Sleep(100 * time.Millisecond)
			}
			if got < tt.want || got > tt.most {
				t.Errorf("got %d tries at %d answers, want %d to %d", got, tt.answers, tt.want, tt.most)
			}
			d.on("abandon", nil)
			time.Sleep(time.Minute)
			names := map[string]bool{}
			for _, e := range seen.of(fencelock.CleanedUp) {
				names[e.Name] = true
			}
			if len(names) != tt.unknown {
				t.Errorf("got %d names cleaned up at the end, want %d", len(names), tt.unknown)
			}
		})
	}
}

// What the store answers at once is no sign that it answers what it was asked for in vain: that is tried no more often.
func TestCleanUpSparesAShardThatIsDown(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(24*time.Hour))
		d.on("acquire", loseReply)
		var bad atomic.Int64
		d.on("abandon", about(isBad, func(call) error { bad.Add(1); return errStore }))
		for i := range 1000 {
			_, err := l.Mutex(fmt.Sprint("bad", i)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		time.Sleep(time.Minute)
		bad.Store(0)
		for range 5000 {
			time.Sleep(2 * time.Millisecond)
			_, err := l.Mutex("good").TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		if got := bad.Load() / 10; got > 110 {
			t.Errorf("got %d tries a second of what fails, want at most 110", got)
		}
		d.on("abandon", nil)
	})
}

// What can never be cleaned up is bounded.
func TestCleanUpOfTooMany(t *testing.T) {
	const most, more = 10_000, 500
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", refuse(errStore))
		d.on("abandon", refuse(errStore))
		for i := range most + more {
			_, err := l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		time.Sleep(5 * time.Minute)
		d.on("abandon", nil)
		before := d.count("abandon")
		time.Sleep(5 * time.Minute)
		if got := d.count("abandon") - before; got != most {
			t.Errorf("got %d requests cleaned up long after their time, want %d", got, most)
		}
	})
}

// A request that is still under way finds that it was abandoned.
func TestLateRequestFindsATombstone(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		applied := make(chan error, 1)
		d.on("acquire", func(c call) error {
			copied := *c.reqs[0]
			go func() { // still in the network when its caller has given up
				time.Sleep(5 * time.Second)
				_, err := d.Caller.Acquire(context.Background(), &copied)
				applied <- err
			}()
			return hang(c)
		})
		_, err := l.Mutex("n").Lock(within(t, time.Second))
		wantErr(t, "lock", err, context.DeadlineExceeded)
		wantErr(t, "the late request", <-applied, fencelock.ErrLost)
		wantFree(t, l, "n")
	})
}

// Names whose clean-up fails (one shard of the store is down) must not hold up the others'.
func TestCleanUpOfOthersWhileManyFail(t *testing.T) {
	for name, s := range map[string]step{"errors": refuse(errStore), "no answer": hang} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				d.on("acquire", loseReply)
				d.on("abandon", about(func(name string) bool { return name != "good" }, s))
				for i := range 40 {
					_, err := l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
					wantErr(t, "trylock", err, fencelock.ErrUnavailable)
				}
				_, err := l.Mutex("good").TryLock(t.Context())
				wantErr(t, "trylock", err, fencelock.ErrUnavailable)
				time.Sleep(time.Second)
				wantFree(t, l, "good")
				d.on("abandon", nil)
			})
		})
	}
}

func TestManyCancelledLocks(t *testing.T) {
	const n = 500
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d.other()), open(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range n {
			lock(t, a.Mutex(fmt.Sprint(i)))
			wg.Go(func() {
				_, err := b.Mutex(fmt.Sprint(i)).Lock(ctx)
				wantErr(t, "lock", err, context.Canceled)
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		time.Sleep(time.Second)
		for info, err := range a.List(t.Context(), "") {
			if err != nil || info.Waiters != 0 {
				t.Fatalf("%q a second later: %d waiters (%v), want none", info.Name, info.Waiters, err)
			}
		}
		if got := d.count("abandon"); got != n {
			t.Errorf("got %d clean-ups, want %d", got, n)
		}
	})
}

func TestTenThousandUnknownOutcomes(t *testing.T) {
	const n = 10000
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", loseReply)
		d.on("abandon", slowBack(time.Millisecond))
		synctest.Wait()
		before := ours()
		for i := range n {
			_, err := l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		if got := ours() - before; got > 100 {
			t.Errorf("got %d more goroutines for the clean-up of %d locks, want a bounded number", got, n)
		}
		if got := d.peak("abandon"); got != 64 {
			t.Errorf("got %d calls at once, want 64", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := ours(); got > before {
			t.Errorf("got %d goroutines a second later, %d before", got, before)
		}
		for info := range l.List(t.Context(), "") {
			t.Fatalf("a second later %q is held", info.Name)
		}
	})
}

func TestLostLeaseIsFreed(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d, fencelock.WithManualRenew()), open(t, d.other())
		lock(t, a.Mutex("n"))
		start := time.Now()
		lock(t, b.Mutex("n"))
		wantTook(t, "the next grant", start, trusted, ttl)
		if got := d.count("abandon"); got != 1 {
			t.Errorf("got %d clean-ups, want 1", got)
		}
	})
}

// record is an Observer that keeps what it sees.
type record struct {
	mu     sync.Mutex
	events []fencelock.Event
}

func (r *record) Observe(_ context.Context, e fencelock.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// of returns the events of a kind.
func (r *record) of(k fencelock.EventKind) []fencelock.Event {
	synctest.Wait() // those that end no call come from a goroutine of the Locker
	r.mu.Lock()
	defer r.mu.Unlock()
	var es []fencelock.Event
	for _, e := range r.events {
		if e.Kind == k {
			es = append(es, e)
		}
	}
	return es
}

// kinds returns the kinds in order.
func (r *record) kinds() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	var ks []string
	for _, e := range r.events {
		ks = append(ks, e.Kind.String())
	}
	return strings.Join(ks, ", ")
}

func isBad(name string) bool { return strings.HasPrefix(name, "bad") }

// Hung clean-ups of other names, however many, do not hold up that of a cancelled Lock.
func TestCleanUpBesideHungOnes(t *testing.T) {
	for _, bad := range []int{64, 65, 300, 1000, 10_000} {
		for _, after := range []time.Duration{0, 5 * time.Second} {
			t.Run(fmt.Sprint(bad, " after ", after), func(t *testing.T) {
				bubble(t, func(t *testing.T, d *fake) {
					a, l := open(t, d.other()), open(t, d)
					held := lock(t, a.Mutex("good"))
					d.on("acquire", about(isBad, loseReply))
					d.on("abandon", about(isBad, hang))
					for i := range bad {
						_, err := l.Mutex(fmt.Sprint("bad", i)).TryLock(t.Context())
						wantErr(t, "trylock", err, fencelock.ErrUnavailable)
					}
					time.Sleep(after)
					ctx, cancel := context.WithCancel(t.Context())
					w := background(ctx, l.Mutex("good"))
					start := time.Now()
					cancel()
					wantErr(t, "lock", (<-w).err, context.Canceled)
					for {
						info, err := a.Inspect(t.Context(), "good")
						if err != nil {
							t.Fatal(err)
						}
						if info.Waiters == 0 {
							break
						}
						time.Sleep(10 * time.Millisecond)
					}
					wantTook(t, "until the waiter has left the queue", start, 0, time.Second)
					unlock(t, held)
					d.on("abandon", nil)
					if got := d.peak("abandon"); got > 1024 {
						t.Errorf("got %d calls under way, want at most 1024", got)
					}
				})
			})
		}
	}
}

// More hang than may be under way at once: the first try of each gives its place up after half a second.
func TestUnknownOutcomeBesideHungOnes(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", loseReply)
		d.on("abandon", about(isBad, hang))
		for i := range 1100 {
			_, err := l.Mutex(fmt.Sprint("bad", i)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		time.Sleep(400 * time.Millisecond)
		_, err := l.Mutex("good").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(time.Second)
		wantFree(t, l, "good")
		d.on("abandon", nil)
	})
}

// A second try, after one that failed, comes in time beside the hung clean-ups of others.
func TestCleanUpAgainBesideHungOnes(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", loseReply)
		d.on("abandon", about(isBad, hang))
		for i := range 300 {
			_, err := l.Mutex(fmt.Sprint("bad", i)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		time.Sleep(5 * time.Second)
		once := first(1, refuse(errStore))
		d.on("abandon", func(c call) error {
			if isBad(c.reqs[0].Name) {
				return hang(c)
			}
			return once(c)
		})
		_, err := l.Mutex("good").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(time.Second)
		wantFree(t, l, "good")
		d.on("abandon", nil)
	})
}

// A store that is down is not asked for all that it was ever asked for in vain, every second.
func TestCleanUpSparesAStoreThatIsDown(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(24*time.Hour))
		d.on("acquire", refuse(errStore))
		d.on("abandon", refuse(errStore))
		for i := range 10_500 { // more than are kept of what is overdue
			_, _ = l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
		}
		for _, wait := range []time.Duration{time.Minute, time.Hour} {
			time.Sleep(wait)
			before := d.count("abandon")
			time.Sleep(10 * time.Second)
			if got := (d.count("abandon") - before) / 10; got > 110 {
				t.Errorf("%v later: got %d calls of Abandon a second, want at most 110", wait, got)
			}
		}
		d.on("abandon", nil) // the store is back: each answer makes room for more
		before := d.count("abandon")
		time.Sleep(30 * time.Second)
		if got := d.count("abandon") - before; got < 10_400 {
			t.Errorf("got %d clean-ups within 30 s of the store's return, want nearly all", got)
		}
	})
}

// What is done counts as overdue no more: there is room for as many after each outage, which ends just when they
// become overdue, or long after that.
func TestCleanUpAfterManyOutages(t *testing.T) {
	for _, outage := range []time.Duration{11*time.Second - time.Millisecond, 2 * time.Minute} {
		t.Run(outage.String(), func(t *testing.T) { cleanUpAfterMany(t, outage) })
	}
}

func cleanUpAfterMany(t *testing.T, outage time.Duration) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(time.Second))
		for range 5 {
			d.on("acquire", loseReply)
			d.on("abandon", refuse(errStore))
			for i := range 3000 {
				_, _ = l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
			}
			time.Sleep(outage)
			d.on("acquire", nil)
			d.on("abandon", nil)
			time.Sleep(5 * time.Minute)
		}
		d.on("acquire", first(1, loseReply))
		d.on("abandon", refuse(errStore))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(time.Hour)
		d.on("abandon", nil)
		time.Sleep(time.Minute)
		before := d.count("abandon")
		time.Sleep(time.Hour)
		if got := d.count("abandon") - before; got != 0 {
			t.Errorf("got %d tries an hour after the store's return, want none", got)
		}
		d.on("abandon", refuse(errStore))
		d.on("acquire", first(1, loseReply))
		_, err = l.Mutex("m").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(time.Minute)
		before = d.count("abandon")
		time.Sleep(time.Hour)
		if got := d.count("abandon") - before; got < 60 {
			t.Errorf("got %d tries in an hour of one that is overdue, want them to go on", got)
		}
		d.on("abandon", nil)
		time.Sleep(time.Minute)
	})
}

// Close does not use up its time on a store that refuses at once.
func TestCloseWithAStoreThatRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		lock(t, l.Mutex("held"))
		for _, op := range []string{"acquire", "abandon", "release"} {
			d.on(op, refuse(errStore))
		}
		for i := range 300 {
			_, err := l.Mutex(fmt.Sprint(i)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		}
		time.Sleep(time.Minute)
		start := time.Now()
		wantErr(t, "close", l.Close(), errStore)
		wantTook(t, "close", start, 0, time.Second)
	})
}

// Close tries what has failed for long a few times more, at once.
func TestCloseTriesAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		d.on("acquire", loseReply)
		d.on("abandon", refuse(errStore))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(2 * time.Minute)
		before := d.count("abandon")
		d.on("abandon", first(3, refuse(errStore)))
		start := time.Now()
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wantTook(t, "close", start, 0, time.Second)
		if got := d.count("abandon") - before; got != 4 {
			t.Errorf("got %d tries, want 4, of which the last succeeds", got)
		}
	})
}

// Close ends in time, also where the store fails just before its time is over, and what failed pauses yet.
func TestCloseDoesNotWaitForAPause(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		d.on("acquire", loseReply)
		d.on("abandon", refuse(errStore))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(time.Minute)
		start, tries := time.Now(), 0
		d.on("abandon", func(call) error { // the fourth try is followed by a pause of 80 ms at least
			tries++
			ends := map[int]time.Duration{1: 1500, 2: 3000, 3: 4500, 4: 4790}[tries] * time.Millisecond
			time.Sleep(ends - time.Since(start))
			return errStore
		})
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wantTook(t, "close", start, 4790*time.Millisecond, 4810*time.Millisecond)
		if tries != 4 {
			t.Errorf("got %d tries, want 4", tries)
		}
	})
}

// Releases that hang, however many, do not keep Close from the others.
func TestCloseBesideHungReleases(t *testing.T) {
	for _, bad := range []int{64, 65, 300, 5000} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, other := openLoose(t, d), open(t, d.other())
				var good []string
				for i := range bad {
					lock(t, l.Mutex(fmt.Sprint("bad", i)))
					if i%50 == 0 {
						good = append(good, fmt.Sprint("good", i))
						lock(t, l.Mutex(good[len(good)-1]))
					}
				}
				good = append(good, "good")
				lock(t, l.Mutex("good"))
				d.on("release", func(c call) error {
					if isBad(c.reqs[0].Name) {
						return hang(c)
					}
					return slowThere(time.Millisecond)(c) // as a store behind a network, which heeds the ctx
				})
				d.on("abandon", slowThere(time.Millisecond))
				start := time.Now()
				wantErr(t, "close", l.Close(), fencelock.ErrUnavailable)
				wantTook(t, "close", start, 0, 5*time.Second)
				wantFree(t, other, good...)
			})
		})
	}
}

// The store has the lock, or a waiter, and refuses to let it go for want of rights, which come back.
func TestRefusedCleanUpOfWhatIsThereGoesOn(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, l *fencelock.Locker, d *fake){
		"lost": func(t *testing.T, l *fencelock.Locker, d *fake) {
			le := lock(t, l.Mutex("n"))
			d.on("release", refuse(fencelock.ErrInvalid))
			wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrInvalid)
			<-le.Done()
		},
		"granted too late": func(t *testing.T, l *fencelock.Locker, d *fake) {
			d.on("acquire", slowBack(short))
			_, err := l.Mutex("n", fencelock.WithTTL(short)).TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		},
		"waited": func(t *testing.T, l *fencelock.Locker, d *fake) {
			lock(t, open(t, d.other()).Mutex("n"))
			_, err := l.Mutex("n").Lock(within(t, time.Second))
			wantErr(t, "lock", err, fencelock.ErrLocked)
		},
		"answered in vain": func(t *testing.T, l *fencelock.Locker, d *fake) {
			d.on("acquire", loseReply)
			_, err := l.Mutex("n").TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var seen record
				l := open(t, d, fencelock.WithObserver(&seen))
				d.on("abandon", first(3, refuse(fencelock.ErrInvalid)))
				end(t, l, d)
				time.Sleep(time.Minute)
				if got, told := d.count("abandon"), len(seen.of(fencelock.CleanedUp)); got != 4 || told != 1 {
					t.Errorf("got %d tries and %d clean-ups told, want 4 and 1", got, told)
				}
			})
		})
	}
}

// A store that refuses it is not asked more often for answering others.
func TestRefusedCleanUpIsNotTriedWhenTheStoreAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("abandon", refuse(fencelock.ErrInvalid))
		if err := d.store.Break(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		wantLost(t, "after Break", le, fencelock.Revoked)
		time.Sleep(time.Minute) // its time is over
		before := d.count("abandon")
		for range 100 {
			unlock(t, lock(t, l.Mutex("other")))
			time.Sleep(time.Second)
		}
		if got := d.count("abandon") - before; got < 2 || got > 8 {
			t.Errorf("got %d tries in 100 s, want one in half a minute or so", got)
		}
	})
}
