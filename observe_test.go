package fencelock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
)

func TestEventKinds(t *testing.T) {
	want := map[fencelock.EventKind]string{
		fencelock.Acquired: "acquired", fencelock.NotAcquired: "not acquired", fencelock.Renewed: "renewed",
		fencelock.RenewFailed: "renew failed", fencelock.Released: "released", fencelock.Lost: "lost",
		fencelock.CleanedUp: "cleaned up", fencelock.Joined: "joined", fencelock.Left: "left",
		fencelock.NotReleased: "not released",
		fencelock.Locking:     "locking", fencelock.TryLocking: "trylocking",
		fencelock.Unlocking: "unlocking", 0: "event 0", 99: "event 99", -1: "event -1",
	}
	for k, want := range want {
		if got := k.String(); got != want {
			t.Errorf("kind %d: got %q, want %q", int(k), got, want)
		}
	}
}

func TestEventsOfALease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l, other := open(t, d, fencelock.WithObserver(&seen), fencelock.WithOwner("me"),
			fencelock.WithManualRenew()), open(t, d.other())
		m := l.Mutex("n")

		held := lock(t, other.Mutex("n"))
		time.AfterFunc(3*time.Second, func() { unlock(t, held) })
		le := lock(t, m)
		time.Sleep(time.Second)
		d.on("renew", slowBack(500*time.Millisecond))
		if err := le.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		d.on("renew", refuse(errStore))
		wantErr(t, "renew", le.Renew(t.Context()), fencelock.ErrUnavailable)
		_, err := m.TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrLocked)
		unlock(t, le)
		lost := lock(t, m)
		<-lost.Done()
		time.Sleep(ttl)

		const want = "acquired, renewed, renew failed, not acquired, released, acquired, lost, cleaned up"
		if got := seen.kinds(); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
		took := map[fencelock.EventKind]time.Duration{
			fencelock.Acquired: 3 * time.Second, fencelock.Renewed: 500 * time.Millisecond, fencelock.RenewFailed: 0,
			fencelock.NotAcquired: 0, fencelock.Released: 1500 * time.Millisecond,
			fencelock.Lost: trusted, fencelock.CleanedUp: 0,
		}
		errs := map[fencelock.EventKind]error{
			fencelock.RenewFailed: fencelock.ErrUnavailable,
			fencelock.NotAcquired: fencelock.ErrLocked, fencelock.Lost: fencelock.ErrLost,
		}
		tokens := map[fencelock.EventKind]fencelock.Token{
			fencelock.Acquired: le.Token(), fencelock.Renewed: le.Token(), fencelock.RenewFailed: le.Token(),
			fencelock.Released: le.Token(), fencelock.Lost: lost.Token(),
		}
		for k, took := range took {
			e := seen.of(k)[0]
			if e.Took != took || e.Token != tokens[k] || e.Name != "n" || e.Owner != "me" ||
				e.Backend != "memory" || e.At.IsZero() {
				t.Errorf("%v: got %+v, want took %v and token %d", k, e, took, tokens[k])
			}
			wantErr(t, k.String(), e.Err, errs[k])
		}
		e := seen.of(fencelock.Lost)[0]
		if e.Reason != fencelock.Expired || e.Margin != ttl-trusted {
			t.Errorf("lost: got reason %v, margin %v, want expired, %v before the store's expiry",
				e.Reason, e.Margin, ttl-trusted)
		}
	})
}

func TestMarginOfALoss(t *testing.T) {
	const grace = 3 * time.Second
	tests := map[string]struct {
		opt    fencelock.Option
		reason fencelock.Reason
		margin time.Duration
	}{
		"expired":  {fencelock.WithManualRenew(), fencelock.Expired, ttl - trusted + grace},
		"max hold": {fencelock.WithMaxHold(time.Second), fencelock.MaxHold, ttl - time.Second + grace},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var seen record
				l := open(t, d, fencelock.WithObserver(&seen), fencelock.WithGrace(grace))
				<-lock(t, l.Mutex("n", tt.opt)).Done()
				time.Sleep(time.Minute)
				lost := seen.of(fencelock.Lost)
				if len(lost) != 1 || lost[0].Reason != tt.reason || lost[0].Margin != tt.margin {
					t.Errorf("got %+v, want one loss by %v with a margin of %v", lost, tt.reason, tt.margin)
				}
			})
		})
	}
}

func TestBrokenIsNoExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l := open(t, d, fencelock.WithObserver(&seen))
		lock(t, l.Mutex("n"))
		if err := l.Break(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		lost := seen.of(fencelock.Lost)
		if len(lost) != 1 || lost[0].Reason != fencelock.Revoked || lost[0].Margin != 0 {
			t.Errorf("got %+v, want one loss, revoked", lost)
		}
	})
}

// Every lease that is acquired is released or lost, once.
func TestEventsBalance(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l := openLoose(t, d, fencelock.WithObserver(&seen), fencelock.WithReentrancy())
		unlock(t, lock(t, l.Mutex("unlocked")))
		<-lock(t, l.Mutex("expired", fencelock.WithManualRenew())).Done()
		lock(t, l.Mutex("broken"))
		if err := l.Break(t.Context(), "broken"); err != nil {
			t.Error(err)
		}
		again := lock(t, l.Mutex("entered twice"))
		ctx := carry(t, t.Context(), again)
		inner, err := l.Mutex("entered twice").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, inner)
		unlock(t, again)
		lock(t, l.Mutex("closed"))
		lock(t, l.Mutex("closed without an answer"))
		d.on("release", about(func(name string) bool { return name == "closed without an answer" }, refuse(errStore)))
		wantErr(t, "close", l.Close(), fencelock.ErrUnavailable)

		ends := map[string]string{}
		for _, e := range append(seen.of(fencelock.Released), seen.of(fencelock.Lost)...) {
			ends[e.Name] += e.Kind.String() + fmt.Sprint(int(e.Reason))
		}
		want := map[string]string{
			"unlocked": "released0", "expired": "lost1", "broken": "lost2", "entered twice": "released0",
			"closed": "released0", "closed without an answer": "lost2",
		}
		for name, want := range want {
			if ends[name] != want {
				t.Errorf("%q: got %q, want %q", name, ends[name], want)
			}
		}
		if got := len(seen.of(fencelock.Acquired)); got != len(want) {
			t.Errorf("got %d acquisitions, want %d", got, len(want))
		}
	})
}

func TestEventContext(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		got := map[fencelock.EventKind]any{}
		l := open(t, d, fencelock.WithObserver(observe(func(ctx context.Context, e fencelock.Event) {
			got[e.Kind] = ctx.Value(ctxKey{})
		})))
		ctx := context.WithValue(t.Context(), ctxKey{}, "caller")
		le, err := l.Mutex("n").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Mutex("n").TryLock(ctx)
		wantErr(t, "trylock", err, fencelock.ErrLocked)
		if err := le.Renew(ctx); err != nil {
			t.Error(err)
		}
		if err := le.Unlock(ctx); err != nil {
			t.Error(err)
		}
		for _, k := range []fencelock.EventKind{
			fencelock.Acquired, fencelock.NotAcquired, fencelock.Renewed, fencelock.Released,
		} {
			if got[k] != "caller" {
				t.Errorf("%v: the event's ctx is not the caller's", k)
			}
		}
	})
}

type observe func(context.Context, fencelock.Event)

func (f observe) Observe(ctx context.Context, e fencelock.Event) { f(ctx, e) }

func TestNoSecretLeaves(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l := openLoose(t, d, fencelock.WithObserver(&seen))
		var texts []string
		say := func(errs ...error) { texts = append(texts, fmt.Sprintf("%v %+v %#v", errs, errs, errs)) }
		for _, s := range []step{nil, loseReply, refuse(fencelock.ErrInvalid)} {
			d.on("acquire", s)
			_, err := l.Mutex("n").TryLock(t.Context())
			say(err)
		}
		d.on("acquire", nil)
		le := lock(t, l.Mutex("m"))
		for _, s := range []step{loseReply, hang, refuse(fencelock.ErrLost)} {
			d.on("renew", s)
			d.on("release", s)
			say(le.Renew(t.Context()), le.Unlock(t.Context()), le.Err())
		}
		say(l.Close())
		for _, e := range seen.events {
			texts = append(texts, fmt.Sprintf("%v %+v", e, e))
		}
		all := strings.Join(texts, "\n")
		for _, nonce := range d.secrets() {
			if strings.Contains(all, nonce) {
				t.Errorf("the nonce %s shows in an event or error", nonce)
			}
		}
		if len(d.secrets()) < 3 || len(seen.events) < 5 {
			t.Errorf("got %d nonces and %d events, want more to look at", len(d.secrets()), len(seen.events))
		}
	})
}
