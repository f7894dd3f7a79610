package fencelock_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/fencelock/fencelock"
)

func TestUnlockWithADoneContext(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", slowThere(900*time.Millisecond))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := le.Unlock(ctx); err != nil {
			t.Errorf("unlock: %v", err)
		}
		wantFree(t, l, "n")
	})
}

func TestUnlockIsBounded(t *testing.T) {
	cause := errors.New("the cause")
	tests := map[string]struct {
		after time.Duration // when ctx ends
		took  time.Duration
		want  []error
	}{
		"ctx done before": {0, time.Second, []error{fencelock.ErrUnavailable, context.Canceled, cause}},
		"ctx done early": {
			300 * time.Millisecond, time.Second,
			[]error{fencelock.ErrUnavailable, context.Canceled, cause},
		},
		"ctx done late": {
			2 * time.Second, 2 * time.Second,
			[]error{fencelock.ErrUnavailable, context.Canceled, cause},
		},
		"ctx done after that": {time.Hour, 5 * time.Second, []error{fencelock.ErrUnavailable}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithTTL(time.Hour))
				le := lock(t, l.Mutex("n"))
				d.on("release", hang)
				ctx, cancel := context.WithCancelCause(t.Context())
				timer := time.AfterFunc(tt.after, func() { cancel(cause) })
				defer timer.Stop()
				defer cancel(nil)
				synctest.Wait()
				start := time.Now()
				err := le.Unlock(ctx)
				wantErr(t, "unlock", err, tt.want...)
				wantTook(t, "unlock", start, tt.took, tt.took)
				wantHeld(t, "after it", le)
				d.on("release", nil)
				unlock(t, le)
			})
		})
	}
}

// A ctx that ended with another lease says nothing of this one.
func TestContextThatEndedWithAnotherLease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithManualRenew())
		other, le := lock(t, l.Mutex("other")), lock(t, l.Mutex("n"))
		ctx := carry(t, t.Context(), other)
		d.on("renew", func(c call) error {
			unlock(t, other)
			return hang(c)
		})
		for range 2 { // it ends during the call and before it
			err := le.Renew(ctx)
			wantErr(t, "renew", err, context.Canceled)
			wantNot(t, "renew", err, fencelock.ErrReleased)
		}
		d.on("release", hang)
		err := le.Unlock(ctx)
		wantErr(t, "unlock", err, fencelock.ErrUnavailable, context.Canceled)
		wantNot(t, "unlock", err, fencelock.ErrReleased)
		d.on("release", nil)
		unlock(t, le)
	})
}

// An answer of the store is not hidden by the end of the ctx, with which Unlock works.
func TestUnlockWithADoneContextShowsTheAnswer(t *testing.T) {
	for _, answer := range []error{
		errStore, fencelock.ErrUnavailable, fencelock.ErrInvalid, fencelock.ErrUnsupported,
		fencelock.ErrLost,
	} {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d)
			le := lock(t, l.Mutex("n"))
			d.on("release", first(1, refuse(answer)))
			done, cancel := context.WithCancel(t.Context())
			cancel()
			wantErr(t, "unlock", le.Unlock(done), answer)
		})
	}
}

func TestUnlockWhenTheStoreIsDown(t *testing.T) {
	tests := map[string]step{"down": refuse(errStore), "lost reply": loseReply}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				le := lock(t, l.Mutex("n"))
				time.Sleep(ttl / 2)
				renewals := d.count("renew")
				d.on("release", s)
				for range 2 {
					err := le.Unlock(t.Context())
					wantErr(t, "unlock", err, fencelock.ErrUnavailable, errStore)
					if got := opErrors(err); got != 1 {
						t.Errorf("got %d OpErrors in %v, want 1", got, err)
					}
				}
				time.Sleep(ttl / 2)
				wantHeld(t, "after the failed unlock, before its deadline", le)
				wantErr(t, "renew after the failed unlock", le.Renew(t.Context()), fencelock.ErrReleased)
				if got := d.count("renew"); got != renewals {
					t.Errorf("got %d renewals after Unlock was called", got-renewals)
				}
				d.on("release", nil)
				unlock(t, le)
				wantErr(t, "a third unlock", le.Unlock(t.Context()), fencelock.ErrReleased)
				wantFree(t, l, "n")
			})
		})
	}
}

func TestUnlockFailedAndNotCalledAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", refuse(errStore))
		start := time.Now()
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
		<-le.Done()
		wantTook(t, "the lease, which is not renewed any more", start, trusted, trusted)
		wantLost(t, "at the deadline", le, fencelock.Expired)
		wantErr(t, "unlock after the loss", le.Unlock(t.Context()), fencelock.ErrLost)
	})
}

// After an Unlock without an answer the loss of the lock is no news: the release may have caused
// it. What became of the lock the next Unlock learns from the store, whichever way it was freed.
func TestBrokenAfterAFailedUnlock(t *testing.T) {
	for what, tt := range map[string]struct {
		release func(call) error
		want    []error
	}{
		"it was not applied": {refuse(errStore), []error{fencelock.ErrLost}},
		"it was applied":     {loseReply, nil},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				a, b := open(t, d), open(t, d.other())
				le := lock(t, a.Mutex("n"))
				d.on("release", tt.release)
				wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable)
				for _, l := range []*fencelock.Locker{b, a} {
					if err := l.Break(t.Context(), "n"); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(a.Traits().Revoked)
				d.on("release", nil)
				err := le.Unlock(t.Context())
				wantErr(t, "unlock again", err, tt.want...)
				if got := err == nil; got != (tt.want == nil) {
					t.Errorf("unlock again: got %v, want %v", err, tt.want)
				}
				if !closed(le.Done()) {
					t.Error("Done is open")
				}
			})
		})
	}
}

func TestUnlockOfALockThatIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.deaf = true
		a, b := open(t, d), open(t, d.other())
		le := lock(t, a.Mutex("n"))
		if err := b.Break(t.Context(), "n"); err != nil {
			t.Error(err)
		}
		next := lock(t, b.Mutex("n"))
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrLost)
		wantLost(t, "after it", le, fencelock.Revoked)
		wantHeld(t, "the next holder", next)
		_, err := a.Mutex("n").TryLock(t.Context())
		wantErr(t, "the lock of the next holder", err, fencelock.ErrLocked)
	})
}

func TestTwoUnlocksAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", slowBack(time.Second))
		got := make(chan error, 2)
		for range 2 {
			go func() { got <- le.Unlock(t.Context()) }()
		}
		one, two := <-got, <-got
		if one != nil && two != nil {
			t.Errorf("got %v and %v, want one nil", one, two)
		}
		wantErr(t, "the other", errors.Join(one, two), fencelock.ErrReleased)
		if n := d.count("release"); n != 1 {
			t.Errorf("got %d releases, want 1", n)
		}
	})
}

// A second Unlock waits for the first one's answer, but no longer than its own bound.
func TestSecondUnlockIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(time.Hour))
		le := lock(t, l.Mutex("n"))
		d.on("release", slowBack(4*time.Second))
		firstDone := make(chan error, 1)
		go func() { firstDone <- le.Unlock(t.Context()) }()
		synctest.Wait()
		done, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		wantErr(t, "the second", le.Unlock(done), fencelock.ErrUnavailable)
		wantTook(t, "the second", start, time.Second, time.Second)
		wantErr(t, "a third, with time", le.Unlock(t.Context()), fencelock.ErrReleased)
		wantTook(t, "the third", start, 4*time.Second, 4*time.Second)
		if err := <-firstDone; err != nil {
			t.Errorf("the first: %v", err)
		}
	})
}

func TestDeadlinePassesDuringUnlock(t *testing.T) {
	tests := map[string]step{"applied late": slowThere(2 * time.Second), "confirmed late": slowBack(2 * time.Second)}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithManualRenew())
				le := lock(t, l.Mutex("n"))
				time.Sleep(trusted - time.Second)
				d.on("release", s)
				wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrLost)
				wantLost(t, "after it", le, fencelock.Expired)
			})
		})
	}
}

// The lock is freed also if it was lost while a release was under way that came to nothing.
func TestLossDuringAFailedUnlockIsFreed(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d, fencelock.WithTTL(time.Hour), fencelock.WithMaxHold(ttl)), open(t, d.other())
		start := time.Now()
		le := lock(t, a.Mutex("n"))
		time.Sleep(ttl - time.Second)
		d.on("release", hang)
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrLost)
		wantLost(t, "after it", le, fencelock.MaxHold)
		lock(t, b.Mutex("n"))
		wantTook(t, "the next grant", start, ttl, ttl+5*time.Second)
	})
}

func TestLostDuringUnlock(t *testing.T) {
	tests := map[string]struct {
		answer error
		want   []error // nil: none
	}{
		"confirmed by the store": {nil, nil},
		"the store says lost":    {fencelock.ErrLost, []error{fencelock.ErrLost}},
		"no answer":              {errStore, []error{fencelock.ErrUnavailable}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				le := lock(t, l.Mutex("n"))
				d.on("release", func(c call) error {
					_ = c.apply()
					c.reqs[0].Lost(fencelock.ErrLost) // the store tells of the key's end, whoever ended it
					return tt.answer
				})
				err := le.Unlock(t.Context())
				wantErr(t, "unlock", err, tt.want...)
				if got := err == nil; got != (tt.want == nil) {
					t.Errorf("unlock: got %v, want %v", err, tt.want)
				}
				if errors.Is(err, fencelock.ErrUnavailable) {
					d.on("release", nil)
					unlock(t, le) // it was applied
				}
				if !closed(le.Done()) {
					t.Error("Done is open")
				}
			})
		})
	}
}

func TestLostAfterUnlockIsHarmless(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		var push func(error)
		d.on("acquire", func(c call) error {
			push = c.reqs[0].Lost
			return c.apply()
		})
		le := lock(t, l.Mutex("n"))
		unlock(t, le)
		push(fencelock.ErrLost)
		wantErr(t, "err", le.Err(), fencelock.ErrReleased)
		wantNot(t, "err", le.Err(), fencelock.ErrLost)
	})
}

// A renewal that is in flight when Unlock is called must not bring the lock back.
func TestUnlockOvertakesARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l := open(t, d, fencelock.WithManualRenew(), fencelock.WithObserver(&seen))
		le := lock(t, l.Mutex("n"))
		gate := make(chan struct{})
		d.on("renew", until(gate))
		renewed := make(chan error, 1)
		go func() { renewed <- le.Renew(t.Context()) }()
		synctest.Wait()
		unlock(t, le)
		close(gate)
		wantErr(t, "the renewal", <-renewed, fencelock.ErrReleased)
		wantErr(t, "another, which asks the store nothing", le.Renew(t.Context()), fencelock.ErrReleased)
		if got, want := seen.kinds(), "acquired, released, renew failed"; got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
		wantErr(t, "the event of the renewal", seen.of(fencelock.RenewFailed)[0].Err, fencelock.ErrReleased)
		wantErr(t, "err", le.Err(), fencelock.ErrReleased)
		wantFree(t, l, "n")
	})
}

// A renewal that comes after the release has been applied finds the lock gone:
// that is no loss.
func TestRenewalBehindARelease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithManualRenew())
		le := lock(t, l.Mutex("n"))
		gate := make(chan struct{})
		d.on("renew", until(gate))
		renewed, unlocked := make(chan error, 1), make(chan error, 1)
		go func() { renewed <- le.Renew(t.Context()) }()
		synctest.Wait()
		d.on("release", slowBack(time.Second))
		go func() { unlocked <- le.Unlock(t.Context()) }()
		synctest.Wait()
		close(gate)
		wantErr(t, "the renewal", <-renewed, fencelock.ErrReleased)
		if err := <-unlocked; err != nil {
			t.Errorf("the unlock: %v", err)
		}
		wantNot(t, "err", le.Err(), fencelock.ErrLost)
	})
}

func TestUnlockPassesTheLockOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other())
		le := lock(t, a.Mutex("n"))
		next := background(t.Context(), b.Mutex("n"))
		time.Sleep(time.Minute)
		start := time.Now()
		unlock(t, le)
		r := <-next
		if r.err != nil || r.le.Token() <= le.Token() {
			t.Errorf("the next: got %v, %v, want a greater token than %d", r.le, r.err, le.Token())
		}
		wantTook(t, "the hand-over", start, 0, 0)
	})
}

func TestUnlockThatUndoesTheWritesIsStillAnUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		cause := errors.New("a check constraint")
		var released error
		l := open(t, d, fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) {
			if e.Kind == fencelock.Released {
				released = e.Err
			}
		})))
		le := lock(t, l.Mutex("n"))
		d.on("release", func(c call) error { return errors.Join(c.apply(), &fencelock.UndoneError{Err: cause}) })
		err := le.Unlock(t.Context())
		var undone *fencelock.UndoneError
		if !errors.As(err, &undone) || !errors.Is(err, cause) || errors.Is(err, fencelock.ErrUnavailable) {
			t.Errorf("unlock: got %v, want an UndoneError with its cause", err)
		}
		d.on("release", nil)
		wantErr(t, "Err", le.Err(), fencelock.ErrReleased)
		wantErr(t, "unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
		wantFree(t, l, "n")
		if !errors.Is(released, cause) {
			t.Errorf("the Released event: got Err %v, want the cause", released)
		}
	})
}

// The event of an Unlock that failed says why, and that of one that left the lock to another lease says nothing.
func TestEventsOfUnlockSayWhy(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l := open(t, d, fencelock.WithObserver(&seen))
		m := l.RWMutex("n")
		one, other := lease(t, fencelock.Reader, m.RLock), lease(t, fencelock.Reader, m.RLock)
		unlock(t, one)
		d.on("release", refuse(errStore))
		wantErr(t, "unlock", other.Unlock(t.Context()), errStore)
		if got := seen.of(fencelock.Left); len(got) != 1 || got[0].Err != nil {
			t.Errorf("got %+v, want one lease that left, and no error", got)
		}
		failed := seen.of(fencelock.NotReleased)
		if len(failed) != 1 {
			t.Fatalf("got %s, want one that was not released", seen.kinds())
		}
		wantErr(t, "the event of the Unlock that failed", failed[0].Err, fencelock.ErrUnavailable, errStore)
		d.on("release", nil)
		unlock(t, other)
	})
}

// Unlock of a reader beside others matches the end of its ctx where the store did not answer, and only there.
func TestUnlockOfAReaderWhoseContextEnds(t *testing.T) {
	cause := errors.New("the cause")
	tests := map[string]struct {
		step step
		ends bool // ctx
		want []error
		not  []error
	}{
		"no answer": {hang, true, []error{fencelock.ErrUnavailable, context.Canceled, cause}, nil},
		"lost":      {refuse(fencelock.ErrLost), true, []error{fencelock.ErrLost}, []error{context.Canceled}},
		"no answer, the ctx goes on": {
			hang, false,
			[]error{fencelock.ErrUnavailable},
			[]error{context.DeadlineExceeded},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithTTL(time.Hour))
				one := lease(t, fencelock.Reader, l.RWMutex("n").RLock)
				lease(t, fencelock.Reader, l.RWMutex("n").RLock)
				time.Sleep(time.Second)
				d.on("renew", tt.step)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tt.ends {
					cancel(cause)
				}
				err := one.Unlock(ctx)
				wantErr(t, "unlock", err, tt.want...)
				wantNot(t, "unlock", err, tt.not...)
			})
		})
	}
}

// Readers who unlock at once beside another have one answer of the store's, and their contexts end; the other stays.
func TestReadersWhoUnlockBesideAnother(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		m := open(t, d).RWMutex("n")
		stays := lease(t, fencelock.Reader, m.RLock)
		leaving := []*fencelock.Lease{lease(t, fencelock.Reader, m.RLock), lease(t, fencelock.Reader, m.RLock)}
		ctx := carry(t, t.Context(), leaving[0])
		time.Sleep(time.Second)
		d.on("renew", slowBack(time.Second))
		errs := make(chan error, 2)
		for _, le := range leaving {
			go func() { errs <- le.Unlock(t.Context()) }()
		}
		if err := errors.Join(<-errs, <-errs); err != nil {
			t.Error(err)
		}
		if n := d.count("renew"); n != 1 {
			t.Errorf("the store was asked %d times, want once", n)
		}
		if !closed(ctx.Done()) {
			t.Fatal("the ctx of one who left goes on")
		}
		wantErr(t, "the ctx of one who left", context.Cause(ctx), fencelock.ErrReleased)
		wantHeld(t, "the other", stays)
	})
}

// A reader who frees the lock in the end, after both Unlocks failed, has unlocked once, and so has the other.
func TestReaderWhoFreesTheLockAfterAll(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		m := open(t, d).RWMutex("n")
		first, second := lease(t, fencelock.Reader, m.RLock), lease(t, fencelock.Reader, m.RLock)
		time.Sleep(time.Second)
		d.on("renew", refuse(errStore))
		d.on("release", refuse(errStore))
		wantErr(t, "the first", first.Unlock(t.Context()), fencelock.ErrUnavailable)
		wantErr(t, "the second", second.Unlock(t.Context()), fencelock.ErrUnavailable)
		d.on("release", nil)
		unlock(t, first)
		wantErr(t, "the first, unlocked again", first.Unlock(t.Context()), fencelock.ErrReleased)
		unlock(t, second)
		wantErr(t, "the second, unlocked again", second.Unlock(t.Context()), fencelock.ErrReleased)
	})
}

// A lease of LockAll's that is given back while another lease is on its hold ends, with its contexts, alone.
func TestGivenBackBesideAnotherLease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithReentrancy())
		outer := lock(t, l.Mutex("a"))
		ls, err := l.LockAll(carry(t, t.Context(), outer), "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		inner := carry(t, t.Context(), ls.Lease("a"))
		if err := l.Break(t.Context(), "b"); err != nil {
			t.Error(err)
		}
		<-ls.Done()
		synctest.Wait()
		wantErr(t, "the lease", ls.Lease("a").Err(), fencelock.ErrReleased)
		if !closed(inner.Done()) {
			t.Fatal("its ctx goes on")
		}
		wantErr(t, "its ctx", context.Cause(inner), fencelock.ErrReleased)
		wantHeld(t, "the other lease", outer)
	})
}

// A reader whose Unlock the store has confirmed has unlocked once, also if LockAll gives the last other lease of the
// hold back meanwhile.
func TestReaderUnlockedBesideWhatIsGivenBack(t *testing.T) {
	for range 50 { // which of the two comes first after the answer is a race
		bubble(t, func(t *testing.T, d *fake) {
			l, other := open(t, d), open(t, d.other())
			readers := l.RWMutex("a")
			ls, err := fencelock.LockAll(t.Context(), readers.RLocker(), l.Mutex("b"))
			if err != nil {
				t.Fatal(err)
			}
			le := lease(t, fencelock.Reader, readers.RLock)
			time.Sleep(time.Second)
			d.on("renew", slowBack(time.Second))
			unlocked := make(chan error, 1)
			go func() { unlocked <- le.Unlock(t.Context()) }()
			synctest.Wait()
			if err := other.Break(t.Context(), "b"); err != nil {
				t.Error(err)
			}
			if err := <-unlocked; err != nil {
				t.Errorf("the reader: %v", err)
			}
			synctest.Wait()
			wantErr(t, "what is given back", ls.Lease("a").Err(), fencelock.ErrReleased)
			wantErr(t, "the reader's second Unlock", le.Unlock(t.Context()), fencelock.ErrReleased)
			time.Sleep(time.Second)
			wantFree(t, other, "a")
		})
	}
}

// CleanedUp is the event of a lock that LockAll gives back, as nobody got it.
func TestEventOfWhatLockAllGivesBack(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l, other := open(t, d, fencelock.WithObserver(&seen)), open(t, d.other())
		lock(t, other.Mutex("b"))
		_, err := l.LockAll(within(t, time.Second), "a", "b")
		wantErr(t, "LockAll", err, context.DeadlineExceeded)
		names := []string{}
		for _, e := range seen.of(fencelock.CleanedUp) {
			names = append(names, e.Name)
		}
		if !slices.Contains(names, "a") {
			t.Errorf("got clean-ups of %q, want one of a", names)
		}
		wantFree(t, other, "a")
	})
}

// A lease that was unlocked is not kept in memory by the others on its hold.
func TestUnlockedLeaseIsNotKept(t *testing.T) {
	l := open(t, newFake(t).other(), fencelock.WithReentrancy(), fencelock.WithTTL(time.Hour))
	m := l.Mutex("n")
	outer := lock(t, m)
	ended := func() weak.Pointer[fencelock.Lease] {
		inner, err := m.Lock(carry(t, t.Context(), outer))
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, inner)
		return weak.Make(inner)
	}()
	runtime.GC()
	runtime.GC()
	if ended.Value() != nil {
		t.Error("it is kept")
	}
	unlock(t, outer)
}
