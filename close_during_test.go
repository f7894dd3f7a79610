package fencelock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

func TestCloseDuringAnAcquire(t *testing.T) {
	tests := map[string]step{
		"the request is on its way there": slowThere(time.Second),
		"the reply is on its way back":    slowBack(time.Second),
		"granted in spite of the end": func(c call) error { // the driver answers yes although its ctx has ended
			time.Sleep(time.Second)
			return c.apply()
		},
	}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, other := openLoose(t, d), open(t, d.other())
				d.on("acquire", s)
				waiting := background(t.Context(), l.Mutex("n"))
				if err := l.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				r := <-waiting
				got := r.err
				if r.le != nil {
					got = r.le.Err()
				}
				if !errors.Is(got, fencelock.ErrClosed) && !errors.Is(got, fencelock.ErrReleased) {
					t.Errorf("got %v, want closed, or a lease that was released", got)
				}
				wantFree(t, other, "n")
			})
		})
	}
}

func TestCloseDuringAnUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", slowBack(time.Second))
		unlocked := make(chan error, 1)
		go func() { unlocked <- le.Unlock(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wantTook(t, "close", start, time.Second, time.Second)
		if err := <-unlocked; err != nil {
			t.Errorf("the unlock in flight: %v", err)
		}
		if got := d.count("release"); got != 1 {
			t.Errorf("got %d releases, want 1", got)
		}
	})
}

func TestUnlockDuringClose(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", slowBack(time.Second))
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		synctest.Wait()
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrReleased)
		if err := <-closed; err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// A store that does not answer keeps Close busy for its whole bound; an Unlock whose ctx is over
// does not wait for that.
func TestUnlockWithADoneContextDuringClose(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", hang)
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		wantErr(t, "unlock", le.Unlock(ctx), fencelock.ErrUnavailable)
		wantTook(t, "unlock", start, 0, time.Second)
		<-closed
		wantErr(t, "unlock after Close", le.Unlock(t.Context()), fencelock.ErrLost)
	})
}

// An Unlock that the store keeps for longer than Close lasts ends with Close: the fake takes a
// second release in flight, or any call in flight at the driver's Close, for a mistake.
func TestCloseGivesUpAnUnlockThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("release", hang)
		closed := make(chan error, 1)
		start := time.Now()
		unlocked := make(chan error, 1)
		go func() { unlocked <- le.Unlock(t.Context()) }()
		synctest.Wait()
		go func() { closed <- l.Close() }()
		wantErr(t, "unlock", <-unlocked, fencelock.ErrUnavailable)
		wantTook(t, "unlock", start, 4*time.Second, 4900*time.Millisecond) // by itself it would take 5 s
		wantErr(t, "close", <-closed, fencelock.ErrUnavailable)
		wantTook(t, "close", start, 4*time.Second, 5*time.Second)
		wantLost(t, "after Close", le, fencelock.Revoked)
	})
}

func TestCloseDuringARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		gate := make(chan struct{})
		d.on("renew", until(gate))
		renewed := make(chan error, 1)
		go func() { renewed <- le.Renew(t.Context()) }()
		synctest.Wait()
		time.AfterFunc(time.Second, func() { close(gate) })
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wantErr(t, "the renewal", <-renewed, fencelock.ErrReleased)
		wantErr(t, "the lease", le.Err(), fencelock.ErrReleased)
	})
}
