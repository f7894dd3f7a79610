package fencelock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

// carry returns a ctx that carries the lease.
func carry(t *testing.T, ctx context.Context, le *fencelock.Lease) context.Context {
	ctx, cancel := le.Context(ctx)
	t.Cleanup(cancel)
	return ctx
}

func TestDeadlockIsAnError(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		ctx := carry(t, t.Context(), lock(t, l.Mutex("n")))
		start, calls := time.Now(), d.count()
		_, err := l.Mutex("n").Lock(ctx)
		wantErr(t, "lock", err, fencelock.ErrDeadlock)
		_, err = l.Mutex("n").TryLock(ctx)
		wantErr(t, "trylock", err, fencelock.ErrLocked)
		wantNot(t, "trylock", err, fencelock.ErrDeadlock)
		wantTook(t, "both", start, 0, 0)
		if got := d.count(); got != calls {
			t.Errorf("got %d calls of the driver, want none", got-calls)
		}
	})
}

// A hold whose token is not above the floor is not what was asked for.
func TestReentryAboveAFloor(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithReentrancy())
		le := lock(t, l.Mutex("n"))
		ctx := carry(t, t.Context(), le)
		_, err := l.Mutex("n", fencelock.WithFloor(le.Token())).Lock(ctx)
		wantErr(t, "lock", err, fencelock.ErrDeadlock)
		again, err := l.Mutex("n", fencelock.WithFloor(le.Token()-1)).Lock(ctx)
		wantErr(t, "below it", err)
		unlock(t, again)
		unlock(t, le)
	})
}

func TestWhatIsNoDeadlock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, newFake(t))
		le := lock(t, a.Mutex("n"))
		ctx := carry(t, t.Context(), le)
		for name, m := range map[string]fencelock.Mutex{
			"another name": a.Mutex("other"), "another Locker": b.Mutex("n"),
		} {
			got, err := m.Lock(ctx)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			unlock(t, got)
		}
		unlock(t, le)
		got, err := a.Mutex("n").Lock(context.WithoutCancel(ctx))
		if err != nil {
			t.Fatalf("with a lease in ctx that has ended: %v", err)
		}
		unlock(t, got)
	})
}

// A job without the lease waits for it like any other, also where all leases further out are live,
// and ends with its ctx.
func TestWithoutLease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithReentrancy())
		outer, inner := lock(t, l.Mutex("outer")), lock(t, l.Mutex("inner"))
		ctx := carry(t, carry(t, t.Context(), outer), inner)
		job := fencelock.WithoutLease(ctx)
		if le, ok := fencelock.LeaseFrom(job); ok {
			t.Errorf("the job carries the lease of %q", le.Name())
		}
		_, err := l.Mutex("inner").TryLock(job)
		wantErr(t, "trylock", err, fencelock.ErrLocked)
		waits := background(context.WithoutCancel(job), l.Mutex("outer"))
		ends := background(job, l.Mutex("outer"))
		unlock(t, inner)
		wantErr(t, "the job's ctx", context.Cause(job), fencelock.ErrReleased)
		wantErr(t, "a Lock with it", (<-ends).err, context.Canceled, fencelock.ErrReleased)
		unlock(t, outer)
		own := want(t, waits)
		again := fencelock.WithoutLease(carry(t, t.Context(), own))
		if le, ok := fencelock.LeaseFrom(carry(t, again, own)); !ok || le != own {
			t.Errorf("got the lease %v, want the job's own", le)
		}
		unlock(t, own)
	})
}

func TestAllLeasesInTheContextCount(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		one, two, three := lock(t, l.Mutex("one")), lock(t, l.Mutex("two")), lock(t, l.Mutex("three"))
		// a Lock that misses one waits no longer
		ctx := carry(t, carry(t, carry(t, within(t, time.Minute), one), two), three)
		for _, name := range []string{"one", "two", "three"} {
			_, err := l.Mutex(name).Lock(ctx)
			wantErr(t, name, err, fencelock.ErrDeadlock)
			le, err := l.Mutex(name, fencelock.WithReentrancy()).Lock(ctx)
			if err != nil {
				t.Errorf("%s again: %v", name, err)
				continue
			}
			unlock(t, le)
		}
	})
}

func TestReentry(t *testing.T) {
	orders := [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {1, 0, 2}}
	for _, order := range orders {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d, fencelock.WithReentrancy())
			m := l.Mutex("n")
			first := lock(t, m)
			ctx := carry(t, t.Context(), first)
			second, err := m.Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			third, err := m.TryLock(carry(t, ctx, second))
			if err != nil {
				t.Fatal(err)
			}
			leases := []*fencelock.Lease{first, second, third}
			time.Sleep(5 * ttl)
			for i, le := range leases {
				wantHeld(t, "while all hold", le)
				if le.Token() != first.Token() || !le.Deadline().Equal(first.Deadline()) ||
					le.Done() != first.Done() || le.Name() != "n" || le.Owner() != first.Owner() {
					t.Errorf("lease %d: got %d, %v, want the token, deadline and Done of the first",
						i, le.Token(), le.Deadline())
				}
			}
			if got := d.count("acquire"); got != 1 {
				t.Errorf("got %d calls of Acquire, want 1", got)
			}
			for n, i := range order {
				if closed(first.Done()) {
					t.Errorf("order %v: Done is closed after %d unlocks", order, n)
				}
				unlock(t, leases[i])
				wantErr(t, "the unlocked one", leases[i].Err(), fencelock.ErrReleased)
				wantErr(t, "unlocked again", leases[i].Unlock(t.Context()), fencelock.ErrReleased)
				wantErr(t, "renewed after unlock", leases[i].Renew(t.Context()), fencelock.ErrReleased)
				if got, want := d.count("release"), n/2; got != want {
					t.Errorf("order %v: got %d releases after %d unlocks, want %d", order, got, n+1, want)
				}
			}
			if !closed(first.Done()) {
				t.Error("Done is open after the last unlock")
			}
			wantFree(t, l, "n")
		})
	}
}

func TestReentryByOptionOfTheMutex(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		ctx := carry(t, t.Context(), lock(t, l.Mutex("n")))
		le, err := l.Mutex("n", fencelock.WithReentrancy()).TryLock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, le)
	})
}

func TestReentryAndLoss(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithReentrancy(), fencelock.WithManualRenew())
		m := l.Mutex("n")
		first := lock(t, m)
		ctx := carry(t, t.Context(), first)
		second, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		third, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, third)
		inner := carry(t, ctx, second)
		time.Sleep(ttl)
		for _, le := range []*fencelock.Lease{first, second} {
			wantLost(t, "after the deadline", le, fencelock.Expired)
			wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrLost)
		}
		wantErr(t, "the inner ctx", context.Cause(inner), fencelock.ErrLost)
		wantErr(t, "the one that was unlocked before the loss", third.Err(), fencelock.ErrReleased)
		wantNot(t, "the one that was unlocked before the loss", third.Err(), fencelock.ErrLost)

		// A lost lease in ctx does not count.
		again, err := m.Lock(context.WithoutCancel(inner))
		if err != nil {
			t.Fatalf("lock after the loss: %v", err)
		}
		if again.Token() <= first.Token() {
			t.Errorf("got token %d after %d", again.Token(), first.Token())
		}
	})
}

func TestReentryContextEndsWithItsHandle(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		m := open(t, d, fencelock.WithReentrancy()).Mutex("n")
		first := lock(t, m)
		outer := carry(t, t.Context(), first)
		second, err := m.Lock(outer)
		if err != nil {
			t.Fatal(err)
		}
		inner := carry(t, outer, second)
		unlock(t, second)
		wantErr(t, "the ctx of the unlocked handle", context.Cause(inner), fencelock.ErrReleased)
		if err := outer.Err(); err != nil {
			t.Errorf("the ctx of the other handle: %v", err)
		}
		// The inner ctx has ended, but what it carries further out is alive.
		third, err := m.Lock(context.WithoutCancel(inner))
		if err != nil || third.Token() != first.Token() {
			t.Errorf("re-entry through an ended handle to a live one: got %v, %v", third, err)
		}
	})
}

func TestReentryByDoInDo(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithReentrancy())
		depth := 0
		var down func(context.Context, *fencelock.Lease) error
		down = func(ctx context.Context, _ *fencelock.Lease) error {
			if depth++; depth == 5 {
				return nil
			}
			return l.Do(ctx, "n", down)
		}
		if err := l.Do(t.Context(), "n", down); err != nil {
			t.Error(err)
		}
		if got := d.count("acquire", "release"); got != 2 {
			t.Errorf("got %d acquisitions and releases, want 1 each", got)
		}
		wantFree(t, l, "n")
	})
}

func TestReentryAfterAFailedUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithReentrancy())
		m := l.Mutex("n")
		first := lock(t, m)
		ctx := carry(t, t.Context(), first)
		second, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, first)
		d.on("release", refuse(errStore))
		wantErr(t, "the last unlock", second.Unlock(t.Context()), fencelock.ErrUnavailable)
		d.on("release", nil)
		unlock(t, second)
		wantFree(t, l, "n")
	})
}

// A hold that Unlock is giving back takes no more leases.
func TestNoReentryIntoAHoldThatIsLeaving(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		m := open(t, d, fencelock.WithReentrancy()).Mutex("n")
		le := lock(t, m)
		ctx := carry(t, t.Context(), le)
		d.on("release", refuse(errStore))
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
		_, err := m.Lock(ctx)
		wantErr(t, "lock", err, fencelock.ErrDeadlock)
		_, err = m.TryLock(ctx)
		wantErr(t, "trylock", err, fencelock.ErrLocked)
		d.on("release", nil)
		unlock(t, le)
	})
}

func TestReentryFromManyGoroutines(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		m := open(t, d, fencelock.WithReentrancy()).Mutex("n")
		first := lock(t, m)
		ctx := carry(t, t.Context(), first)
		errs := make(chan error)
		for range 50 {
			go func() {
				le, err := m.Lock(ctx)
				if err != nil {
					errs <- err
					return
				}
				errs <- errors.Join(le.Err(), le.Unlock(ctx))
			}()
		}
		for range 50 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		wantHeld(t, "the first", first)
		if got := d.count(); got != 1 {
			t.Errorf("got %d calls of the driver, want the first Acquire only", got)
		}
	})
}

// A Lock that finds the lease of its ctx just being unlocked waits for what comes of that.
func TestReentryWhileUnlockIsUnderWay(t *testing.T) {
	for name, tt := range map[string]struct {
		release step
		want    error
	}{
		"it succeeds": {slowBack(time.Second), nil},
		"it fails":    {func(c call) error { time.Sleep(time.Second); return errStore }, fencelock.ErrDeadlock},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithReentrancy())
				le := lock(t, l.Mutex("n"))
				ctx := context.WithoutCancel(carry(t, t.Context(), le))
				d.on("release", first(1, tt.release))
				go func() { _ = le.Unlock(context.Background()) }()
				synctest.Wait()
				_, err := l.Mutex("n").TryLock(ctx)
				wantErr(t, "trylock meanwhile", err, fencelock.ErrLocked)
				again, err := l.Mutex("n").Lock(ctx)
				wantErr(t, "lock", err, tt.want)
				if err == nil {
					unlock(t, again)
				}
				if err := le.Unlock(t.Context()); err != nil {
					wantErr(t, "unlock again", err, fencelock.ErrReleased)
				}
				wantFree(t, l, "n")
			})
		})
	}
}

// A Lock does not wait for an Unlock of the lease of its ctx for longer than ctx lasts.
func TestReentryEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithReentrancy())
		le := lock(t, l.Mutex("n"))
		d.on("release", slowThere(3*time.Second))
		ctx, cancel := context.WithTimeout(carry(t, t.Context(), le), time.Second)
		defer cancel()
		unlocked := make(chan error)
		go func() { unlocked <- le.Unlock(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		_, err := l.Mutex("n").Lock(ctx)
		wantErr(t, "lock", err, context.DeadlineExceeded)
		wantTook(t, "lock", start, time.Second, time.Second)
		wantErr(t, "unlock", <-unlocked, nil)
	})
}

// Nothing is kept of a lease that was unlocked while another one on the hold lives.
func TestReentryKeepsNothing(t *testing.T) {
	l := open(t, newFake(t).other(), fencelock.WithReentrancy(), fencelock.WithTTL(time.Hour))
	m := l.Mutex("n")
	first := lock(t, m)
	ctx := carry(t, t.Context(), first)
	second, err := m.Lock(ctx) // which is moved within the list
	if err != nil {
		t.Fatal(err)
	}
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		return float64(ms.HeapAlloc)
	}
	const n = 20_000
	before := heap()
	for range n {
		le, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, le)
	}
	if got := (heap() - before) / n; got > 4 {
		t.Errorf("got %.1f bytes kept for each of %d leases, want none", got, n)
	}
	held := carry(t, t.Context(), second)
	unlock(t, first)
	unlock(t, second)
	wantErr(t, "the ctx of the last", context.Cause(held), fencelock.ErrReleased)
	runtime.KeepAlive(first)
}
