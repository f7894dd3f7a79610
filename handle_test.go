package fencelock_test

import (
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// A lease has no handle any more once its Unlock has left the lock to another lease of the process, which has.
func TestHandleOfWhatWasLeft(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.grant = func(g *backend.Grant) { g.Handle = "tx" }
		l := open(t, d)
		check := func(what string, le *fencelock.Lease, want any) {
			t.Helper()
			if got := le.Handle(); got != want {
				t.Errorf("handle of %s: got %v, want %v", what, got, want)
			}
		}
		le, before := passed(t, l, "n")
		check("a lease that was passed on", before, nil)
		check("a lease to which it was passed on", le, "tx")
		unlock(t, le)
		check("a lease that was unlocked", le, "tx")

		m := l.Mutex("again", fencelock.WithReentrancy())
		outer := lock(t, m)
		ctx, cancel := outer.Context(t.Context())
		defer cancel()
		inner, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		check("a lease of two", inner, "tx")
		unlock(t, inner)
		check("a lease that was left", inner, nil)
		check("the lease that is left", outer, "tx")
		unlock(t, outer)
	})
}
