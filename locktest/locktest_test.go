package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/locktest"
)

const name = "jobs/nightly"

func try(t *testing.T, l *fencelock.Locker) *fencelock.Lease {
	t.Helper()
	le, err := l.Mutex(name).TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return le
}

// ends checks that a lease, and a context that was made of it, have ended with this loss.
func ends(t *testing.T, le *fencelock.Lease, ctx context.Context, want fencelock.Reason) {
	t.Helper()
	var lost *fencelock.LostError
	if err := le.Err(); !errors.As(err, &lost) || lost.Reason != want {
		t.Errorf("got %v, want the loss %v", err, want)
	}
	if !errors.Is(context.Cause(ctx), fencelock.ErrLost) {
		t.Errorf("got the cause %v, want ErrLost", context.Cause(ctx))
	}
	select {
	case <-le.Done():
	default:
		t.Error("Done is open")
	}
}

// A loss is there when the call returns, and costs no time. In real time.
func TestLoss(t *testing.T) {
	for want, lose := range map[fencelock.Reason]func(*locktest.Store, string){
		fencelock.Revoked: (*locktest.Store).Lose,
		fencelock.Expired: (*locktest.Store).Expire,
	} {
		fastest := time.Hour
		for range 10 {
			began := time.Now()
			store := locktest.New(t)
			le := try(t, store.Locker(t, fencelock.WithGrace(time.Minute)))
			ctx, cancel := le.Context(t.Context())
			defer cancel()
			store.AssertHeld(t, name)
			lose(store, name)
			ends(t, le, ctx, want)
			store.AssertFree(t, name)
			if err := le.Unlock(t.Context()); !errors.Is(err, fencelock.ErrLost) {
				t.Errorf("unlock: got %v, want ErrLost", err)
			}
			fastest = min(fastest, time.Since(began))
		}
		if fastest > 10*time.Millisecond {
			t.Errorf("%v: took %v, want less than 10 ms", want, fastest)
		}
	}
}

// The lock that was lost goes to the one who waits for it, who is no victim of it.
func TestLossServesTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		first := try(t, store.Locker(t))
		other := store.Locker(t)
		got := make(chan *fencelock.Lease)
		go func() {
			le, err := other.Mutex(name).Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- le
		}()
		synctest.Wait()
		store.Expire(name)
		if first.Err() == nil {
			t.Error("the first holder was not told")
		}
		next := <-got
		synctest.Wait() // the first one's Locker has cleaned up
		if next.Err() != nil || next.Token() != 2 {
			t.Errorf("got %v and token %d, want a lease with token 2", next.Err(), next.Token())
		}
		store.AssertHeld(t, name)
	})
}

func TestTokens(t *testing.T) {
	store := locktest.New(t)
	locks := store.Locker(t)
	var waiters sync.WaitGroup
	seen := make(chan fencelock.Token, 8)
	for range cap(seen) {
		waiters.Go(func() {
			le, err := locks.Mutex(name).Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			seen <- le.Token()
			if err := le.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	waiters.Wait()
	for want := range fencelock.Token(8) {
		if got := <-seen; got != want+1 {
			t.Errorf("got token %d, want %d", got, want+1)
		}
	}
	le, err := locks.Mutex("another", fencelock.WithFloor(41)).Lock(t.Context())
	if err != nil || le.Token() != 42 {
		t.Errorf("got %v, %v, want token 42, after the floor", le, err)
	}
	if got := try(t, store.Locker(t)).Token(); got != 43 {
		t.Errorf("got token %d, want 43", got)
	}
}

func TestHold(t *testing.T) {
	store := locktest.New(t)
	locks := store.Locker(t)
	free := store.Hold(name)
	store.AssertHeld(t, name)
	if _, err := locks.Mutex(name).TryLock(t.Context()); !errors.Is(err, fencelock.ErrLocked) {
		t.Errorf("got %v, want ErrLocked", err)
	}
	free()
	store.AssertFree(t, name)
	le := try(t, locks)
	free()
	if le.Err() != nil || le.Token() != 2 {
		t.Errorf("got %v, token %d, want token 2: somebody else had the first", le.Err(), le.Token())
	}
	if err := le.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	defer store.Hold(name)()
	store.Lose(name)
	store.AssertFree(t, name)
}

func TestHoldInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		locks := store.Locker(t)
		time.AfterFunc(time.Hour, store.Hold(name))
		began := time.Now()
		if _, err := locks.Mutex(name).Lock(t.Context()); err != nil {
			t.Error(err)
		}
		if got := time.Since(began); got != time.Hour {
			t.Errorf("waited for %v, want until it was freed", got)
		}
	})
}

// An outage ends what a lease is trusted for, and nothing else, in virtual time.
func TestOutage(t *testing.T) {
	for _, tt := range []struct {
		name string
		d    time.Duration
		lost bool
	}{
		{"of a moment", 15 * time.Second, false},
		{"beyond the deadline", time.Minute, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := locktest.New(t)
				locks := store.Locker(t)
				le := try(t, locks)
				store.Outage(tt.d)
				if err := le.Renew(t.Context()); !errors.Is(err, fencelock.ErrUnavailable) {
					t.Errorf("renew: got %v, want ErrUnavailable", err)
				}
				_, err := locks.Inspect(t.Context(), name)
				if !errors.Is(err, fencelock.ErrUnavailable) {
					t.Errorf("inspect: got %v, want ErrUnavailable", err)
				}
				_, err = locks.Mutex("another").TryLock(t.Context())
				if !errors.Is(err, fencelock.ErrUnavailable) {
					t.Errorf("trylock: got %v, want ErrUnavailable", err)
				}
				time.Sleep(tt.d)
				if got := le.Err() != nil; got != tt.lost {
					t.Fatalf("got %v after the outage, want lost: %v", le.Err(), tt.lost)
				}
				if tt.lost {
					ends(t, le, leaseContext(t, le), fencelock.Expired)
				} else if err := le.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func leaseContext(t *testing.T, le *fencelock.Lease) context.Context {
	t.Helper()
	ctx, cancel := le.Context(t.Context())
	t.Cleanup(cancel)
	return ctx
}

// A Lock rides out a short outage, also one that begins while it waits, and keeps its place.
func TestOutageDuringAWait(t *testing.T) {
	for _, tt := range []struct {
		name string
		d    time.Duration
		want error
	}{
		{"short", 3 * time.Second, nil},
		{"long", time.Minute, fencelock.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := locktest.New(t)
				free := store.Hold(name)
				first, second := store.Locker(t), store.Locker(t)
				done := make(chan error, 1)
				var order []string
				go func() {
					le, err := first.Mutex(name).Lock(t.Context())
					if err == nil {
						order = append(order, "first")
						err = le.Unlock(t.Context())
					}
					done <- err
				}()
				time.Sleep(time.Second)
				behind := make(chan error, 1)
				go func() {
					le, err := second.Mutex(name).Lock(t.Context())
					if err == nil {
						order = append(order, "second")
						err = le.Unlock(t.Context())
					}
					behind <- err
				}()
				synctest.Wait()
				store.Outage(tt.d)
				free() // while nobody hears of it
				for what, err := range map[string]error{"the first": <-done, "the second": <-behind} {
					if !errors.Is(err, tt.want) {
						t.Errorf("%s: got %v, want %v", what, err, tt.want)
					}
				}
				if got := strings.Join(order, " "); tt.want == nil && got != "first second" {
					t.Errorf("got the order %q, want first second", got)
				}
			})
		})
	}
}

func TestOutageIsEndedOrReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		locks := store.Locker(t)
		store.Outage(time.Hour)
		_, err := locks.Mutex(name).TryLock(t.Context())
		if !errors.Is(err, fencelock.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = locks.Mutex(name).Lock(ctx)
		if !errors.Is(err, fencelock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait that its ctx ended: got %v, want ErrUnavailable and the ctx's error", err)
		}
		store.Outage(0)
		try(t, locks)
		store.Outage(time.Hour) // Close of the Locker does not suffer from it
	})
}

func TestLease(t *testing.T) {
	le := locktest.Lease(t, name, fencelock.WithOwner("me"))
	if le.Err() != nil || le.Name() != name || le.Token() != 1 || le.Owner() != "me" {
		t.Errorf("got %v, %q, token %d, owner %q", le.Err(), le.Name(), le.Token(), le.Owner())
	}
	if err := le.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	synctest.Test(t, func(t *testing.T) {
		le := locktest.Lease(t, name)
		time.Sleep(time.Hour)
		if le.Err() != nil {
			t.Errorf("got %v after an hour, want a lease that is renewed", le.Err())
		}
	})
}

// recorder is a test that fails without ending this one.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(r)
}

func (r *recorder) Fatal(args ...any) {
	r.Errorf("%s", fmt.Sprint(args...))
	panic(r)
}

func TestFailures(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t testing.TB, s *locktest.Store)
		want string
	}{
		{"Lose", func(_ testing.TB, s *locktest.Store) {
			s.Lose("x")
		}, `locktest: Lose("x"): nobody holds this lock`},
		{"Expire", func(_ testing.TB, s *locktest.Store) {
			s.Expire("x")
		}, `locktest: Expire("x"): nobody holds this lock`},
		{"Hold", func(_ testing.TB, s *locktest.Store) {
			s.Hold("x")
			s.Hold("x")
		}, `locktest: Hold("x"): locked by another holder: locktest: somebody else`},
		{"Hold of a bad name", func(_ testing.TB, s *locktest.Store) {
			s.Hold("")
		}, "locktest: Hold: invalid"},
		{"AssertHeld", func(t testing.TB, s *locktest.Store) {
			s.AssertHeld(t, "x")
		}, `locktest: "x" is free, want it held`},
		{"AssertFree", func(t testing.TB, s *locktest.Store) {
			s.Hold("x")
			s.AssertFree(t, "x")
		}, `locktest: "x" is held by locktest: somebody else with token 1, want it free`},
		{"Locker", func(t testing.TB, s *locktest.Store) {
			s.Locker(t, fencelock.WithTTL(-1))
		}, "WithTTL"},
		{"Lease", func(t testing.TB, _ *locktest.Store) {
			locktest.Lease(t, "x", fencelock.WithTTL(-1))
		}, "WithTTL"},
	} {
		r := &recorder{TB: t}
		func() {
			defer func() {
				if p := recover(); p != nil && p != r {
					panic(p)
				}
			}()
			tt.do(r, locktest.New(r))
		}()
		if got := strings.Join(r.said, "\n"); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
