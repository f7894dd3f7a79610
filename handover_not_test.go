package fencelock_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// A process that was stopped while the grant was on its way does not pass it on: the store may have forgotten it, and others followed.
func TestNotPassedOnAfterALongStop(t *testing.T) {
	for _, stop := range []time.Duration{900 * time.Millisecond, 1100 * time.Millisecond} {
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
				if stop > time.Second {
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
		for which, has := range map[string][2][]fencelock.Option{"the holder has": {opts, nil}, "the next one has": {nil, opts}} {
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
