package fencelock_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

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
