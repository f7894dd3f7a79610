package fencelock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

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
		le, second := lock(t, l.Mutex("x")), lock(t, l.Mutex("y"))
		time.Sleep(10 * time.Second)
		if n := d.count("inspect"); n != 0 {
			t.Fatalf("the store was asked %d times", n)
		}
		wanted := le.Wanted()
		le.Wanted()
		time.Sleep(10500 * time.Millisecond)
		if n := d.count("inspect"); n != 10 {
			t.Errorf("in ten seconds the store was asked %d times, want 10", n)
		}
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
