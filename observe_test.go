package fencelock_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
		got, aside := map[fencelock.EventKind]any{}, map[fencelock.EventKind]bool{}
		l := open(t, d, fencelock.WithObserver(observe(func(ctx context.Context, e fencelock.Event) {
			if ctx == context.Background() {
				aside[e.Kind] = true
			} else {
				got[e.Kind] = ctx.Value(ctxKey{})
			}
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
		if le, err = l.Mutex("n").Lock(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // it is renewed
		if err := d.other().Break(ctx, "n"); err != nil {
			t.Error(err)
		}
		<-le.Done()
		synctest.Wait()
		if !aside[fencelock.Renewed] || !aside[fencelock.Lost] {
			t.Errorf("with no caller's ctx came %v, want a renewal and the loss", aside)
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

// beginner is a Beginner that puts the events of calls down with their beginning, as "locking → acquired",
// and those of no call as "· lost".
type beginner struct {
	t  *testing.T
	mu sync.Mutex

	lines []string
	open  map[*fencelock.Event]bool // begun and not ended
}

const cleanedUp = "· cleaned up"

type begunKey struct{ b *beginner }

func (b *beginner) Begin(ctx context.Context, e fencelock.Event) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Backend != "memory" || e.Owner == "" || e.At.IsZero() || e.Name == "" {
		b.t.Errorf("begin: got %+v, want backend, owner, name and time", e)
	}
	if held := e.Token != 0 && e.Hold != (fencelock.HoldID{}); held != (e.Kind == fencelock.Unlocking) {
		b.t.Errorf("begin: got %+v, want a token and a hold with unlocking, and only then", e)
	}
	if b.open == nil {
		b.open = map[*fencelock.Event]bool{}
	}
	b.open[&e] = true
	return context.WithValue(ctx, begunKey{b}, &e)
}

func (b *beginner) Observe(ctx context.Context, e fencelock.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	began, _ := ctx.Value(begunKey{b}).(*fencelock.Event)
	if began == nil {
		b.lines = append(b.lines, "· "+e.Kind.String())
		return
	}
	if !b.open[began] || began.Name != e.Name || began.Owner != e.Owner {
		b.t.Errorf("%v: began as %+v, seen as %+v, want each call once and with its own name", e.Kind, *began, e)
	}
	delete(b.open, began)
	b.lines = append(b.lines, began.Kind.String()+" → "+e.Kind.String())
}

// take returns what was put down since the last time, and checks that no call is left open.
func (b *beginner) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.open) > 0 {
		b.t.Errorf("%d calls have begun and have no event", len(b.open))
	}
	all := strings.Join(b.lines, ", ")
	b.lines = nil
	return all
}

func TestEveryCallEndsInOneEvent(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		seen := &beginner{t: t}
		l, other := openLoose(t, d, fencelock.WithObserver(seen), fencelock.WithManualRenew()), open(t, d.other())
		m, again := l.Mutex("n"), l.Mutex("n", fencelock.WithReentrancy())
		// A call's event is in its place, that of a clean-up in the background is wherever its goroutine ran.
		want := func(what, want string) {
			t.Helper()
			lines := strings.Split(seen.take(), ", ")
			slices.SortStableFunc(lines, func(a, b string) int {
				return cmp.Compare(strings.Count(a, cleanedUp), strings.Count(b, cleanedUp))
			})
			if got := strings.Join(lines, ", "); got != want {
				t.Errorf("%s: got %q, want %q", what, got, want)
			}
		}
		le := lock(t, m)
		want("lock", "locking → acquired")
		if err := le.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		want("renew", "· renewed")
		ctx := carry(t, t.Context(), le)
		_, err := m.Lock(ctx)
		wantErr(t, "lock", err, fencelock.ErrDeadlock)
		_, err = m.TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrLocked)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = m.Lock(short)
		wantErr(t, "lock", err, fencelock.ErrLocked)
		_, err = m.TryLock(short)
		wantErr(t, "trylock", err, context.DeadlineExceeded)
		_, err = l.Mutex("\x00").Lock(t.Context())
		wantErr(t, "lock", err, fencelock.ErrInvalid)
		time.Sleep(time.Second)
		want("failures",
			"locking → not acquired, trylocking → not acquired, locking → not acquired, "+
				"trylocking → not acquired, locking → not acquired, · cleaned up")
		inner, err := again.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, le)
		wantErr(t, "unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
		d.on("release", refuse(errStore))
		wantErr(t, "unlock", inner.Unlock(t.Context()), fencelock.ErrUnavailable)
		d.on("release", nil)
		unlock(t, inner)
		want("two leases",
			"locking → joined, unlocking → left, unlocking → not released, unlocking → not "+
				"released, unlocking → released")
		le = lock(t, m)
		if err := other.Break(t.Context(), "n"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		wantErr(t, "unlock of what is lost", le.Unlock(t.Context()), fencelock.ErrLost)
		want("a loss", "locking → acquired, · lost, unlocking → not released, · cleaned up")
		lock(t, m)
		waits := background(t.Context(), m)
		le = lock(t, l.Mutex("other"))
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wantErr(t, "wait", (<-waits).err, fencelock.ErrClosed)
		lines := strings.Split(seen.take(), ", ")
		slices.Sort(lines)
		if got, want := strings.Join(lines, ", "), "locking → acquired, locking → acquired, "+
			"locking → not acquired, · cleaned up, · released, · released"; got != want {
			t.Errorf("close: got %q, want %q", got, want)
		}
		_, err = m.Lock(t.Context())
		wantErr(t, "lock", err, fencelock.ErrClosed)
		wantErr(t, "unlock", le.Unlock(t.Context()), fencelock.ErrReleased)
		want("after close", "locking → not acquired, unlocking → not released")
	})
}

func TestBeginsContextReachesTheDriver(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		seen := &beginner{t: t}
		l := open(t, d, fencelock.WithObserver(seen))
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), ctxKey{}, "caller"))
		defer cancel(nil)
		for _, op := range []string{"acquire", "release"} {
			d.on(op, func(c call) error {
				if c.ctx.Value(begunKey{seen}) == nil || c.ctx.Value(ctxKey{}) != "caller" {
					t.Errorf("%s: the driver's ctx has not the values of Begin's and of the caller's", op)
				}
				return c.apply()
			})
		}
		le, err := l.Mutex("n").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := le.Unlock(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestObserversAdd(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var order []string
		tell := func(name string) fencelock.Observer {
			return observe(func(_ context.Context, e fencelock.Event) {
				order = append(order, name+" "+e.Kind.String())
			})
		}
		one, two := &beginner{t: t}, &beginner{t: t}
		l := open(t, d, fencelock.WithObserver(tell("first")), fencelock.WithObserver(one), fencelock.WithObserver(two),
			fencelock.WithObserver(tell("last")),
			fencelock.WithObserver(observe(func(ctx context.Context, e fencelock.Event) {
				if e.Kind == fencelock.Acquired &&
					(ctx.Value(begunKey{one}) == nil || ctx.Value(begunKey{two}) == nil) {
					t.Error("an observer does not see what the Begin of the others made")
				}
			})))
		unlock(t, lock(t, l.Mutex("n")))
		if got, want := strings.Join(order, ", "), "first acquired, last acquired, "+
			"first released, last released"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		for _, b := range []*beginner{one, two} {
			if got, want := b.take(), "locking → acquired, unlocking → released"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
}

// Acquired is the first event of a hold even if its observer is slow and the lease ends meanwhile.
func TestAcquiredComesFirst(t *testing.T) {
	ends := map[string]struct {
		end   func(t *testing.T, l *fencelock.Locker)
		after time.Duration
		want  string
	}{
		"it expires":           {func(*testing.T, *fencelock.Locker) {}, trusted, "acquired, lost"},
		"the Locker is closed": {func(t *testing.T, l *fencelock.Locker) { _ = l.Close() }, 0, "acquired, released"},
		"it is broken": {
			func(t *testing.T, l *fencelock.Locker) { _ = l.Break(context.Background(), "n") }, 0,
			"acquired, lost",
		},
	}
	for name, tt := range ends {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				var seen record
				var l *fencelock.Locker
				var at time.Time
				l = openLoose(t, d, fencelock.WithManualRenew(),
					fencelock.WithObserver(observe(func(ctx context.Context, e fencelock.Event) {
						switch e.Kind {
						case fencelock.Acquired:
							at = e.At.Add(tt.after)
							go tt.end(t, l)
							time.Sleep(2 * ttl)
						case fencelock.Lost, fencelock.Released:
							if !e.At.Equal(at) {
								t.Errorf("%v: got At %v after its time", e.Kind, e.At.Sub(at))
							}
						}
						if e.Kind != fencelock.CleanedUp { // which is of no hold
							seen.Observe(ctx, e)
						}
					})))
				lock(t, l.Mutex("n"))
				synctest.Wait()
				_ = l.Close()
				if got := seen.kinds(); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
			})
		})
	}
}

func TestHoldID(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen record
		l, l2 := open(t, d, fencelock.WithObserver(&seen)), open(t, newFake(t), fencelock.WithObserver(&seen))
		for _, m := range []fencelock.Mutex{l.Mutex("n"), l.Mutex("n"), l2.Mutex("n")} {
			le := lock(t, m)
			if err := le.Renew(t.Context()); err != nil {
				t.Error(err)
			}
			_, err := m.TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrLocked)
			unlock(t, le)
		}
		counts := map[fencelock.HoldID]int{}
		for _, e := range seen.events {
			counts[e.Hold]++
		}
		if len(counts) != 4 || counts[fencelock.HoldID{}] != 3 {
			t.Errorf("got %v, want three holds with as many events each, and three events of no hold", counts)
		}
	})
}

// idle is a Beginner that does nothing.
type idle struct{}

func (idle) Begin(ctx context.Context, _ fencelock.Event) context.Context { return ctx }
func (idle) Observe(context.Context, fencelock.Event)                     {}

func TestAnObserverCostsNoAllocation(t *testing.T) {
	allocs := func(name string, opts ...fencelock.Option) float64 {
		d := newFake(t)
		l := open(t, d.other(), append(opts, fencelock.WithManualRenew())...)
		m := l.Mutex(name)
		return testing.AllocsPerRun(200, func() {
			if le, err := m.Lock(context.Background()); err == nil {
				_ = le.Unlock(context.Background())
			}
		})
	}
	if got := allocs(""); got != 1 {
		t.Errorf("a Lock of a bad name: got %v allocations, want the error's alone", got)
	}
	without, with := allocs("n"), allocs("n", fencelock.WithObserver(idle{}))
	if with != without {
		t.Errorf("Lock and Unlock: got %v allocations without an observer, %v with one, want as many", without, with)
	}
}

// slowBeginner takes a millisecond to see that something begins.
type slowBeginner struct{ took []time.Duration }

func (*slowBeginner) Begin(ctx context.Context, _ fencelock.Event) context.Context {
	time.Sleep(time.Millisecond)
	return ctx
}

func (o *slowBeginner) Observe(_ context.Context, e fencelock.Event) {
	if e.Kind == fencelock.Joined {
		o.took = append(o.took, e.Took)
	}
}

// Joined says how long the call has taken, as Acquired does.
func TestJoinedSaysHowLongItTook(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		var seen slowBeginner
		m := open(t, d, fencelock.WithReentrancy(), fencelock.WithObserver(&seen)).Mutex("n")
		le := lock(t, m)
		ctx, cancel := le.Context(t.Context())
		defer cancel()
		again, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(seen.took) != 1 || seen.took[0] != time.Millisecond {
			t.Errorf("got %v, want a millisecond", seen.took)
		}
		unlock(t, again)
		unlock(t, le)
	})
}

// An observer that panics keeps no event from the next one.
func TestObserverPanicsBesideAnother(t *testing.T) {
	t.Parallel()
	var seen []fencelock.EventKind
	l := openLoose(t, newFake(t), fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) {
		if e.Kind == fencelock.Acquired {
			panic("observer")
		}
	})), fencelock.WithObserver(observe(func(_ context.Context, e fencelock.Event) { seen = append(seen, e.Kind) })))
	if !recovered(func() { _, _ = l.Mutex("x").Lock(t.Context()) }) {
		t.Error("the panic has not come to who locks")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if len(seen) == 0 || seen[0] != fencelock.Acquired {
		t.Errorf("the second observer saw %v, want %v first", seen, fencelock.Acquired)
	}
}
