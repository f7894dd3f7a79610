package fencelock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// shortGrant is what the store promises to the holders of these tests until they have renewed.
const shortGrant = 2 * time.Second

func TestShortGrant(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.grant = func(g *backend.Grant) { g.Short = shortGrant }
		l := open(t, d)
		unlock(t, lock(t, l.Mutex("n")))
		time.Sleep(ttl)
		if n := d.count("renew"); n != 0 {
			t.Errorf("%d renewals of a lease that was unlocked at once", n)
		}
		le := lock(t, l.Mutex("n"))
		if left := time.Until(le.Deadline()); left > shortGrant-20*time.Millisecond || left < shortGrant/2 {
			t.Errorf("the deadline is in %v, the grant lasts %v", left, shortGrant)
		}
		time.Sleep(20 * time.Millisecond)
		if n, left := d.count("renew"), time.Until(le.Deadline()); n != 1 || left < ttl-ttl/20 {
			t.Errorf("after 20 ms: %d renewals, the deadline is in %v", n, left)
		}
		time.Sleep(10 * ttl)
		wantHeld(t, "after ten TTLs", le)
		unlock(t, le)
	})
}

// A store that is silent after a short grant ends it before its own expiry, with two tries at least.
func TestShortGrantOfASilentStore(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.grant = func(g *backend.Grant) { g.Short = shortGrant }
		d.on("renew", hang)
		l := open(t, d)
		began := time.Now()
		le := lock(t, l.Mutex("n"))
		<-le.Done()
		if took := time.Since(began); took >= shortGrant || took < shortGrant*9/10 {
			t.Errorf("lost after %v, the store's word was for %v", took, shortGrant)
		}
		var lost *fencelock.LostError
		if !errors.As(le.Err(), &lost) || lost.Reason != fencelock.Expired {
			t.Errorf("got %v, want Expired", le.Err())
		}
		if n := d.count("renew"); n < 2 {
			t.Errorf("%d renewals were tried, want 2", n)
		}
	})
}

// One that answers the second try keeps it.
func TestShortGrantKept(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.grant = func(g *backend.Grant) { g.Short = shortGrant }
		d.on("renew", first(1, hang))
		le := lock(t, open(t, d).Mutex("n"))
		time.Sleep(10 * shortGrant)
		wantHeld(t, "after ten short grants", le)
		unlock(t, le)
	})
}
