package fencelock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// A process that was stopped while the grant was on its way does not pass it on: the store may have
// forgotten it, and others followed.
func TestNotPassedOnAfterALongStop(t *testing.T) {
	for _, stop := range []time.Duration{90 * time.Millisecond, 110 * time.Millisecond} {
		t.Run(stop.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				first := lock(t, l.Mutex("n"))
				d.on("acquire", func(c call) error {
					err := c.apply()
					time.Sleep(stop)
					return err
				})
				second := background(t.Context(), l.Mutex("n"))
				unlock(t, first)
				le := want(t, second)
				d.on("acquire", nil)
				third := background(t.Context(), l.Mutex("n"))
				unlock(t, le)
				unlock(t, want(t, third))
				calls := 2
				if stop > 100*time.Millisecond {
					calls = 3
				}
				if n := d.count("acquire"); n != calls {
					t.Errorf("got %d calls of Acquire, want %d", n, calls)
				}
			})
		})
	}
}

// What counts is when the store was asked for the lock, not when the session under it was confirmed.
func TestPassedOnUnderAnOldSession(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(time.Minute))
		long := backend.Now()
		time.Sleep(10 * time.Second)
		for sent, calls := range map[bool]int{true: 2, false: 3} {
			before := d.count("acquire")
			d.grant = func(g *backend.Grant) {
				g.Asked = long
				if sent {
					g.Sent = long.Elapsed()
				}
			}
			first := lock(t, l.Mutex("n"))
			second := background(t.Context(), l.Mutex("n"))
			unlock(t, first)
			le := want(t, second)
			third := background(t.Context(), l.Mutex("n"))
			unlock(t, le)
			unlock(t, want(t, third))
			if n := d.count("acquire") - before; n != calls {
				t.Errorf("sent a moment ago: %v: got %d calls of Acquire, want %d", sent, n, calls)
			}
		}
	})
}

func TestNotPassedOn(t *testing.T) {
	other := map[string][]fencelock.Option{
		"another TTL":     {fencelock.WithTTL(2 * ttl)},
		"another owner":   {fencelock.WithOwner("somebody")},
		"a grace":         {fencelock.WithGrace(time.Second)},
		"renewal by hand": {fencelock.WithManualRenew()},
		"a bounded hold":  {fencelock.WithMaxHold(time.Minute)},
	}
	for name, opts := range other {
		for which, has := range map[string][2][]fencelock.Option{
			"the holder has": {opts, nil}, "the next one has": {nil, opts},
		} {
			t.Run(which+" "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, d *fake) {
					notPassedOn(t, d, has[0], func(fencelock.Token) []fencelock.Option { return has[1] })
				})
			})
		}
	}
	t.Run("the next one has a floor", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *fake) {
			notPassedOn(t, d, nil, func(before fencelock.Token) []fencelock.Option {
				return []fencelock.Option{fencelock.WithFloor(before + 1)}
			})
		})
	})
	t.Run("the holder's handle was asked for", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d)
			le, _ := passed(t, l, "n")
			_ = le.Handle() // with which it may have sent what the store takes for as long as the hold is there
			calls, next := d.count("release"), background(t.Context(), l.Mutex("n"))
			unlock(t, le)
			unlock(t, want(t, next))
			if got := d.count("release") - calls; got != 2 {
				t.Errorf("got %d calls of Release, want 2", got)
			}
		})
	})
	t.Run("a renewal is in flight", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d)
			before, _ := passed(t, l, "n")
			d.on("renew", slowBack(time.Second))
			var wg sync.WaitGroup
			wg.Go(func() { _ = before.Renew(t.Context()) })
			next := background(t.Context(), l.Mutex("n"))
			calls := d.count("release")
			unlock(t, before)
			le := want(t, next)
			wg.Wait()
			if got := d.count("release") - calls; got != 1 {
				t.Errorf("got %d calls of Release, want 1", got)
			}
			unlock(t, le)
		})
	})
	t.Run("its own Locker breaks it", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d)
			first := lock(t, l.Mutex("n"))
			second := background(t.Context(), l.Mutex("n"))
			unlock(t, first)
			le := want(t, second) // granted by the store, with a reserve
			gate := make(chan struct{})
			d.on("break", until(gate))
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := l.Break(t.Context(), "n"); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // the Break is on its way, and who comes now would be the heir
			next, calls := background(t.Context(), l.Mutex("n")), d.count("release")
			unlock(t, le)
			if got := d.count("release") - calls; got != 1 {
				t.Errorf("got %d calls of Release, want 1", got)
			}
			close(gate)
			wg.Wait()
			_ = want(t, next).Unlock(t.Context()) // it may be the one that is broken
		})
	})
	t.Run("another lease is on the hold", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d, fencelock.WithReentrancy())
			before, _ := passed(t, l, "n")
			inner, err := l.Mutex("n").Lock(carry(t, t.Context(), before))
			if err != nil {
				t.Fatal(err)
			}
			next := background(t.Context(), l.Mutex("n"))
			unlock(t, before)
			synctest.Wait()
			if len(next) != 0 {
				t.Fatal("the lock was passed on while a lease on it was held")
			}
			unlock(t, inner)
			if le := want(t, next); le.Token() != inner.Token()+1 {
				t.Errorf("got the token %d after %d, want the next", le.Token(), inner.Token())
			}
		})
	})
	t.Run("the store reserved nothing", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *fake) {
			d.grant = func(g *backend.Grant) { g.Reserved = 0 }
			l := open(t, d)
			passed(t, l, "n")
			if a := d.count("acquire"); a != 3 {
				t.Errorf("got %d calls of Acquire, want 3", a)
			}
		})
	})
}

// notPassedOn checks that a lock held with one set of options goes to a waiter with others by way of the store.
func notPassedOn(t *testing.T, d *fake, opts []fencelock.Option, next func(before fencelock.Token) []fencelock.Option) {
	t.Helper()
	l := open(t, d)
	first := lock(t, l.Mutex("n", opts...))
	second := background(t.Context(), l.Mutex("n", opts...))
	unlock(t, first)
	before := want(t, second)
	calls := d.count("release")
	third := background(t.Context(), l.Mutex("n", next(before.Token())...))
	unlock(t, before)
	after := want(t, third)
	if got := d.count("release") - calls; got != 1 {
		t.Errorf("got %d calls of Release, want 1", got)
	}
	if after.Token() <= before.Token() {
		t.Errorf("got the token %d after %d", after.Token(), before.Token())
	}
}

// A holder that has not heard of a Break passes nothing on: another process may have the lock by
// then, with a higher token.
func TestNotPassedOnAfterABreak(t *testing.T) {
	for _, unlocksFirst := range []bool{false, true} {
		bubble(t, func(t *testing.T, d *fake) {
			d.deaf = true // the holder hears of a Break within Traits.Revoked only
			l, other := open(t, d), open(t, d.other())
			first := lock(t, l.Mutex("n"))
			second := background(t.Context(), l.Mutex("n"))
			unlock(t, first)
			le := want(t, second) // granted by the store, with a reserve
			third := background(t.Context(), l.Mutex("n"))
			if unlocksFirst {
				unlock(t, le)
				le = want(t, third)
				third = background(t.Context(), l.Mutex("n"))
			}
			if err := other.Break(t.Context(), "n"); err != nil {
				t.Fatal(err)
			}
			wantErr(t, "unlock after the Break", le.Unlock(t.Context()), fencelock.ErrLost)
			theirs := background(t.Context(), other.Mutex("n"))
			next := want(t, third)
			if next.Token() <= le.Token() {
				t.Errorf("got the token %d after %d", next.Token(), le.Token())
			}
			unlock(t, next)
			if le := want(t, theirs); le.Token() <= next.Token() {
				t.Errorf("got the token %d after %d", le.Token(), next.Token())
			}
		})
	}
}

// A Break that is given up while it waits breaks nothing.
func TestBreakEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, le := open(t, d), lock(t, open(t, d.other()).Mutex("n"))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		wantErr(t, "break", l.Break(ctx, "n"), context.DeadlineExceeded)
		wantHeld(t, "the lease", le)
	})
}

// Break does not wait for a lock that changes hands at each look, for one of its own Locker, nor for a stranger's.
func TestBreakWaitsForNoMoreThanAReserve(t *testing.T) {
	tests := map[string]struct {
		least, most time.Duration
		held        func(t *testing.T, l *fencelock.Locker, d *fake)
	}{
		"free":            {0, 0, func(*testing.T, *fencelock.Locker, *fake) {}},
		"held by its own": {0, 0, func(t *testing.T, l *fencelock.Locker, _ *fake) { lock(t, l.Mutex("n")) }},
		"held by another": {
			100 * time.Millisecond, 110 * time.Millisecond,
			func(t *testing.T, _ *fencelock.Locker, d *fake) {
				lock(t, open(t, d.other()).Mutex("n"))
			},
		},
		"in another's use": {100 * time.Millisecond, 500 * time.Millisecond, inUse},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				tt.held(t, l, d)
				start := time.Now()
				if err := l.Break(t.Context(), "n"); err != nil {
					t.Fatal(err)
				}
				wantTook(t, "break", start, tt.least, tt.most)
			})
		})
	}
}

// inUse makes another Locker lock and unlock n for a second, one millisecond each time.
func inUse(t *testing.T, _ *fencelock.Locker, d *fake) {
	other := open(t, d.other())
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			le, err := other.Mutex("n").Lock(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Millisecond)
			// it may be broken
			if err := le.Unlock(context.Background()); err != nil &&
				!errors.Is(err, fencelock.ErrLost) {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() { stop.Store(true); wg.Wait() })
	synctest.Wait()
}
