package migrate_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/internal/core"
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

// TestTokensFarAheadMove: a clock was wrong once, and the old store's tokens are ahead of every other clock, by a bit
// more than a store takes for a floor, or by years. The fleet moves all the same, and they go on rising.
func TestTokensFarAheadMove(t *testing.T) {
	for _, ahead := range []time.Duration{90 * time.Minute, 5 * 365 * 24 * time.Hour} {
		bubble(t, func(w world) {
			w.want("raise", w.old.Raise(w.Context(), time.Now().Add(ahead).UnixMicro()), nil)
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
}

// TestFarTokensAreRaisedOnce: the new store is raised for the first lock of such a fleet, and its numbers follow from
// then on. What it has refused is given up, and one that waits for it has one place there.
func TestFarTokensAreRaisedOnce(t *testing.T) {
	bubble(t, func(w world) {
		ahead := time.Now().AddDate(5, 0, 0).UnixMicro()
		w.want("raise", w.old.Raise(w.Context(), ahead), nil)
		o, raises := w.options(backend.PhaseBoth), 0
		to := asked{client(w.new), &[]*backend.Request{}, &[]*backend.Request{}}
		to.Gater = &raising{store: to.store, do: func() { raises++ }}
		o.To = to
		d := w.startWith(o)
		for last := ahead; raises < 2 && last < ahead+50; {
			got := w.cycle(d, "x")
			if got <= last {
				w.Errorf("token %d after %d", got, last)
			}
			last = got
		}
		if raises != 1 {
			w.Errorf("all tokens were raised %d times, want once", raises)
		}
		if gone := *to.abandoned; len(gone) != 1 || gone[0] != (*to.acquired)[0] {
			w.Errorf("abandoned %v, want the first request alone", gone)
		}

		w.want("open", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		w.want("raise", w.old.Raise(w.Context(), 2*ahead), nil)
		other := w.start(backend.PhaseTo)
		held := w.acquire(other, request("y"))
		granted, r := make(chan *core.Hold), request("y")
		r.Wait = true
		go func() { granted <- w.acquire(d, r) }()
		synctest.Wait()
		if i, err := w.new.Inspect(w.Context(), "y"); err != nil || i.Waiters != 1 {
			w.Errorf("the new store: got %+v, %v, want one who waits", i, err)
		}
		w.release(other, held)
		h := <-granted
		if h.Token <= 2*ahead {
			w.Errorf("token %d, want one above the old store's, which is above %d", h.Token, 2*ahead)
		}
		w.release(d, h)
	})
}

// TestStartEndsWithItsCtx: a start that a silent store keeps from its end takes no longer than its ctx allows, but for
// what taking its reports back may take.
func TestStartEndsWithItsCtx(t *testing.T) {
	for _, phase := range []backend.Phase{backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo} {
		for what, falls := range map[string]func(from, to *mute){
			"old":  func(from, _ *mute) { from.to = everything },
			"new":  func(_, to *mute) { to.to = everything },
			"both": func(from, to *mute) { from.to, to.to = everything, everything },
		} {
			bubble(t, func(w world) {
				from, to := &mute{store: client(w.old)}, &mute{store: client(w.new)}
				falls(from, to)
				o := w.options(phase)
				o.From, o.To = from, to
				for how, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
					"a deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
						return context.WithTimeout(ctx, time.Second)
					},
					"a cancel": func(ctx context.Context) (context.Context, context.CancelFunc) {
						ctx, cancel := context.WithCancel(ctx)
						time.AfterFunc(time.Second, cancel)
						return ctx, cancel
					},
				} {
					ctx, cancel := end(w.Context())
					began := time.Now()
					_, err := migrate.New(ctx, o)
					cancel()
					if took := time.Since(began); err == nil || took > 1300*time.Millisecond {
						w.Errorf("phase %s, a silent %s store, %s after 1s: got %v after %v, want an error within 1.3s",
							phase, what, how, err, took)
					}
				}
			})
		}
	}
}
