package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/internal/core"
)

// order collects who got the lock.
type order struct {
	mu  sync.Mutex
	got []int
}

func (o *order) add(i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.got = append(o.got, i)
}

func TestLocalQueueIsFirstComeFirstServed(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		var got order
		var want []int
		var wg sync.WaitGroup
		for i := range 50 {
			want = append(want, i)
			wg.Go(func() {
				le, err := l.Mutex("n").Lock(t.Context()) // a Mutex value of its own
				if err != nil {
					t.Error(err)
					return
				}
				got.add(i)
				unlock(t, le)
			})
			synctest.Wait()
		}
		unlock(t, le)
		wg.Wait()
		if !slices.Equal(got.got, want) {
			t.Errorf("got the order %v, want first come first served", got.got)
		}
	})
}

func TestManyWaitersAreOneAtTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		held := lock(t, other.Mutex("n"))
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() { unlock(t, lock(t, l.Mutex("n"))) })
		}
		synctest.Wait()
		info, err := other.Inspect(t.Context(), "n")
		if err != nil || info.Waiters != 1 {
			t.Errorf("waiters at the store: got %d (%v), want 1", info.Waiters, err)
		}
		if got := d.count("acquire"); got != 1 {
			t.Errorf("got %d calls of Acquire, want 1", got)
		}
		unlock(t, held)
		wg.Wait()
		if got := d.peak("acquire"); got != 1 {
			t.Errorf("got %d calls of Acquire at once, want 1", got)
		}
		wantFree(t, l, "n")
	})
}

func TestWaitersOfOtherNamesDoNotWait(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		lock(t, l.Mutex("n"))
		ctx, cancel := context.WithCancel(t.Context())
		waits := background(ctx, l.Mutex("n"))
		start := time.Now()
		for i := range 10 {
			lock(t, l.Mutex(fmt.Sprint(i)))
		}
		wantTook(t, "ten other names", start, 0, 0)
		cancel()
		wantErr(t, "the wait", (<-waits).err, context.Canceled)
	})
}

func TestTryLockNeverOvertakes(t *testing.T) {
	tests := map[string]string{"a waiter in this process": "local", "a waiter of another process": "remote"}
	for name, where := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				a, b := open(t, d), open(t, d.other())
				waits := map[string]*fencelock.Locker{"local": a, "remote": b}[where]
				le := lock(t, a.Mutex("n"))
				d.on("acquire", slowBack(time.Second))
				next := background(t.Context(), waits.Mutex("n"))
				unlock(t, le)
				_, err := a.Mutex("n").TryLock(t.Context())
				wantErr(t, "trylock while another waits", err, fencelock.ErrLocked)
				r := <-next
				if r.err != nil {
					t.Errorf("the waiter: %v", r.err)
				}
			})
		})
	}
}

// The store is free, but somebody in this process is on the way to it.
func TestTryLockBehindALock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", slowThere(time.Second))
		first := background(t.Context(), l.Mutex("n"))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrLocked)
		if got := d.count("acquire"); got != 1 {
			t.Errorf("got %d calls of Acquire, want 1", got)
		}
		if r := <-first; r.err != nil {
			t.Error(r.err)
		}
	})
}

// A try to read does not overtake a writer who is on the way to the store, nor one who waits behind a reader.
func TestTryToReadBehindAWriter(t *testing.T) {
	for name, reader := range map[string]bool{"alone": false, "behind a reader": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				d.on("acquire", slowThere(time.Second))
				m := l.RWMutex("n")
				var first <-chan got
				if reader {
					first = calls(t.Context(), m.RLock)
				}
				writer := background(t.Context(), m)
				_, err := m.TryRLock(t.Context())
				if got := d.count("acquire"); !errors.Is(err, fencelock.ErrLocked) || got != 1 {
					t.Fatalf("a try: got %v and %d calls of Acquire, want that it is locked, and 1", err, got)
				}
				if reader {
					unlock(t, (<-first).le)
				}
				unlock(t, (<-writer).le)
			})
		})
	}
}

func TestCancelInTheQueue(t *testing.T) {
	for name, which := range map[string]int{
		"at the store": 0, "first behind it": 1, "in the middle": 2, "at the end": 4,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				a, b := open(t, d.other()), open(t, d)
				le := lock(t, a.Mutex("n"))
				var cancels []context.CancelFunc
				var waits []<-chan result
				for range 5 {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					cancels = append(cancels, cancel)
					waits = append(waits, background(ctx, b.Mutex("n")))
				}
				start := time.Now()
				cancels[which]()
				wantErr(t, name, (<-waits[which]).err, context.Canceled, fencelock.ErrLocked)
				wantTook(t, "the cancelled wait", start, 0, 0)
				time.Sleep(time.Second)
				unlock(t, le)
				for i, w := range slices.Delete(slices.Clone(waits), which, which+1) {
					r := <-w
					if r.err != nil {
						t.Fatalf("waiter %d of those left: %v", i, r.err)
					}
					unlock(t, r.le)
				}
				wantFree(t, a, "n")
			})
		})
	}
}

// All at the same moment, and one who comes meanwhile: nobody waits for anybody's lock in a circle.
func TestManyGiveUpAtOnce(t *testing.T) {
	for range 20 {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d)
			le := lock(t, l.Mutex("n"))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() {
					if i%2 == 1 {
						time.Sleep(time.Second)
					}
					_, err := l.Mutex("n").Lock(ctx)
					wantErr(t, "given up", err, context.DeadlineExceeded)
				})
			}
			wg.Wait()
			unlock(t, le)
			synctest.Wait() // what was granted to one who had given up is given back in the background
			wantFree(t, l, "n")
		})
	}
}

// Cancelling and being given the turn at the same moment: the turn must not be lost.
func TestCancelRacesWithTheTurn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		for range 300 {
			le := lock(t, l.Mutex("n"))
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					le, err := l.Mutex("n").Lock(ctx)
					if err == nil {
						err = le.Unlock(t.Context())
					}
					wantNot(t, "lock", err, fencelock.ErrUnavailable)
				})
			}
			last := background(t.Context(), l.Mutex("n"))
			wg.Go(cancel)
			unlock(t, le)
			wg.Wait()
			r := <-last
			if r.err != nil {
				t.Fatal(r.err)
			}
			unlock(t, r.le)
		}
		time.Sleep(time.Second)
		wantFree(t, l, "n")
	})
}

// A grant that reaches a waiter at the moment it gives up is passed on.
func TestCancelRacesWithTheGrant(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b, c := open(t, d.other()), open(t, d), open(t, d.other())
		for range 100 {
			le := lock(t, a.Mutex("n"))
			ctx, cancel := context.WithCancel(t.Context())
			given := background(ctx, b.Mutex("n"))
			last := background(t.Context(), c.Mutex("n"))
			start := time.Now()
			go cancel()
			unlock(t, le)
			if r := <-given; r.err == nil {
				unlock(t, r.le)
			}
			r := <-last
			if r.err != nil {
				t.Fatal(r.err)
			}
			wantTook(t, "the next in line", start, 0, time.Second)
			unlock(t, r.le)
		}
	})
}

// Those in line have waited for the store as long as the first of them: they do not sit an outage
// out one after the other.
func TestAnOutageEndsTheWholeLine(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		down := true
		d.on("acquire", func(c call) error {
			if !down {
				return c.apply()
			}
			return core.Wait(c.ctx, "1", nil, func(context.Context) (bool, time.Duration, error) {
				return false, 0, errStore
			})
		})
		start := time.Now()
		var all []<-chan result
		for range 200 {
			all = append(all, background(t.Context(), l.Mutex("n")))
		}
		other := background(t.Context(), l.Mutex("other"))
		for i, one := range append(all, other) {
			r := <-one
			wantErr(t, fmt.Sprint("waiter ", i), r.err, fencelock.ErrUnavailable)
			wantErr(t, fmt.Sprint("waiter ", i), r.err, errStore)
			wantTook(t, fmt.Sprint("waiter ", i), start, core.Patience, core.Patience+time.Second)
		}
		if n := d.count("acquire"); n != 2 {
			t.Errorf("got %d calls of Acquire for two names, want 2", n)
		}
		down = false
		unlock(t, lock(t, l.Mutex("n")))
	})
}

// Who stands behind another Lock of its process was not first, whatever that one hears from the store.
func TestWaitInLineEndedByContext(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", hang)
		one := background(within(t, 2*time.Second), l.Mutex("n"))
		two := background(within(t, time.Second), l.Mutex("n"))
		wantErr(t, "in line", (<-two).err, fencelock.ErrLocked, context.DeadlineExceeded)
		r := <-one
		wantErr(t, "at the store", r.err, context.DeadlineExceeded)
		wantNot(t, "at the store", r.err, fencelock.ErrLocked)
	})
}

func TestErrorsPassTheTurnOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", first(1, func(c call) error {
			time.Sleep(time.Second)
			return errStore
		}))
		one, two := background(t.Context(), l.Mutex("n")), background(t.Context(), l.Mutex("n"))
		wantErr(t, "the first", (<-one).err, fencelock.ErrUnavailable)
		if r := <-two; r.err != nil {
			t.Errorf("the second: %v", r.err)
		}
	})
}

// A store that is too slow for a TTL is so for all who wait with that, but not for a longer one.
func TestStoreTooSlowForTheTTL(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		const short = 100 * time.Millisecond
		d.on("acquire", slowBack(150*time.Millisecond))
		var waits []<-chan result
		began := time.Now()
		for range 3 {
			waits = append(waits, background(t.Context(), l.Mutex("n", fencelock.WithTTL(short))))
			synctest.Wait()
		}
		long := background(t.Context(), l.Mutex("n"))
		for _, w := range waits {
			wantErr(t, "a short TTL", (<-w).err, fencelock.ErrUnavailable)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("the last of them waited for %v, want no more than 6s", took)
		}
		if r := <-long; r.err != nil {
			t.Errorf("a longer TTL: %v", r.err)
		}
	})
}

// The turn may come after the end of a ctx has woken its waiter, and before that one has left the line.
func TestTurnAtTheMomentOfGivingUp(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		for i := range 3000 {
			gate := make(chan struct{})
			d.on("acquire", first(1, func(call) error { <-gate; return errStore }))
			front := background(t.Context(), l.Mutex("n"))
			ctx, cancel := context.WithCancel(t.Context())
			second := background(ctx, l.Mutex("n"))
			var spun atomic.Int64
			go func() {
				for range 10 * (i % 300) {
					spun.Add(1)
				}
				close(gate)
			}()
			cancel()
			wantErr(t, "in front", (<-front).err, fencelock.ErrUnavailable)
			if r := <-second; r.err == nil {
				unlock(t, r.le)
			}
			le, err := l.Mutex("n").Lock(within(t, time.Second))
			if err != nil {
				t.Fatalf("round %d: the turn is lost: %v", i, err)
			}
			unlock(t, le)
		}
	})
}

// In an outage nobody says that a lock is held: a TryLock beside a Lock that rides it out says so.
func TestTryLockBesideALockInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		l := open(t, down{d})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := l.Mutex("n").Lock(t.Context())
			wantErr(t, "lock", err, fencelock.ErrUnavailable)
		}()
		time.Sleep(time.Second)
		_, err = l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		wantNot(t, "trylock", err, fencelock.ErrLocked)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.Mutex("n").Lock(ctx)
		wantErr(t, "a second lock", err, context.DeadlineExceeded, fencelock.ErrUnavailable)
		<-done
	})
}

// down is a driver whose store refuses every claim.
type down struct{ *memory.Driver }

func (down) Ask(_ context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		c.Err = errStore
	}
}
