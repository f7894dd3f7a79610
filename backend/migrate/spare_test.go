package migrate_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
)

// TestSilentSpareStore: the store that the phase does not lock in swallows packets. No lock waits for it, none is lost,
// and neither a start nor a Close takes long.
func TestSilentSpareStore(t *testing.T) {
	for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseTo} {
		bubble(t, func(w world) {
			w.stop(w.start(backend.PhaseBoth))
			w.want("open", w.pair().Open(w.Context(), phase), nil)
			o := w.options(phase)
			if phase == backend.PhaseFrom {
				o.To = nil
			} else {
				o.From = nil
			}
			var dials atomic.Int32
			o.Other = func(ctx context.Context) (backend.Driver, error) {
				dials.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			at := time.Now()
			within := func(what string, most time.Duration) {
				w.Helper()
				if took := time.Since(at); took > most {
					w.Errorf("phase %s: %s took %v, want at most %v", phase, what, took, most)
				}
				at = time.Now()
			}
			d, err := migrate.New(w.Context(), o)
			if err != nil {
				w.Fatalf("start in phase %s: %v", phase, err)
			}
			within("the start", 0)
			l, err := fencelock.New(d, fencelock.WithTTL(2*time.Second))
			w.want("New", err, nil)
			lock := func(name string, opts ...fencelock.Option) *fencelock.Lease {
				w.Helper()
				at = time.Now()
				le, err := l.Mutex(name, opts...).TryLock(w.Context())
				if err != nil {
					w.Fatal(err)
				}
				within("a TryLock", 0)
				return le
			}
			long := lock("held")
			for range 500 {
				le := lock("n")
				if err := le.Unlock(w.Context()); err != nil {
					w.Error(err)
				}
				within("an Unlock", 0)
				time.Sleep(61 * time.Millisecond)
			}
			lock("longer than any before", fencelock.WithTTL(time.Hour))
			if err := long.Err(); err != nil {
				w.Errorf("the lease that was renewed all the time: %v", err)
			}
			if n := dials.Load(); n < 3 {
				w.Errorf("the spare store was asked for %d times within 30s, want it to be tried again", n)
			}
			at = time.Now()
			if err := l.Close(); err != nil {
				w.Error(err)
			}
			within("Close", time.Second+100*time.Millisecond)
		})
	}
}

// TestTokensFarAheadMove: a clock was wrong once, and the old store's tokens are years ahead of every other clock. The
// fleet moves all the same, and they go on rising.
func TestTokensFarAheadMove(t *testing.T) {
	bubble(t, func(w world) {
		w.want("raise", w.old.Raise(w.Context(), time.Now().AddDate(5, 0, 0).UnixMicro()), nil)
		var last backend.Token
		for _, phase := range []backend.Phase{
			backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo, backend.PhaseBoth,
			backend.PhaseFrom,
		} {
			d := w.start(phase)
			for _, name := range []string{"x", "x", "only in " + string(phase)} {
				got := w.cycle(d, name)
				if got <= last {
					w.Errorf("phase %s: token %d after %d", phase, got, last)
				}
				last = got
			}
			w.stop(d)
		}
	})
}
