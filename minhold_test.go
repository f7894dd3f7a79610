package fencelock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// A job that is faster than the clocks of three pods agree runs on one of them, whether the pods
// live on or end with it.
func TestMinHoldRunsOnce(t *testing.T) {
	for name, exits := range map[string]bool{"pods that live on": false, "pods that end": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				runs := 0
				for range 3 {
					l := openLoose(t, d.other(), fencelock.WithMinHold(time.Second))
					le, err := l.Mutex("cron").TryLock(t.Context())
					if err == nil {
						runs++
						time.Sleep(10 * time.Millisecond) // the job
						unlock(t, le)
					}
					if exits {
						if err := l.Close(); err != nil {
							t.Error(err)
						}
					} else {
						defer l.Close()
					}
					time.Sleep(50 * time.Millisecond) // so much later is the next pod's clock
				}
				synctest.Wait()
				if runs != 1 {
					t.Errorf("it ran %d times, want once", runs)
				}
			})
		})
	}
}

const least = 4 * time.Second

// wantAfter checks that a Lock was granted so long after a moment.
func wantAfter(t *testing.T, r result, since time.Time, after time.Duration) {
	t.Helper()
	if got := r.at.Sub(since); r.err != nil || got != after {
		t.Fatalf("got %v after %v, want the lock after %v", r.err, got, after)
	}
}

// Unlock ends the lease at once. All others are kept out until the time is over, and not longer.
func TestMinHoldKeepsOthersOut(t *testing.T) {
	for name, opts := range map[string][]fencelock.Option{
		"renewed": nil, "renewed by hand": {fencelock.WithManualRenew()},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var seen record
				opts := append(opts, fencelock.WithMinHold(least), fencelock.WithObserver(&seen))
				l, other := open(t, d, opts...), open(t, d.other())
				le := lock(t, l.Mutex("n"))
				granted := time.Now()
				inside := background(t.Context(), l.Mutex("n"))
				outside := background(t.Context(), other.Mutex("n"))
				time.Sleep(time.Second)
				began := time.Now()
				unlock(t, le)
				wantTook(t, "Unlock", began, 0, 0)
				wantErr(t, "after it", le.Err(), fencelock.ErrReleased)
				wantErr(t, "Unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
				wantErr(t, "Renew", le.Renew(t.Context()), fencelock.ErrReleased)
				if !closed(le.Done()) {
					t.Error("Done is open after Unlock")
				}
				_, err := l.Mutex("n").TryLock(t.Context())
				wantErr(t, "a try in this process", err, fencelock.ErrLocked)
				_, err = other.Mutex("n").TryLock(t.Context())
				wantErr(t, "a try in another", err, fencelock.ErrLocked)
				info, err := other.Inspect(t.Context(), "n")
				if err != nil || info.Owner != le.Owner() || info.Token != le.Token() {
					t.Errorf("inspect: got %+v, %v, want the old holder", info, err)
				}
				first := <-inside
				wantAfter(t, first, granted, least)
				unlock(t, first.le) // at once: to be kept for as long again
				second := <-outside
				wantAfter(t, second, first.at, least)
				unlock(t, second.le)
				if n := len(seen.of(fencelock.CleanedUp)); n != 0 {
					t.Errorf("got %d events of clean-ups, want none: nothing was unwanted", n)
				}
			})
		})
	}
}

// A job that takes longer than the time is released as ever, at once.
func TestMinHoldIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithMinHold(least))
		le := lock(t, l.Mutex("n"))
		time.Sleep(least)
		unlock(t, le)
		wantFree(t, l, "n")
		if n, m := d.count("release"), d.count("abandon"); n != 1 || m != 0 {
			t.Errorf("got %d releases and %d clean-ups, want one release", n, m)
		}
		le = lock(t, l.Mutex("n", fencelock.WithMinHold(0)))
		unlock(t, le)
		wantFree(t, l, "n")
	})
}

// Close leaves the rest to the store's expiry: of a lease that it ends and of one that was unlocked.
func TestMinHoldAtClose(t *testing.T) {
	for name, unlocked := range map[string]bool{"unlocked": true, "held": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, other := openLoose(t, d, fencelock.WithMinHold(ttl)), open(t, d.other())
				le := lock(t, l.Mutex("n"))
				granted := time.Now()
				waiter := background(t.Context(), other.Mutex("n"))
				time.Sleep(time.Second)
				if unlocked {
					unlock(t, le)
				}
				began := time.Now()
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				wantTook(t, "Close", began, 0, 0)
				wantErr(t, "the lease", le.Err(), fencelock.ErrReleased)
				next := <-waiter
				if next.err != nil {
					t.Fatal(next.err)
				}
				kept := next.at.Sub(granted) // at most until the TTL after Unlock
				if most := ttl + time.Second; kept < ttl || kept > most {
					t.Errorf("others were kept out for %v, want %v to %v", kept, ttl, most)
				}
				unlock(t, next.le)
			})
		})
	}
}

// A lease that is lost before the time is over keeps others out for as long.
func TestMinHoldOfALostLease(t *testing.T) {
	for _, tt := range []struct {
		name  string
		least time.Duration
		opts  []fencelock.Option
		want  fencelock.Reason
	}{
		{"MaxHold", least, []fencelock.Option{fencelock.WithMaxHold(time.Second)}, fencelock.MaxHold},
		{"its deadline passed", ttl + 5*time.Second, []fencelock.Option{
			fencelock.WithManualRenew(), fencelock.WithGrace(5 * time.Second),
		}, fencelock.Expired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, append(tt.opts, fencelock.WithMinHold(tt.least))...)
				other := open(t, d.other())
				le := lock(t, l.Mutex("n"))
				began := time.Now()
				next := <-background(t.Context(), other.Mutex("n"))
				wantAfter(t, next, began, tt.least)
				wantLost(t, "the first", le, tt.want)
				unlock(t, next.le)
			})
		})
	}
}

// What Unlock says is the store's word, as without WithMinHold.
func TestMinHoldUnlockOfALostLock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.deaf = true // the loss is not pushed
		l, other := open(t, d, fencelock.WithMinHold(least)), open(t, d.other())
		le := lock(t, l.Mutex("n"))
		if err := other.Break(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		next := lock(t, other.Mutex("n"))
		wantErr(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrLost)
		wantLost(t, "the lease", le, fencelock.Revoked)
		time.Sleep(2 * least) // whatever the engine cleans up
		wantHeld(t, "the next", next)
		unlock(t, next)
	})
}

// Break frees what is kept at once, and what comes after that touches nobody.
func TestMinHoldIsBroken(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d, fencelock.WithMinHold(least)), open(t, d.other())
		unlock(t, lock(t, l.Mutex("n")))
		if err := other.Break(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		next, err := other.Mutex("n").TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * least)
		wantHeld(t, "the next", next)
		unlock(t, next)
	})
}

// An Unlock that the store does not answer may be called again.
func TestMinHoldUnlockInAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, other := open(t, d, fencelock.WithMinHold(least)), open(t, d.other())
		le := lock(t, l.Mutex("n"))
		granted := time.Now()
		d.on("renew", func(call) error { return errors.New("no answer") })
		wantErr(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
		wantHeld(t, "after it", le)
		d.on("renew", nil)
		time.Sleep(time.Second)
		unlock(t, le)
		next := <-background(t.Context(), other.Mutex("n"))
		wantAfter(t, next, granted, least)
		unlock(t, next.le)
	})
}

// The driver has one call about a request at a time: Unlock waits for a renewal that is under way.
func TestMinHoldUnlockDuringARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithMinHold(ttl))
		le := lock(t, l.Mutex("n"))
		go func() {
			d.on("renew", func(c call) error {
				time.Sleep(time.Second)
				return c.apply()
			})
			wantErr(t, "Renew", le.Renew(t.Context()))
		}()
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		unlock(t, le)
		wantTook(t, "Unlock", began, 1500*time.Millisecond, 1500*time.Millisecond)
		d.on("renew", func(c call) error { // which hangs
			<-c.ctx.Done()
			return c.ctx.Err()
		})
		le = lock(t, l.Mutex("m"))
		go func() { wantErr(t, "Renew", le.Renew(t.Context()), fencelock.ErrUnavailable) }()
		time.Sleep(500 * time.Millisecond)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		wantErr(t, "Unlock", le.Unlock(over), fencelock.ErrUnavailable)
		wantTook(t, "Unlock of a ctx that is over", began, time.Second, time.Second)
		time.Sleep(ttl)
	})
}

func TestMinHoldReentrant(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithMinHold(least), fencelock.WithReentrancy())
		outer := lock(t, l.Mutex("n"))
		granted := time.Now()
		ctx, cancel := outer.Context(t.Context())
		defer cancel()
		inner, err := l.Mutex("n").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, outer)
		time.Sleep(time.Second)
		wantHeld(t, "the inner", inner)
		unlock(t, inner)
		next := <-background(t.Context(), l.Mutex("n"))
		wantAfter(t, next, granted, least)
	})
}

// What the second Mutex says of the hold counts for nothing.
func TestReentrantHasTheFirstOnesOptions(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithReentrancy())
		outer := lock(t, l.Mutex("n"))
		ctx, cancel := outer.Context(t.Context())
		defer cancel()
		inner, err := l.Mutex("n", fencelock.WithTTL(time.Hour), fencelock.WithGrace(time.Minute),
			fencelock.WithMaxHold(time.Second), fencelock.WithMinHold(least)).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !inner.Deadline().Equal(outer.Deadline()) {
			t.Errorf("the deadline of the second is %v, want %v", inner.Deadline(), outer.Deadline())
		}
		time.Sleep(10 * time.Second)
		wantHeld(t, "the second", inner)
		unlock(t, inner)
		unlock(t, outer)
		next, err := l.Mutex("n").TryLock(t.Context())
		if err != nil {
			t.Fatalf("after both: %v", err)
		}
		unlock(t, next)
	})
}

// A lock that is to be kept is not passed on within the process, nor does it come from there: the
// store counts from its own grant.
func TestMinHoldIsNotPassedOn(t *testing.T) {
	for name, keeps := range map[string]int{"from it": 1, "to it": 2} {
		kept := map[int]time.Duration{1: least}[keeps]
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				m := []fencelock.Mutex{l.Mutex("n"), l.Mutex("n"), l.Mutex("n")}
				m[keeps] = l.Mutex("n", fencelock.WithMinHold(least))
				first := lock(t, m[0])
				second := background(t.Context(), m[1])
				unlock(t, first)
				le := want(t, second) // with a reserve: it could be passed on
				granted := time.Now()
				third := background(t.Context(), m[2])
				unlock(t, le)
				last := <-third
				if n := d.count("acquire"); n != 3 {
					t.Errorf("got %d calls of Acquire, want 3: nothing is passed on", n)
				}
				wantAfter(t, last, granted, kept)
				unlock(t, last.le)
			})
		})
	}
}

// The store's own lease for the lock is not one that Close ends with others.
func TestMinHoldIsNoSharedLease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.watch = func(r *backend.Request) {
			if want := r.Name == "plain"; r.Auto != want {
				t.Errorf("%s: got Auto %v, want %v", r.Name, r.Auto, want)
			}
		}
		l := open(t, d)
		unlock(t, lock(t, l.Mutex("plain")))
		unlock(t, lock(t, l.Mutex("kept", fencelock.WithMinHold(least))))
	})
}

func TestMinHoldValues(t *testing.T) {
	d := newFake(t)
	l := openLoose(t, d)
	t.Cleanup(func() { _ = l.Close() })
	for _, tt := range []struct {
		opts []fencelock.Option
		want error
		says string
	}{
		{[]fencelock.Option{fencelock.WithMinHold(-1)}, fencelock.ErrInvalid, "want 0s to 8760h0m0s"},
		{[]fencelock.Option{fencelock.WithMinHold(366 * 24 * time.Hour)}, fencelock.ErrInvalid, "want 0s to 8760h0m0s"},
		{
			[]fencelock.Option{fencelock.WithMinHold(ttl + 1)},
			fencelock.ErrInvalid,
			"WithMinHold(10.000000001s): want at most the TTL and the grace together, which are 10s",
		},
		{[]fencelock.Option{fencelock.WithMinHold(ttl)}, nil, ""},
		{[]fencelock.Option{fencelock.WithMinHold(ttl + time.Second), fencelock.WithGrace(time.Second)}, nil, ""},
		{[]fencelock.Option{fencelock.WithMinHold(2 * ttl), fencelock.WithTTL(2 * ttl)}, nil, ""},
		{[]fencelock.Option{fencelock.WithMinHold(2 * ttl), fencelock.WithMinHold(0)}, nil, ""},
	} {
		le, err := l.Mutex("n", tt.opts...).TryLock(t.Context())
		wantErr(t, "a try", err, tt.want)
		if err == nil {
			if tt.want != nil {
				t.Errorf("got a lease, want %v", tt.want)
			}
			unlock(t, le)
			if err := l.Break(t.Context(), "n"); err != nil {
				t.Fatal(err)
			}
		} else if !strings.Contains(err.Error(), tt.says) {
			t.Errorf("got %q, want it to say %q", err, tt.says)
		}
	}
	for _, name := range []string{"zookeeper", "postgres-row"} {
		d := newFake(t)
		d.traits = func(tr *backend.Traits) { *tr = backend.TraitsOf(name) }
		_, err := fencelock.New(d, fencelock.WithMinHold(least))
		wantErr(t, name, err, fencelock.ErrUnsupported)
		const says = "frees a lock when its holder's connection ends (WithMinHold): " +
			"want one of memory, file, redis, redlock, etcd, postgres-lease"
		if err == nil || !strings.Contains(err.Error(), name+" "+says) {
			t.Errorf("got %v, want it to say %q", err, says)
		}
	}
}
