package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

func TestLockUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other())
		le := lock(t, a.Mutex("n"))
		_, err := b.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock of a held lock", err, fencelock.ErrLocked)
		_, err = a.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock of a lock held by the same Locker", err, fencelock.ErrLocked)
		wantHeld(t, "after the grant", le)
		unlock(t, le)
		wantErr(t, "second unlock", le.Unlock(t.Context()), fencelock.ErrReleased)
		wantErr(t, "err", le.Err(), fencelock.ErrReleased)
		wantErr(t, "renew", le.Renew(t.Context()), fencelock.ErrReleased)
		if !closed(le.Done()) {
			t.Error("Done is open after Unlock")
		}
		lock(t, b.Mutex("n"))
	})
}

func TestOneValueManyTimes(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		m := open(t, d).Mutex("n")
		for range 10 {
			unlock(t, lock(t, m))
		}
		le, err := m.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, le)
	})
}

func TestContendersExclude(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		lockers := []*fencelock.Locker{open(t, d), open(t, d.other()), open(t, d.other())}
		const each, rounds = 34, 3
		counter := 0
		var wg sync.WaitGroup
		for _, l := range lockers {
			m := l.Mutex("n")
			for range each {
				wg.Go(func() {
					for range rounds {
						le, err := m.Lock(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						read := counter
						time.Sleep(time.Millisecond)
						counter = read + 1
						unlock(t, le)
					}
				})
			}
		}
		wg.Wait()
		if want := len(lockers) * each * rounds; counter != want {
			t.Errorf("the guarded counter: got %d, want %d", counter, want)
		}
	})
}

func TestNamesDoNotMeet(t *testing.T) {
	names := []string{
		"a", "A", "a/b", "a/", "/", "/a", "..", ".", " ", "a b", "{}", "{a}", "%", "%2F", "a%2Fb", "\n", "*", "?",
		"caf\u00e9", "cafe\u0301", "fencelock:a", ":", strings.Repeat("x", 512), strings.Repeat("x", 511),
	}
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other())
		for _, name := range names {
			if le := lock(t, a.Mutex(name)); le.Name() != name {
				t.Errorf("name: got %q, want %q", le.Name(), name)
			}
		}
		for _, name := range names {
			_, err := b.Mutex(name).TryLock(t.Context())
			wantErr(t, name, err, fencelock.ErrLocked)
			info, err := b.Inspect(t.Context(), name)
			if err != nil || !info.Held || info.Name != name {
				t.Errorf("inspect %q: got %+v, %v", name, info, err)
			}
		}
	})
}

func TestTryLockTakesTheLockOfADeadHolder(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		d.deaf = true
		a, b := open(t, d, fencelock.WithManualRenew()), open(t, d.other())
		d.on("abandon", refuse(errStore)) // the holder is cut off
		lock(t, a.Mutex("n"))
		time.Sleep(ttl - time.Millisecond)
		_, err := b.Mutex("n").TryLock(t.Context())
		wantErr(t, "before the store's expiry", err, fencelock.ErrLocked)
		time.Sleep(time.Millisecond)
		if _, err := b.Mutex("n").TryLock(t.Context()); err != nil {
			t.Errorf("after the store's expiry: %v", err)
		}
		d.on("abandon", nil)
	})
}

func TestDoneContextSendsNothing(t *testing.T) {
	cause := errors.New("the cause")
	calls := map[string]func(context.Context, *fencelock.Locker) error{
		"lock": func(ctx context.Context, l *fencelock.Locker) error {
			_, err := l.Mutex("n").Lock(ctx)
			return err
		},
		"trylock": func(ctx context.Context, l *fencelock.Locker) error {
			_, err := l.Mutex("n").TryLock(ctx)
			return err
		},
		"do": func(ctx context.Context, l *fencelock.Locker) error {
			return l.Do(ctx, "n", func(context.Context, *fencelock.Lease) error {
				t.Error("do: the function was called")
				return nil
			})
		},
		"inspect": func(ctx context.Context, l *fencelock.Locker) error {
			_, err := l.Inspect(ctx, "n")
			return err
		},
		"break": func(ctx context.Context, l *fencelock.Locker) error { return l.Break(ctx, "n") },
		"list": func(ctx context.Context, l *fencelock.Locker) (err error) {
			for _, err = range l.List(ctx, "") {
			}
			return err
		},
	}
	for name, do := range calls {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				ctx, cancel := context.WithCancelCause(t.Context())
				cancel(cause)
				wantErr(t, name, do(ctx, l), context.Canceled, cause)
				synctest.Wait()
				if got := d.count(); got != 0 {
					t.Errorf("%s: got %d calls of the driver, want none", name, got)
				}
			})
		})
	}
}

func TestWaitEndedByContext(t *testing.T) {
	cause := errors.New("the cause")
	const bound = 3 * time.Second
	tests := map[string]struct {
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want []error
	}{
		"deadline": {
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, bound)
			}, []error{context.DeadlineExceeded},
		},
		"deadline with cause": {
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeoutCause(ctx, bound, cause)
			}, []error{context.DeadlineExceeded, cause},
		},
		"cancel with cause": {
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(ctx)
				timer := time.AfterFunc(bound, func() { cancel(cause) })
				return ctx, func() { timer.Stop(); cancel(nil) }
			}, []error{context.Canceled, cause},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				a, b := open(t, d.other()), open(t, d)
				lock(t, a.Mutex("n"))
				ctx, cancel := tt.ctx(t.Context())
				defer cancel()
				second := background(ctx, b.Mutex("n")) // it waits at the store
				third := background(ctx, b.Mutex("n"))  // it waits in this process
				start := time.Now()
				for _, r := range []result{<-second, <-third} {
					wantErr(t, name, r.err, append(tt.want, fencelock.ErrLocked)...)
					wantNot(t, name, r.err, fencelock.ErrUnavailable)
				}
				wantTook(t, name, start, bound, bound)
			})
		})
	}
}

func TestWaitEndedByContextWithoutAnAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", hang)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Mutex("n").Lock(ctx)
		wantErr(t, "lock", err, context.DeadlineExceeded)
		wantNot(t, "the store never said that it is held", err, fencelock.ErrLocked)
	})
}

// What a driver's wait says of its end is said once.
func TestWaitEndedByContextInAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", func(c call) error {
			<-c.ctx.Done()
			return core.Ended(c.ctx, true, errStore)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Mutex("n").Lock(ctx)
		wantErr(t, "lock", err, context.DeadlineExceeded, fencelock.ErrLocked, fencelock.ErrUnavailable, errStore)
		if err != nil && strings.Count(err.Error(), context.DeadlineExceeded.Error()) != 1 {
			t.Errorf("got %v, want the end of the context once", err)
		}
	})
}

func TestStoreErrors(t *testing.T) {
	tests := []struct {
		give error
		want []error
	}{
		{errStore, []error{fencelock.ErrUnavailable, errStore}},
		{fmt.Errorf("node 3: %w", errStore), []error{fencelock.ErrUnavailable, errStore}},
		// a timeout of the driver's own
		{context.DeadlineExceeded, []error{fencelock.ErrUnavailable, context.DeadlineExceeded}},
		{fencelock.ErrInvalid, []error{fencelock.ErrInvalid}},
		{fmt.Errorf("wrong type: %w", fencelock.ErrInvalid), []error{fencelock.ErrInvalid}},
		{fencelock.ErrUnsupported, []error{fencelock.ErrUnsupported}},
	}
	for _, tt := range tests {
		bubble(t, func(t *testing.T, d *fake) {
			m := open(t, d).Mutex("n")
			d.on("acquire", refuse(tt.give))
			for what, acquire := range map[string]func(context.Context) (*fencelock.Lease, error){
				"lock": m.Lock, "trylock": m.TryLock,
			} {
				_, err := acquire(t.Context())
				wantErr(t, what, err, tt.want...)
				if got := opErrors(err); got != 1 {
					t.Errorf("%s: got %d OpErrors in %v, want 1", what, got, err)
				}
			}
		})
	}
}

func TestTryLockIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		d.on("acquire", hang)
		start := time.Now()
		_, err := l.Mutex("n").TryLock(t.Context())
		wantErr(t, "trylock", err, fencelock.ErrUnavailable)
		wantTook(t, "trylock", start, 5*time.Second, 5*time.Second)
	})
}

// A try that took long may have been sent twice on its way, and its other copy be granted after the
// answer: it is cleaned up.
func TestSlowTryIsCleanedUp(t *testing.T) {
	for _, tt := range []struct {
		took     time.Duration
		abandons int
	}{{time.Millisecond, 0}, {200 * time.Millisecond, 1}} {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d)
			le := lock(t, open(t, d.other()).Mutex("n"))
			d.on("acquire", slowBack(tt.took))
			_, err := l.Mutex("n").TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrLocked)
			synctest.Wait()
			if got := d.count("abandon"); got != tt.abandons {
				t.Errorf("a try of %v: got %d clean-ups, want %d", tt.took, got, tt.abandons)
			}
			wantHeld(t, "the holder's", le)
		})
	}
}

func TestAcquireContextDoesNotOwnTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		le, err := l.Mutex("n").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(5 * ttl)
		wantHeld(t, "long after its ctx ended", le)
	})
}

func TestTokensRise(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other(), fencelock.WithManualRenew())
		var last fencelock.Token
		next := func(how string, l *fencelock.Locker) *fencelock.Lease {
			le := lock(t, l.Mutex("n"))
			if le.Token() <= last || le.Token() >= 1<<53 {
				t.Errorf("%s: got token %d after %d, want more and below 2^53", how, le.Token(), last)
			}
			last = le.Token()
			return le
		}
		unlock(t, next("first", a))
		next("release", b)
		le := next("expiry", a)
		if err := b.Break(t.Context(), "n"); err != nil {
			t.Error(err)
		}
		own := le.Token()
		le2 := next("break", a)
		if got := le.Token(); got != own {
			t.Errorf("the token of a lost lease: got %d, want its own, %d", got, own)
		}
		time.Sleep(5 * ttl)
		if got := le2.Token(); got != last {
			t.Errorf("the token after renewals: got %d, want %d", got, last)
		}
		unlock(t, le2)
	})
}

func TestFloor(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		floor := time.Now().UnixMicro() + backend.FloorAhead/2
		le := lock(t, l.Mutex("n", fencelock.WithFloor(floor)))
		if le.Token() <= floor {
			t.Errorf("got token %d, want more than the floor %d", le.Token(), floor)
		}
		unlock(t, le)
		if next := lock(t, l.Mutex("n")); next.Token() <= le.Token() {
			t.Errorf("got token %d after %d", next.Token(), le.Token())
		}
	})
}

// undone is a context of an unusual kind: its deadline is all that it has.
type undone struct {
	context.Context
	at time.Time
}

func (c undone) Deadline() (time.Time, bool) { return c.at, true }
func (undone) Done() <-chan struct{}         { return nil }
func (undone) Err() error                    { return nil }

// A network timeout that was made from the deadline of a ctx, and is seen a moment before it, is that ctx's end.
func TestTimeoutJustBeforeTheEnd(t *testing.T) {
	const moment, longer = 500 * time.Microsecond, 2 * time.Millisecond
	for _, tt := range []struct {
		name    string
		early   time.Duration
		unusual bool
		over    bool
	}{
		{"a moment before", moment, false, true},
		{"longer before", longer, false, false},
		{"a moment before, of an unusual ctx", moment, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l, end := open(t, d), time.Now().Add(100*time.Millisecond)
				d.on("acquire", func(call) error {
					time.Sleep(time.Until(end) - tt.early)
					return errStore
				})
				ctx, cancel := context.WithDeadline(t.Context(), end)
				defer cancel()
				if tt.unusual {
					ctx = undone{t.Context(), end}
				}
				_, err := l.Mutex("n").TryLock(ctx)
				if tt.over {
					wantErr(t, "trylock", err, context.DeadlineExceeded)
				} else {
					wantNot(t, "trylock", err, context.DeadlineExceeded)
					wantErr(t, "trylock", err, fencelock.ErrUnavailable)
				}
				if late := time.Since(end); late > 0 {
					t.Errorf("returned %v after the deadline", late)
				}
			})
		})
	}
}

// A ctx may have ended with another Locker, or for what another call of this package says.
func TestCauseOfThisPackage(t *testing.T) {
	for what, lock := range map[string]func(context.Context, fencelock.Mutex) (*fencelock.Lease, error){
		"lock":    func(ctx context.Context, m fencelock.Mutex) (*fencelock.Lease, error) { return m.Lock(ctx) },
		"trylock": func(ctx context.Context, m fencelock.Mutex) (*fencelock.Lease, error) { return m.TryLock(ctx) },
		"renew": func(ctx context.Context, m fencelock.Mutex) (*fencelock.Lease, error) {
			le, err := m.Lock(context.WithoutCancel(ctx))
			if err != nil {
				return nil, err
			}
			return le, le.Renew(ctx)
		},
	} {
		bubble(t, func(t *testing.T, d *fake) {
			l := open(t, d)
			d.on("acquire", hang)
			_, silent := l.Mutex("n").TryLock(t.Context())
			d.on("renew", hang)
			if what == "renew" {
				d.on("acquire", nil)
			}
			for _, cause := range []error{fmt.Errorf("another Locker: %w", fencelock.ErrClosed), silent} {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(cause) })
				_, err := lock(ctx, l.Mutex(fmt.Sprint(cause)))
				wantErr(t, what, err, context.Canceled, cause)
			}
			d.on("acquire", nil)
		})
	}
}

// What the store says as ctx ends is told beside the end of ctx and its cause, and nothing else is.
func TestOutageAsTheContextEnds(t *testing.T) {
	for _, said := range []error{errStore, context.Canceled} {
		bubble(t, func(t *testing.T, d *fake) {
			l, cause := open(t, d), errors.New("the program ends")
			ctx, cancel := context.WithCancelCause(t.Context())
			d.on("acquire", func(call) error {
				cancel(cause)
				return backend.Unavailable(said)
			})
			_, err := l.Mutex("n").TryLock(ctx)
			wantErr(t, "trylock", err, context.Canceled, cause, fencelock.ErrUnavailable, said)
			wantNot(t, "trylock", err, fencelock.ErrLocked)
		})
	}
}
