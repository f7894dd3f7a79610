package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

func TestMargin(t *testing.T) {
	tests := map[string]struct {
		ttl, least, want time.Duration
	}{
		"20 ms at least":  {500 * time.Millisecond, 0, 20 * time.Millisecond},
		"20 ms at 1 s":    {time.Second, 0, 20 * time.Millisecond},
		"2 % of 30 s":     {30 * time.Second, 0, 600 * time.Millisecond},
		"the Traits' own": {30 * time.Second, 2 * time.Second, 2 * time.Second},
		"2 % is more":     {200 * time.Second, 2 * time.Second, 4 * time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				d.traits = func(tr *backend.Traits) { tr.Margin = tt.least }
				l := open(t, d, fencelock.WithTTL(tt.ttl), fencelock.WithManualRenew())
				start := time.Now()
				le := lock(t, l.Mutex("n"))
				if got := tt.ttl - le.Deadline().Sub(start); got != tt.want {
					t.Errorf("margin: got %v, want %v", got, tt.want)
				}
				<-le.Done()
				wantTook(t, "the lease", start, tt.ttl-tt.want, tt.ttl-tt.want)
				wantLost(t, "at the deadline", le, fencelock.Expired)
			})
		})
	}
}

func TestDefaultTTL(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l, err := fencelock.New(d, fencelock.WithManualRenew())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		le := lock(t, l.Mutex("n"))
		if got, want := le.Deadline().Sub(start), 30*time.Second-600*time.Millisecond; got != want {
			t.Errorf("deadline: got %v, want %v", got, want)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestDeadlineIsMonotonic(t *testing.T) {
	l := open(t, newFake(t)) // in real time: a bubble's clock is its own
	if at := lock(t, l.Mutex("n")).Deadline(); !strings.Contains(at.String(), " m=") {
		t.Errorf("deadline %v has no monotonic reading", at)
	}
}

func TestHolderIsToldBeforeTheNextIsGranted(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other())
		m := a.Mutex("n")
		le := lock(t, m)
		start := time.Now()
		d.on("renew", hang) // the holder is cut off
		d.on("abandon", hang)
		next := lock(t, b.Mutex("n"))
		wantTook(t, "the next grant", start, ttl, ttl)
		wantLost(t, "when the next was granted", le, fencelock.Expired)
		wantErr(t, "unlock after loss", le.Unlock(t.Context()), fencelock.ErrLost)
		wantErr(t, "unlock after loss, again", le.Unlock(t.Context()), fencelock.ErrLost)
		wantErr(t, "renew after loss", le.Renew(t.Context()), fencelock.ErrLost)
		wantHeld(t, "the next holder, after the old one's calls", next)
		d.on("renew", nil)
		d.on("abandon", nil)
		unlock(t, next)
		unlock(t, lock(t, m)) // the same Mutex locks again after its loss
	})
}

// Done must not wait for a call of the driver, not even for one that breaks its contract.
func TestDeadlineDoesNotWaitForTheDriver(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		gate := make(chan struct{})
		d.on("renew", until(gate))
		start := time.Now()
		le := lock(t, l.Mutex("n"))
		<-le.Done()
		wantTook(t, "the lease", start, trusted, trusted)
		wantLost(t, "with a renewal that never comes back", le, fencelock.Expired)
		d.on("renew", nil)
		close(gate)
	})
}

func TestEachLeaseHasItsOwnTTL(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithManualRenew())
		start := time.Now()
		brief := lock(t, l.Mutex("brief", fencelock.WithTTL(time.Second)))
		usual := lock(t, l.Mutex("usual"))
		long := lock(t, l.Mutex("long", fencelock.WithTTL(time.Minute)))
		<-brief.Done()
		wantTook(t, "brief", start, 980*time.Millisecond, 980*time.Millisecond)
		<-usual.Done()
		wantTook(t, "usual", start, trusted, trusted)
		<-long.Done()
		wantTook(t, "long", start, 58800*time.Millisecond, 58800*time.Millisecond)
	})
}

func TestMaxHold(t *testing.T) {
	const most = 25 * time.Second
	byHand := func(t *testing.T, le *fencelock.Lease) {
		for range 3 {
			time.Sleep(7 * time.Second)
			if err := le.Renew(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	tests := map[string]struct {
		opts []fencelock.Option
		keep func(*testing.T, *fencelock.Lease)
	}{
		"renewed":         {nil, func(*testing.T, *fencelock.Lease) {}},
		"renewed by hand": {[]fencelock.Option{fencelock.WithManualRenew()}, byHand},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				a, b := open(t, d, append(tt.opts, fencelock.WithMaxHold(most))...), open(t, d.other())
				start := time.Now()
				le := lock(t, a.Mutex("n"))
				next := background(t.Context(), b.Mutex("n"))
				tt.keep(t, le)
				wantHeld(t, "before", le)
				if got := le.Deadline().Sub(start); got > most {
					t.Errorf("deadline: got %v after the grant, want at most %v", got, most)
				}
				<-le.Done()
				wantTook(t, "the lease", start, most, most)
				wantLost(t, "at the end", le, fencelock.MaxHold)
				wantTook(t, "the next grant", start, most, most+time.Second/10)
				(<-next).le.Unlock(t.Context())
				wantTook(t, "the next grant", start, most, most+time.Second/10)
			})
		})
	}
}

func TestMaxHoldShorterThanTheTTL(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a := open(t, d)
		start := time.Now()
		le := lock(t, a.Mutex("n", fencelock.WithMaxHold(time.Second)))
		if got := le.Deadline().Sub(start); got != time.Second {
			t.Errorf("deadline: got %v, want 1s", got)
		}
		time.Sleep(time.Second)
		wantLost(t, "after a second", le, fencelock.MaxHold)
		synctest.Wait()
		wantFree(t, a, "n")
	})
}

func TestGrace(t *testing.T) {
	const grace = 5 * time.Second
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d, fencelock.WithGrace(grace)), open(t, d.other())
		start := time.Now()
		unlock(t, lock(t, a.Mutex("n")))
		unlock(t, lock(t, b.Mutex("n")))
		wantTook(t, "a grant after Unlock", start, 0, 0)

		lock(t, a.Mutex("broken"))
		if err := b.Break(t.Context(), "broken"); err != nil {
			t.Error(err)
		}
		start = time.Now()
		unlock(t, lock(t, b.Mutex("broken")))
		wantTook(t, "a grant after Break", start, 0, 0)

		le := lock(t, a.Mutex("n", fencelock.WithManualRenew()))
		start = time.Now()
		r := <-background(t.Context(), b.Mutex("n"))
		if got := r.at.Sub(start); got < trusted+grace || got > ttl+grace {
			t.Errorf("the grant after a loss came after %v, want %v later than the "+
				"holder trusted it: %v to %v", got, grace, trusted+grace, ttl+grace)
		}
		wantLost(t, "the old holder", le, fencelock.Expired)
	})
}

func TestGraceAfterMaxHold(t *testing.T) {
	const grace, most = 3 * time.Second, 4 * time.Second
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d, fencelock.WithGrace(grace), fencelock.WithMaxHold(most)), open(t, d.other())
		start := time.Now()
		lock(t, a.Mutex("n"))
		r := <-background(t.Context(), b.Mutex("n"))
		if got := r.at.Sub(start); got < most+grace || got > most+grace+time.Second {
			t.Errorf("the next grant came after %v, want from %v within a second", got, most+grace)
		}
	})
}

func TestOwner(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		host, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		tests := map[string]fencelock.Mutex{
			fmt.Sprintf("%s:%d", host, os.Getpid()): l.Mutex("a"),
			"worker 7":                              l.Mutex("b", fencelock.WithOwner("worker 7")),
		}
		for want, m := range tests {
			le := lock(t, m)
			info, err := l.Inspect(t.Context(), m.Name())
			if le.Owner() != want || info.Owner != want || err != nil {
				t.Errorf("owner: got %q, at the store %q (%v), want %q", le.Owner(), info.Owner, err, want)
			}
		}
	})
}

func TestHandle(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		if got := lock(t, l.Mutex("a")).Handle(); got != nil {
			t.Errorf("handle of a driver without: got %v, want nil", got)
		}
		d.grant = func(g *backend.Grant) { g.Handle = "tx" }
		if got := lock(t, l.Mutex("b")).Handle(); got != "tx" {
			t.Errorf("handle: got %v, want the driver's", got)
		}
	})
}

func TestLostErrorOfTheDriver(t *testing.T) {
	wrapped := fmt.Errorf("watch: %w", &fencelock.LostError{Reason: fencelock.SessionLost})
	tests := map[string]struct {
		say  error
		want fencelock.Reason
	}{
		"bare":           {fencelock.ErrLost, fencelock.Revoked},
		"with a reason":  {&fencelock.LostError{Reason: fencelock.SessionLost}, fencelock.SessionLost},
		"wrapped":        {wrapped, fencelock.SessionLost},
		"wrapped bare":   {fmt.Errorf("gone: %w", fencelock.ErrLost), fencelock.Revoked},
		"something else": {errors.New("gone"), fencelock.Revoked},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				var push func(error)
				d.on("acquire", func(c call) error {
					push = c.reqs[0].Lost
					return c.apply()
				})
				le := lock(t, l.Mutex("n"))
				push(tt.say)
				wantLost(t, "after the push", le, tt.want)
				push(&fencelock.LostError{Reason: fencelock.MaxHold})
				wantLost(t, "after a second push", le, tt.want)
				d.on("acquire", nil)
				unlock(t, lock(t, l.Mutex("n")))
			})
		})
	}
}

func TestLostBeforeTheGrantWasSeen(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		push := func(c call) error {
			err := c.apply()
			c.reqs[0].Lost(fencelock.ErrLost)
			return err
		}
		d.on("acquire", first(1, push))
		_, err := l.Mutex("tried").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrLocked)
		synctest.Wait()
		wantFree(t, l, "tried")

		d.on("acquire", first(1, push))
		wantHeld(t, "lock's second grant", lock(t, l.Mutex("n")))
		if got := d.count("acquire"); got != 3 {
			t.Errorf("got %d calls of Acquire, want 3", got)
		}
	})
}

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

// What a Lock was refused long before its last wait is no outage.
func TestRefusalsFarApart(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		waits := func(c call) error {
			time.Sleep(time.Hour)
			return fencelock.ErrLost
		}
		d.on("acquire", first(3, waits))
		unlock(t, lock(t, l.Mutex("n")))
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
		d.on("release", slowThere(500*time.Millisecond)) // until then the lease has not ended
		done := make(chan error, 1)
		go func() { done <- le.Renew(context.Background()) }()
		synctest.Wait()
		start := time.Now()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wantTook(t, "close", start, 0, time.Second)
		wantErr(t, "renew", <-done, fencelock.ErrClosed)
		wantTook(t, "renew", start, 0, time.Second)
	})
}
