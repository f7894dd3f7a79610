package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// uncounted makes the driver leave the counting of the deadline to the engine.
func uncounted(g *backend.Grant) { g.Asked = backend.Instant{} }

func TestDeadlineIsCountedFromBeforeTheRequest(t *testing.T) {
	const delay = 3 * time.Second
	tests := map[string]struct {
		step  step
		grant func(*backend.Grant)
		want  time.Duration // the deadline, after the call
	}{
		"prompt":                       {pass, uncounted, trusted},
		"slow on the way there":        {slowThere(delay), uncounted, trusted},
		"slow on the way back":         {slowBack(delay), uncounted, trusted},
		"the driver knows when it was": {slowThere(delay), nil, delay + trusted},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithManualRenew())
				d.grant = tt.grant
				d.on("acquire", tt.step)
				start := time.Now()
				le := lock(t, l.Mutex("n"))
				if got := le.Deadline().Sub(start); got != tt.want {
					t.Errorf("deadline: got %v after the call, want %v", got, tt.want)
				}
				<-le.Done()
				wantTook(t, "the lease", start, tt.want, tt.want)
			})
		})
	}
}

func TestDeadlineAfterAWaitIsCountedFromTheGrant(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other(), fencelock.WithManualRenew())
		le := lock(t, a.Mutex("n"))
		next := background(t.Context(), b.Mutex("n"))
		time.Sleep(time.Hour)
		unlock(t, le)
		r := <-next
		if got := time.Until(r.le.Deadline()); got != trusted {
			t.Errorf("deadline: got %v from the hand-over, want %v", got, trusted)
		}
	})
}

func TestGrantSeenAfterItsDeadline(t *testing.T) {
	tests := map[string]struct {
		delay time.Duration
		want  error
	}{
		"a moment before": {trusted - time.Millisecond, nil},
		"at the deadline": {trusted, fencelock.ErrUnavailable},
		"after it":        {ttl + time.Second, fencelock.ErrUnavailable},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				patient := func(c call) error { // whatever becomes of ctx
					err := c.apply()
					time.Sleep(tt.delay)
					return err
				}
				d.on("acquire", patient)
				_, err := l.Mutex("n", fencelock.WithManualRenew()).Lock(within(t, tt.delay+time.Millisecond))
				if got := err == nil; got != (tt.want == nil) {
					t.Errorf("lock: got %v, want %v", err, tt.want)
				}
			})
		})
	}
}

// within returns a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

const short = time.Second // a TTL that a slow reply outlasts

func TestLateGrantIsGivenBackByTryLock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(short), fencelock.WithGrace(time.Hour)) // so that no expiry frees it
		d.on("acquire", slowBack(short))
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		time.Sleep(time.Second)
		wantFree(t, l, "n")
	})
}

func TestLateGrantIsAskedForAgainByLock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(short), fencelock.WithGrace(time.Hour))
		d.on("acquire", first(2, slowBack(short)))
		le := lock(t, l.Mutex("n"))
		wantHeld(t, "after two late grants", le)
		if got := d.count("acquire"); got != 3 {
			t.Errorf("got %d calls of Acquire, want 3", got)
		}
		if got := time.Until(le.Deadline()); got != short-20*time.Millisecond {
			t.Errorf("deadline: got %v from the last request, want %v", got, short-20*time.Millisecond)
		}
		unlock(t, le)
		time.Sleep(time.Second)
		wantFree(t, l, "n")
	})
}

func TestLateGrantsForEver(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(short))
		d.on("acquire", slowBack(short))
		start := time.Now()
		_, err := l.Mutex("n").Lock(t.Context())
		wantErr(t, "lock", err, fencelock.ErrUnavailable)
		wantTook(t, "lock", start, 5*time.Second, 5*time.Second+short)
		time.Sleep(time.Second)
		wantFree(t, l, "n")
	})
}

// The patience with late grants starts with the first of them, not with the wait.
func TestLateGrantAfterALongWait(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d.other()), open(t, d, fencelock.WithTTL(short))
		le := lock(t, a.Mutex("n"))
		d.on("acquire", first(1, slowBack(short)))
		next := background(t.Context(), b.Mutex("n"))
		time.Sleep(time.Minute)
		unlock(t, le)
		r := <-next
		if r.err != nil {
			t.Fatalf("one late grant after a minute's wait: got %v, want another try", r.err)
		}
		wantHeld(t, "after one late grant", r.le)
	})
}

func TestLateGrantWhenTheContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithTTL(short))
		d.on("acquire", func(c call) error {
			err := c.apply()
			time.Sleep(2 * short)
			return err
		})
		_, err := l.Mutex("n").Lock(within(t, short))
		wantErr(t, "lock", err, context.DeadlineExceeded)
		synctest.Wait()
		if got := d.count("acquire"); got != 1 {
			t.Errorf("got %d calls of Acquire, want none after the ctx ended", got-1)
		}
	})
}

func TestDriverBoundsTheTrust(t *testing.T) {
	const most = 4 * time.Second
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.grant = func(g *backend.Grant) { g.Max = most }
		start := time.Now()
		le := lock(t, l.Mutex("n", fencelock.WithManualRenew()))
		want := most - ttl/50
		if got := le.Deadline().Sub(start); got != want {
			t.Errorf("deadline with Grant.Max %v: got %v, want %v", most, got, want)
		}
		time.Sleep(time.Second)
		if err := le.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		if got := le.Deadline().Sub(start); got != want+time.Second {
			t.Errorf("deadline after a renewal: got %v, want %v", got, want+time.Second)
		}
	})
}

// A Lock never held what its driver says is lost: it queues again, and TryLock cannot tell.
func TestLockIsNeverLost(t *testing.T) {
	answers := map[string]error{
		"dropped":     fmt.Errorf("the request was abandoned: %w", fencelock.ErrLost),
		"its session": &fencelock.LostError{Reason: fencelock.SessionLost},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				d.on("acquire", first(3, refuse(answer)))
				start := time.Now()
				unlock(t, lock(t, l.Mutex("n")))
				wantTook(t, "lock", start, 0, time.Second)
				time.Sleep(time.Second)
				if got := d.count("abandon"); got != 3 {
					t.Errorf("got %d clean-ups, want 3", got)
				}
				d.on("acquire", refuse(answer))
				start = time.Now()
				_, err := l.Mutex("n").TryLock(t.Context())
				wantErr(t, "trylock", err, fencelock.ErrUnavailable)
				wantNot(t, "trylock", err, fencelock.ErrLost)
				wantTook(t, "trylock", start, 0, 0)
				_, err = l.Mutex("n").Lock(t.Context())
				wantErr(t, "lock", err, fencelock.ErrUnavailable)
				wantNot(t, "lock", err, fencelock.ErrLost)
				wantTook(t, "lock", start, core.Patience, core.Patience+time.Second)
				_, err = l.Mutex("n").Lock(within(t, time.Second))
				wantErr(t, "lock with a ctx that ends", err, context.DeadlineExceeded)
				wantNot(t, "lock with a ctx that ends", err, fencelock.ErrLost)
				d.on("acquire", nil)
			})
		})
	}
}

// The bounds of this package are not the caller's: they do not match the end of a context.
func TestBoundsAreNoContexts(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l := openLoose(t, d, fencelock.WithTTL(time.Hour), fencelock.WithObserver(&seen))
		le, auto := lock(t, l.Mutex("n")), lock(t, l.Mutex("auto", fencelock.WithTTL(time.Minute)))
		for _, op := range []string{"acquire", "release", "renew", "inspect"} {
			d.on(op, hang)
		}
		errs := map[string]error{"renew": le.Renew(context.Background()), "unlock": le.Unlock(context.Background())}
		_, errs["trylock"] = l.Mutex("other").TryLock(context.Background())
		<-auto.Done()
		for i, e := range seen.of(fencelock.RenewFailed) {
			errs[fmt.Sprint("renewal ", i)] = e.Err
		}
		for what, err := range errs {
			wantErr(t, what, err, fencelock.ErrUnavailable)
			wantNot(t, what, err, context.DeadlineExceeded, context.Canceled)
		}
		if len(errs) < 5 {
			t.Errorf("got %d errors, want those of the renewals too", len(errs))
		}
		d.on("release", nil)
		_ = l.Close()
	})
}

// Close ends a Renew that the program has called.
func TestCloseEndsARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d, fencelock.WithTTL(time.Minute))
		le := lock(t, l.Mutex("n"))
		d.on("renew", hang)
		done := make(chan error, 1)
		go func() { done <- le.Renew(context.Background()) }()
		synctest.Wait()
		start := time.Now()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wantTook(t, "close", start, 0, time.Second)
		if err := <-done; !errors.Is(err, fencelock.ErrClosed) && !errors.Is(err, fencelock.ErrReleased) {
			t.Errorf("renew: got %v, want ErrClosed or ErrReleased", err)
		}
		wantTook(t, "renew", start, 0, time.Second)
	})
}
