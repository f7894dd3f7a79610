package backends

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// TestMigrationBesideASilentStore: the new store does not answer any more. What a client of phase
// both gives up, or gives back, comes free in the old one within seconds, for clients of phase from
// need that one alone.
func TestMigrationBesideASilentStore(t *testing.T) {
	for _, how := range []string{"given up", "unlocked"} {
		synctest.Test(t, func(t *testing.T) {
			var d [2]backend.Driver
			var stores [2]*memory.Driver
			link := conformance.NewCallLink()
			for i := range stores {
				s, err := memory.New()
				if err != nil {
					t.Fatal(err)
				}
				client, err := s.Client(backend.DefaultPrefix)
				if err != nil {
					t.Fatal(err)
				}
				stores[i], d[i] = s, client
			}
			// a network: nothing is sent once ctx has ended
			for i, l := range []conformance.Link{conformance.NewCallLink(), link} {
				d[i] = behind(d[i], l)
			}
			both, err := moveAll(t.Context(), backend.PhaseBoth, d[0], d[1])
			if err != nil {
				t.Fatal(err)
			}
			l, err := fencelock.New(both, fencelock.WithTTL(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			silent := faultproxy.Mode{HoldRequests: true}
			var began time.Time
			if how == "unlocked" {
				le, err := l.Mutex("x").TryLock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				link.Set(silent)
				began = time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if err := le.Unlock(ctx); !errors.Is(err, fencelock.ErrUnavailable) &&
					!errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("unlock: got %v, want no answer", err)
				}
			} else {
				link.Set(silent)
				if _, err := l.Mutex("x").TryLock(t.Context()); !errors.Is(err, fencelock.ErrUnavailable) {
					t.Errorf("a try: got %v, want ErrUnavailable", err)
				}
				began = time.Now()
			}
			for {
				i, err := core.Of(stores[0]).Inspect(t.Context(), "x")
				if err != nil {
					t.Fatal(err)
				}
				if !i.Held {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s: free in the old store after %v, want a few seconds", how, took)
			}
			link.Set(faultproxy.Mode{})
			if err := l.Close(); err != nil {
				t.Logf("close: %v", err)
			}
		})
	}
}
