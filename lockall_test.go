package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
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

func lockAll(t *testing.T, l *fencelock.Locker, names ...string) *fencelock.Leases {
	t.Helper()
	ls, err := l.LockAll(t.Context(), names...)
	if err != nil {
		t.Fatalf("LockAll of %q: %v", names, err)
	}
	return ls
}

// backgroundAll calls LockAll in a goroutine and returns once it waits.
func backgroundAll(ctx context.Context, l *fencelock.Locker, names ...string) <-chan allResult {
	done := make(chan allResult, 1)
	go func() {
		ls, err := l.LockAll(ctx, names...)
		done <- allResult{ls, err}
	}()
	synctest.Wait()
	return done
}

type allResult struct {
	ls  *fencelock.Leases
	err error
}

func TestLockAll(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		began := time.Now()
		ls := lockAll(t, l, "b", "a", "c")
		for _, name := range []string{"a", "b", "c"} {
			info, err := other.Inspect(t.Context(), name)
			if le := ls.Lease(name); err != nil || le == nil || info.Token != le.Token() {
				t.Errorf("%q at the store: got %+v, %v, want it held by %+v", name, info, err, le)
			}
		}
		if ls.Lease("d") != nil {
			t.Error("there is a lease of what was not locked")
		}
		if got := ls.Deadline().Sub(began); got > trusted || ls.Err() != nil || closed(ls.Done()) {
			t.Errorf("got a deadline in %v, %v, want at most %v and no error", got, ls.Err(), trusted)
		}
		ctx, cancel := ls.Context(t.Context())
		defer cancel()
		_, err := l.Mutex("b").Lock(ctx)
		wantErr(t, "Lock of one of them with their context", err, fencelock.ErrDeadlock)
		time.Sleep(3 * ttl) // renewed
		if err := ls.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, "Err", ls.Err(), fencelock.ErrReleased)
		wantErr(t, "their context", context.Cause(ctx), fencelock.ErrReleased)
		if !closed(ls.Done()) {
			t.Error("Done is open after Unlock")
		}
		wantErr(t, "a second Unlock", ls.Unlock(t.Context()), fencelock.ErrReleased)
		wantFree(t, l, "a", "b", "c")
	})
}

// While it waits for one, it holds what comes before that, and nothing behind it.
func TestLockAllWaitsInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		le := lock(t, other.Mutex("b"))
		waiting := backgroundAll(t.Context(), l, "c", "b", "a")
		time.Sleep(3 * ttl)
		_, err := other.Mutex("a").TryLock(t.Context())
		wantErr(t, "what comes before", err, fencelock.ErrLocked)
		behind, err := other.Mutex("c").TryLock(t.Context())
		if err != nil {
			t.Fatalf("what comes behind: %v", err)
		}
		unlock(t, behind)
		unlock(t, le)
		if got := <-waiting; got.err != nil || got.ls.Unlock(t.Context()) != nil {
			t.Errorf("LockAll: got %v, want all", got.err)
		}
		wantFree(t, l, "a", "b", "c")
	})
}

// Callers who name the locks in any order, beside some who want one alone, never stand still.
func TestLockAllNeverWaitsInACircle(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		names := []string{"a", "b", "c", "d"}
		var inside sync.Map
		var wg sync.WaitGroup
		d.on("acquire", slowThere(time.Millisecond))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		for p := range 3 {
			l := open(t, d.other())
			if p == 0 {
				l = open(t, d)
			}
			for worker := range 3 {
				dice := rand.New(rand.NewPCG(uint64(p), uint64(worker)))
				wg.Go(func() {
					for range 50 {
						want := slices.Clone(names)
						dice.Shuffle(len(want), func(i, j int) { want[i], want[j] = want[j], want[i] })
						want = want[:1+dice.IntN(len(want))]
						ls, err := l.LockAll(ctx, want...)
						if err != nil {
							t.Error(err)
							return
						}
						for _, name := range want {
							if _, twice := inside.LoadOrStore(name, true); twice {
								t.Errorf("%q is held twice", name)
							}
						}
						time.Sleep(time.Duration(dice.IntN(10)) * time.Millisecond)
						for _, name := range want {
							inside.Delete(name)
						}
						if err := ls.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
	})
}

// What goes with the first that ends is left to WithMinHold as an Unlock would.
func TestLockAllWithMinHold(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d, fencelock.WithMinHold(least)), open(t, d.other())
		began := time.Now()
		ls := lockAll(t, l, "a", "b")
		unlock(t, ls.Lease("a"))
		<-ls.Done()
		time.Sleep(least / 2)
		early, err := other.Mutex("b").TryLock(t.Context())
		wantErr(t, "before its time is over", err, fencelock.ErrLocked)
		if early != nil {
			unlock(t, early)
		}
		next, err := other.Mutex("b").Lock(t.Context())
		wantAfter(t, result{err: err, at: time.Now()}, began, least)
		unlock(t, next)
	})
}

// What goes with one that is lost keeps its grace, for its holder has not let it go.
func TestLockAllWithGrace(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		const grace = 5 * time.Second
		l, other := open(t, d, fencelock.WithGrace(grace)), open(t, d.other())
		names := []string{"a", "b"}
		for i := range 500 {
			names = append(names, fmt.Sprint("a", i)) // before b
		}
		ls := lockAll(t, l, names...)
		next := background(t.Context(), other.Mutex("b"))
		if err := other.Break(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		<-ls.Done()
		told := time.Now()
		wantErr(t, "Unlock of who has heard it", ls.Unlock(t.Context()), fencelock.ErrLost)
		r := <-next
		wantAfter(t, r, told, grace)
		unlock(t, r.le)
	})
}

// The first loss ends all of them: the others are free at once, and say so.
func TestFirstLossEndsAll(t *testing.T) {
	for _, how := range slices.Repeat([]string{"broken", "unlocked"}, 30) { // which context ends first is a race
		bubble(t, func(t *testing.T, d *fake) {
			l, other := open(t, d), open(t, d.other())
			ls := lockAll(t, l, "a", "b", "c")
			ctx, cancel := ls.Context(t.Context())
			defer cancel()
			want := fencelock.ErrLost
			if how == "broken" {
				if err := other.Break(t.Context(), "b"); err != nil {
					t.Fatal(err)
				}
			} else {
				want = fencelock.ErrReleased
				unlock(t, ls.Lease("b"))
			}
			synctest.Wait()
			if !closed(ls.Done()) {
				t.Fatal("Done is open")
			}
			var op *fencelock.OpError
			if err := ls.Err(); !errors.As(err, &op) || op.Name != "b" || !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v of %q", how, err, want, "b")
			}
			wantErr(t, "their context", context.Cause(ctx), want)
			late, stop := ls.Context(t.Context())
			defer stop()
			wantErr(t, "a context of later", context.Cause(late), want)
			for _, name := range []string{"a", "c"} {
				wantErr(t, name, ls.Lease(name).Err(), fencelock.ErrReleased)
			}
			wantErr(t, "Unlock", ls.Unlock(t.Context()), want)
			wantFree(t, other, "a", "b", "c")
		})
	}
}

// A lease that is lost while it waits for the rest makes it begin again.
func TestLossWhileLockAllWaits(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		le := lock(t, other.Mutex("b"))
		waiting := backgroundAll(t.Context(), l, "a", "b")
		before, err := other.Inspect(t.Context(), "a")
		if err != nil || !before.Held {
			t.Fatalf("got %+v, %v, want it held", before, err)
		}
		if err := other.Break(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		unlock(t, le)
		got := <-waiting
		if got.err != nil {
			t.Fatal(got.err)
		}
		if now := got.ls.Lease("a").Token(); now <= before.Token || got.ls.Err() != nil {
			t.Errorf("got token %d, %v, want one after %d", now, got.ls.Err(), before.Token)
		}
		if err := got.ls.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		wantFree(t, l, "a", "b")
	})
}

// A thousand names cost about as much together as a hundred ten times.
func TestLockAllOfMany(t *testing.T) {
	l := open(t, newFake(t))
	took := func(n, times int) time.Duration {
		began := time.Now()
		for range times {
			ls := lockAll(t, l, numbered(n)...)
			ctx, cancel := ls.Context(t.Context())
			if le, ok := fencelock.LeaseFrom(ctx); ctx.Err() != nil || !ok || le.Err() != nil {
				t.Errorf("got a context with %v and the lease %v", ctx.Err(), le)
			}
			cancel()
			if err := ls.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return time.Since(began)
	}
	few, many := time.Hour, time.Hour
	for i := 0; i < 3 || i < 20 && many > 6*few; i++ { // others have the machine too
		few, many = min(few, took(100, 10)), min(many, took(1000, 1))
	}
	if many > 6*few {
		t.Errorf("they took %v, and a hundred ten times %v", many, few)
	}
}

// The observer sees one Lock of each name, and no try that was in vain.
func TestLockAllIsOneLockOfEachName(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		seen := &beginner{t: t}
		l, other := open(t, d, fencelock.WithObserver(seen)), open(t, d.other())
		le := lock(t, other.Mutex("b"))
		waiting := backgroundAll(t.Context(), l, "a", "b", "c")
		unlock(t, le)
		if got := <-waiting; got.err != nil {
			t.Fatal(got.err)
		}
		synctest.Wait()
		lines := strings.Split(seen.take(), ", ")
		slices.Sort(lines)
		want := "locking → acquired, locking → acquired, locking → acquired, " + cleanedUp // the first lease of c
		if got := strings.Join(lines, ", "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// With WithReentrancy a lease of LockAll that ends with another leaves its transaction to a lease from before.
func TestLossUndoesWhatAnOuterLeaseWrites(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithReentrancy())
		outer, x := written(t, d, l.Mutex("a"))
		d.on("abandon", nil) // of the other
		ls, err := l.LockAll(carry(t, t.Context(), outer), "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Break(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		<-ls.Done()
		synctest.Wait()
		wantHeld(t, "the outer lease", outer)
		err = outer.Unlock(t.Context())
		if !errors.As(err, new(*fencelock.UndoneError)) {
			t.Errorf("Unlock of the outer lease: got %v, want an UndoneError", err)
		}
		wantNot(t, "Unlock of the outer lease", err, fencelock.ErrLost)
		x.wantCommitted(t, false)
	})
}

// What is free costs the time of one request, however many there are, and a lock alone no try before its wait.
func TestLockAllAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		d.on("acquire", slowThere(10*time.Millisecond))
		began := time.Now()
		ls := lockAll(t, l, numbered(64)...)
		wantTook(t, "LockAll", began, 0, 10*time.Millisecond)
		if err := ls.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		d.on("acquire", nil)
		le, before := lock(t, other.Mutex("a")), d.count("acquire")
		waiting := backgroundAll(t.Context(), l, "a")
		unlock(t, le)
		if got := <-waiting; got.err != nil || got.ls.Unlock(t.Context()) != nil {
			t.Errorf("LockAll: got %v, want it locked", got.err)
		}
		if got := d.count("acquire") - before; got != 1 {
			t.Errorf("got %d calls of Acquire for one lock, want 1", got)
		}
	})
}

// A loss just before the end of ctx: the error is that of ctx, for what was lost belonged to nobody yet.
func TestLossAsTheContextOfLockAllEnds(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		ctx, cancel := context.WithCancelCause(t.Context())
		l := open(t, d, fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) {
			if e.Kind == fencelock.NotAcquired && errors.Is(e.Err, fencelock.ErrLost) {
				cancel(errCause)
			}
		})))
		other := open(t, d.other())
		lock(t, other.Mutex("b"))
		waiting := backgroundAll(ctx, l, "a", "b")
		if err := other.Break(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		got := <-waiting
		wantErr(t, "LockAll", got.err, context.Canceled, errCause)
		wantNot(t, "LockAll", got.err, fencelock.ErrLost)
		wantFree(t, other, "a")
	})
}

// Where one cannot be had, none is held, and the error has its name.
func TestLockAllOrNone(t *testing.T) {
	unreachable := func(_ *fencelock.Locker, d *fake) context.Context {
		d.on("acquire", about(func(name string) bool { return name == "b" }, refuse(errStore)))
		return context.Background()
	}
	for what, c := range map[string]struct {
		given func(other *fencelock.Locker, d *fake) context.Context
		want  []error
	}{
		"unreachable": {unreachable, []error{fencelock.ErrUnavailable, errStore}},
		"ctx ends": {func(other *fencelock.Locker, _ *fake) context.Context {
			_, _ = other.Mutex("b").Lock(context.Background())
			ctx, cancel := context.WithTimeoutCause(context.Background(), 3*ttl, errCause)
			time.AfterFunc(4*ttl, cancel)
			return ctx
		}, []error{context.DeadlineExceeded, errCause, fencelock.ErrLocked}},
		"carried": {func(*fencelock.Locker, *fake) context.Context {
			return nil
		}, []error{fencelock.ErrDeadlock}},
	} {
		bubble(t, func(t *testing.T, d *fake) {
			l, other := open(t, d), open(t, d.other())
			ctx := c.given(other, d)
			if ctx == nil {
				le := lock(t, l.Mutex("b"))
				defer unlock(t, le)
				var cancel context.CancelFunc
				ctx, cancel = le.Context(t.Context())
				defer cancel()
			}
			_, err := l.LockAll(ctx, "c", "b", "a")
			wantErr(t, what, err, c.want...)
			var op *fencelock.OpError
			if !errors.As(err, &op) || op.Name != "b" || opErrors(err) != 1 {
				t.Errorf("%s: got %v, want one OpError with the name", what, err)
			}
			d.on("acquire", nil)
			time.Sleep(time.Second)
			wantFree(t, other, "a", "c")
		})
	}
}

var errCause = errors.New("the cause")

// Close ends a LockAll that waits.
func TestLockAllEndsWithItsLocker(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := openLoose(t, d), open(t, d.other())
		le := lock(t, other.Mutex("b"))
		waiting := backgroundAll(t.Context(), l, "a", "b")
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		got := <-waiting
		wantErr(t, "LockAll", got.err, fencelock.ErrClosed)
		unlock(t, le)
		wantFree(t, other, "a", "b")
	})
}

// After an outage Unlock is called again for what is left.
func TestUnlockAllAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		ls := lockAll(t, l, "a", "b", "c")
		d.on("release", about(func(name string) bool { return name == "b" }, refuse(errStore)))
		err := ls.Unlock(t.Context())
		wantErr(t, "Unlock", err, fencelock.ErrUnavailable, errStore)
		wantNot(t, "Unlock", err, fencelock.ErrReleased, fencelock.ErrLost)
		d.on("release", nil)
		if err := ls.Unlock(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		wantFree(t, l, "a", "b", "c")
	})
}

// numbered returns n names, in LockAll's order.
func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%03d", i)
	}
	return names
}

// However many the names are, a store that answers nothing holds LockAll up for one try and one wait, and Unlock for
// one release.
func TestManyAtASilentStore(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		names := numbered(200)
		d.on("acquire", func(c call) error {
			if !c.reqs[0].Wait {
				return hang(c)
			}
			return core.Wait(c.ctx, "1", nil, func(ctx context.Context) (bool, time.Duration, error) {
				<-ctx.Done()
				return false, 0, ctx.Err()
			})
		})
		began := time.Now()
		_, err := l.LockAll(t.Context(), names...)
		wantErr(t, "LockAll", err, fencelock.ErrUnavailable)
		wantTook(t, "LockAll", began, 0, 12*time.Second)
		d.on("acquire", nil)
		ls := lockAll(t, l, names...)
		d.on("release", hang)
		began = time.Now()
		wantErr(t, "Unlock", ls.Unlock(t.Context()), fencelock.ErrUnavailable)
		wantTook(t, "Unlock", began, 0, 6*time.Second)
		d.on("release", nil)
		if err := ls.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock again: %v", err)
		}
	})
}

// The Deadline of the first passes while they are being committed, which they are, and before the last are asked for,
// which are rolled back.
func TestUnlockAllTellsOfRollbacks(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithManualRenew())
		d.grant = func(g *backend.Grant) { g.Handle = &ledger{} }
		names, books := numbered(70), map[string]*ledger{}
		var ms []fencelock.Mutex
		for i, name := range names {
			ms = append(ms, l.Mutex(name, fencelock.WithTTL(ttl*time.Duration(1+i/64))))
		}
		ls, err := fencelock.LockAll(t.Context(), ms...)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			books[name] = ls.Lease(name).Handle().(*ledger)
		}
		end := func(c call) error { return books[c.reqs[0].Name].end(c) }
		d.on("abandon", end)
		d.on("release", func(c call) error {
			err := end(c)
			time.Sleep(time.Second)
			return err
		})
		time.Sleep(trusted - 10*time.Millisecond)
		err = ls.Unlock(t.Context())
		wantErr(t, "Unlock", err, fencelock.ErrLost, ls.Err())
		wantNot(t, "Unlock", err, fencelock.ErrReleased)
		time.Sleep(time.Second)
		books[names[0]].wantCommitted(t, true)
		books[names[69]].wantCommitted(t, false)
	})
}

// An observer that panics costs no lock, whether the lock was free or waited for.
func TestLockAllUnderAnObserverThatPanics(t *testing.T) {
	for name, waits := range map[string]time.Duration{"free": 0, "waited for": time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var calm atomic.Bool
				l := open(t, d, fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) {
					if e.Kind == fencelock.Acquired && e.Name == "b" && !calm.Swap(true) {
						panic("at " + e.Name)
					}
				})))
				if waits > 0 {
					le := lock(t, open(t, d.other()).Mutex("b"))
					time.AfterFunc(waits, func() { unlock(t, le) })
				}
				func() {
					defer func() {
						if r := recover(); fmt.Sprint(r) != "at b" {
							t.Errorf("got the panic %v, want the observer's", r)
						}
					}()
					_, _ = l.LockAll(t.Context(), "a", "b", "c")
				}()
				time.Sleep(time.Second)
				wantFree(t, l, "a", "b", "c")
			})
		})
	}
}

// A panic of the program's own code in a goroutine of LockAll, or of its Unlock, comes to the caller, and nothing stays
// held.
func TestPanicBesideOthers(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		o := &misbehaving{kind: fencelock.Unlocking}
		l := open(t, d, fencelock.WithObserver(o))
		panics := first(1, func(call) error { panic("in a hook of the client") })
		d.on("acquire", about(func(name string) bool { return name == "n" }, panics))
		if !recovered(func() { _, _ = l.LockAll(t.Context(), "a", "n", "z") }) {
			t.Error("the panic has not come to who locks")
		}
		time.Sleep(time.Second)
		wantFree(t, l, "a", "n", "z")
		ls := lockAll(t, l, "a", "n", "z")
		o.armed.Store(true)
		if !recovered(func() { _ = ls.Unlock(t.Context()) }) {
			t.Error("the panic has not come to who unlocks")
		}
		time.Sleep(time.Second)
		wantFree(t, l, "a", "n", "z")
	})
}

// strange is a Mutex of somebody else.
type strange struct{ fencelock.Mutex }

func TestLockAllOfWhatItCannot(t *testing.T) {
	d := newFake(t)
	l, other := open(t, d), open(t, d.other())
	for what, c := range map[string]struct { // by what the error says
		ms   []fencelock.Mutex
		want error
	}{
		"no name":     {nil, fencelock.ErrInvalid},
		"1 to 512":    {[]fencelock.Mutex{l.Mutex("a"), l.Mutex("")}, fencelock.ErrInvalid},
		"twice":       {[]fencelock.Mutex{l.Mutex("a"), l.Mutex("b"), l.Mutex("a")}, fencelock.ErrInvalid},
		"two Lockers": {[]fencelock.Mutex{l.Mutex("a"), other.Mutex("a")}, fencelock.ErrInvalid},
		"strange":     {[]fencelock.Mutex{strange{l.Mutex("a")}}, fencelock.ErrUnsupported},
	} {
		_, err := fencelock.LockAll(t.Context(), c.ms...)
		wantErr(t, what, err, c.want)
		if opErrors(err) != 1 || !strings.Contains(fmt.Sprint(err), what) {
			t.Errorf("%s: got %v, want one OpError that says it", what, err)
		}
	}
	if n := d.count("acquire"); n != 0 {
		t.Errorf("the store was asked %d times", n)
	}
	// Of two Lockers, in one order.
	ls, err := fencelock.LockAll(t.Context(), other.Mutex("b"), l.Mutex("a"), l.Mutex("c"))
	if err != nil {
		t.Fatal(err)
	}
	if err := ls.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// LockAll does not wait for others while its caller holds one of the names.
func TestLockAllUnderOneOfItsNames(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		defer unlock(t, lock(t, other.Mutex("a")))
		le := lock(t, l.Mutex("b"))
		defer unlock(t, le)
		ctx, cancel := le.Context(t.Context())
		defer cancel()
		start := time.Now()
		_, err := l.LockAll(ctx, "a", "b")
		wantErr(t, "LockAll", err, fencelock.ErrDeadlock)
		wantTook(t, "it", start, 0, 0)
	})
}

// A reader whose Unlock had no answer is not given back for another who shares its hold.
func TestLockAllLeavesOtherReaders(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		ls, err := fencelock.LockAll(t.Context(), l.Mutex("a", fencelock.WithManualRenew()), l.RWMutex("b").RLocker())
		if err != nil {
			t.Fatal(err)
		}
		other := lease(t, fencelock.Reader, l.RWMutex("b").RLock)
		time.Sleep(time.Second)
		d.on("release", refuse(errStore))
		d.on("renew", refuse(errStore))
		wantErr(t, "an outage", ls.Unlock(t.Context()), fencelock.ErrUnavailable)
		d.on("release", nil)
		d.on("renew", nil)
		time.Sleep(3 * ttl)
		wantHeld(t, "the other reader", other)
		unlock(t, other)
	})
}

// wantWanted checks that it is closed within a time.
func wantWanted(t *testing.T, wanted <-chan struct{}, within time.Duration) {
	t.Helper()
	select {
	case <-wanted:
	case <-time.After(within):
		t.Fatalf("it is open after %v", within)
	}
}

// Whoever waits in another process is seen within about a second; a try, and an old waiter, are not.
func TestWanted(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d), open(t, d.other())
		le := lock(t, l.Mutex("x"))
		wanted := le.Wanted()
		_, err := other.Mutex("x").TryLock(t.Context())
		wantErr(t, "TryLock", err, fencelock.ErrLocked)
		_, err = l.Mutex("x").TryLock(t.Context())
		wantErr(t, "TryLock", err, fencelock.ErrLocked)
		time.Sleep(5 * time.Second)
		if closed(wanted) {
			t.Error("it is closed, and nobody waits")
		}
		waiting := background(t.Context(), other.Mutex("x"))
		wantWanted(t, wanted, 1100*time.Millisecond)
		unlock(t, le)
		got := <-waiting
		if closed(got.le.Wanted()) {
			t.Error("the next holder's is closed, and nobody waits")
		}
		unlock(t, got.le)
		ended := lock(t, l.Mutex("x"))
		unlock(t, ended)
		if closed(ended.Wanted()) {
			t.Error("it is closed after the end of a lease that nobody wanted")
		}
	})
}

// Whoever waits in the same process is seen at once, before and after the call.
func TestWantedHere(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("x"))
		wanted := le.Wanted()
		waiting := background(t.Context(), l.Mutex("x"))
		if !closed(wanted) || !closed(le.Wanted()) {
			t.Error("it is open")
		}
		after := lock(t, l.Mutex("y"))
		more := background(t.Context(), l.Mutex("y"))
		if !closed(after.Wanted()) {
			t.Error("it is open, and somebody waited already")
		}
		time.Sleep(3 * time.Second)
		for le, waiting := range map[*fencelock.Lease]<-chan result{le: waiting, after: more} {
			unlock(t, le)
			unlock(t, (<-waiting).le)
		}
		if n := d.count("inspect"); n != 0 {
			t.Errorf("the store was asked %d times, and nobody had to be looked for", n)
		}
	})
}

// Nobody pays for what was not asked for, nor after the end of the lease.
func TestWantedCosts(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le, second := lease(t, fencelock.Permit, l.Semaphore("x", 2).Acquire), lock(t, l.Mutex("y"))
		time.Sleep(10 * time.Second)
		if n := d.count("inspect"); n != 0 {
			t.Fatalf("the store was asked %d times", n)
		}
		beside := lease(t, fencelock.Permit, l.Semaphore("x", 2).Acquire)
		wanted := le.Wanted()
		le.Wanted()
		beside.Wanted()
		time.Sleep(10500 * time.Millisecond)
		if n := d.count("inspect"); n != 10 {
			t.Errorf("in ten seconds the store was asked %d times, want 10", n)
		}
		unlock(t, beside)
		unlock(t, le)
		time.Sleep(10 * time.Second)
		if n := d.count("inspect"); n > 11 {
			t.Errorf("the store was asked %d times after the end", n-10)
		}
		if closed(wanted) {
			t.Error("it is closed, and nobody waited")
		}
		unlock(t, second)
	})
}

// Wanted of many leases costs less than they did.
func TestWantedOfMany(t *testing.T) {
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	l, began := openLoose(t, d), time.Now()
	defer l.Close() // which may not have the time for all on a busy machine
	les := make([]*fencelock.Lease, 20_000)
	for i := range les {
		les[i] = lock(t, l.Mutex(strconv.Itoa(i)))
	}
	locked := time.Since(began)
	for began = time.Now(); len(les) > 0; les = les[1:] {
		les[0].Wanted()
	}
	wantTook(t, "Wanted", began, 0, locked)
}

// A store that hangs holds up neither Close nor the look after it.
func TestWantedBesideAStoreThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := openLoose(t, d), open(t, d.other())
		d.on("inspect", hang)
		le := lock(t, l.Mutex("x"))
		wanted := le.Wanted()
		waiting := background(t.Context(), other.Mutex("x"))
		time.Sleep(10 * time.Second)
		if closed(wanted) {
			t.Error("it is closed, and nobody could tell")
		}
		d.on("inspect", nil)
		wantWanted(t, wanted, 4*time.Second)
		le.Wanted()
		lock(t, l.Mutex("y")).Wanted()
		d.on("inspect", hang)
		time.Sleep(1500 * time.Millisecond)
		began := time.Now()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wantTook(t, "Close", began, 0, 5*time.Second)
		unlock(t, (<-waiting).le)
		synctest.Wait()
	})
}

// looked is a fake whose looks at one name are the test's.
type looked struct {
	*fake
	look func(ctx context.Context, name string) (backend.Info, error)
}

func (d looked) Inspect(ctx context.Context, name string) (backend.Info, error) {
	return d.look(ctx, name)
}

// A store that cannot tell waiters tells of none.
func TestWantedOfAStoreThatCannotTell(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, looked{d, func(_ context.Context, name string) (backend.Info, error) {
			return backend.Info{Name: name, Held: true, Waiters: -1}, nil
		}})
		le := lock(t, l.Mutex("x"))
		wanted := le.Wanted()
		time.Sleep(5 * time.Second)
		if closed(wanted) {
			t.Error("it is closed, and nobody could tell")
		}
		unlock(t, le)
	})
}

// What a look brings after the end of the lease is about the next holder.
func TestWantedOfAnEndedLease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var le *fencelock.Lease
		l := open(t, looked{d, func(_ context.Context, name string) (backend.Info, error) {
			unlock(t, le)
			return backend.Info{Name: name, Held: true, Waiters: 1}, nil
		}})
		le = lock(t, l.Mutex("x"))
		wanted := le.Wanted()
		time.Sleep(2 * time.Second)
		if closed(wanted) {
			t.Error("it is closed")
		}
	})
}

// A name whose look hangs hides nobody who waits for another one, and is looked at again, one look at a time.
func TestWantedBesideANameThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var looks, under atomic.Int64
		l := open(t, looked{d, func(ctx context.Context, name string) (backend.Info, error) {
			if name == "000" {
				looks.Add(1)
				if under.Add(1) > 1 {
					t.Error("two looks at one name at once")
				}
				defer under.Add(-1)
				<-ctx.Done()
			}
			if ctx.Err() != nil {
				return backend.Info{}, ctx.Err()
			}
			info := backend.Info{Name: name, Held: true}
			if name == "069" {
				info.Waiters = 1
			}
			return info, nil
		}})
		var last <-chan struct{}
		for _, name := range numbered(70) {
			last = lock(t, l.Mutex(name)).Wanted()
		}
		wantWanted(t, last, 4*time.Second)
		time.Sleep(10 * time.Second)
		if n := looks.Load(); n < 3 {
			t.Errorf("in more than ten seconds the name was looked at %d times, want 3 at least", n)
		}
	})
}

// Of two who unlock the same leases at once one is told that all were held, also where their ctx has ended.
func TestLeasesAreUnlockedTwiceAtOnce(t *testing.T) {
	l := openLoose(t, newFake(t))
	defer l.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 1000 {
		ctx := []context.Context{t.Context(), ended}[i%2]
		ls, err := l.LockAll(t.Context(), "a", "b", "c", "d")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			wg.Go(func() { errs[i] = ls.Unlock(ctx) })
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), fencelock.ErrReleased) {
			t.Fatalf("got %v, want nil once, and ErrReleased", errs)
		}
	}
}

// Nobody whose ctx has ended waits for another who unlocks the same leases from a store that hangs.
func TestLeasesAreUnlockedTwiceOfAStoreThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		ls := lockAll(t, open(t, d), "a", "b")
		d.on("release", hang)
		first := make(chan error)
		go func() { first <- ls.Unlock(t.Context()) }()
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		wantErr(t, "unlock", ls.Unlock(ended), fencelock.ErrUnavailable)
		wantTook(t, "unlock", start, time.Second, 2*time.Second)
		wantErr(t, "the other", <-first, fencelock.ErrUnavailable)
		d.on("release", nil)
		wantErr(t, "unlock again", ls.Unlock(ended), nil)
	})
}
