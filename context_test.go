package fencelock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
)

func TestContextEndsWithTheLease(t *testing.T) {
	tests := map[string]struct {
		end  func(*testing.T, *fencelock.Lease, *fencelock.Locker)
		want []error
	}{
		"unlock": {
			func(t *testing.T, le *fencelock.Lease, _ *fencelock.Locker) { unlock(t, le) },
			[]error{fencelock.ErrReleased},
		},
		"expired": {
			func(_ *testing.T, le *fencelock.Lease, _ *fencelock.Locker) { time.Sleep(ttl) },
			[]error{fencelock.ErrLost},
		},
		"broken": {
			func(t *testing.T, le *fencelock.Lease, l *fencelock.Locker) {
				l.Break(t.Context(), le.Name())
			},
			[]error{fencelock.ErrLost},
		},
		"closed": {
			func(_ *testing.T, _ *fencelock.Lease, l *fencelock.Locker) { l.Close() },
			[]error{fencelock.ErrReleased},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithManualRenew())
				le := lock(t, l.Mutex("n"))
				ctx, cancel := le.Context(t.Context())
				defer cancel()
				derived, cancelDerived := context.WithTimeout(context.WithValue(ctx, ctxKey{}, 1), time.Hour)
				defer cancelDerived()
				after := make(chan struct{})
				context.AfterFunc(derived, func() { close(after) })
				if ctx.Err() != nil || closed(ctx.Done()) {
					t.Fatalf("ctx of a held lease: %v", ctx.Err())
				}
				tt.end(t, le, l)
				synctest.Wait()
				for what, ctx := range map[string]context.Context{"ctx": ctx, "derived ctx": derived} {
					if !closed(ctx.Done()) || ctx.Err() != context.Canceled {
						t.Errorf("%s: got err %v, Done closed %v, want canceled", what, ctx.Err(), closed(ctx.Done()))
					}
					wantErr(t, what, context.Cause(ctx), tt.want...)
					wantErr(t, what, context.Cause(ctx), le.Err())
				}
				if !closed(after) {
					t.Error("AfterFunc of a derived context was not called")
				}
				late, cancelLate := le.Context(t.Context())
				defer cancelLate()
				wantErr(t, "a context made afterwards", context.Cause(late), tt.want...)
			})
		})
	}
}

type ctxKey struct{}

func TestContextEndsWithItsParentAndByItsFunction(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		le := lock(t, open(t, d).Mutex("n"))
		cause := errors.New("the cause")
		parent, end := context.WithCancelCause(context.WithValue(t.Context(), ctxKey{}, "value"))
		one, cancelOne := le.Context(parent)
		two, cancelTwo := le.Context(parent)
		defer cancelTwo()
		if got := one.Value(ctxKey{}); got != "value" {
			t.Errorf("the parent's value: got %v", got)
		}
		cancelOne()
		cancelOne()
		wantErr(t, "after the cancel function", context.Cause(one), context.Canceled)
		if two.Err() != nil || parent.Err() != nil {
			t.Errorf("another context: %v, the parent: %v, want both alive", two.Err(), parent.Err())
		}
		end(cause)
		wantErr(t, "after the parent's end", context.Cause(two), cause)
		wantHeld(t, "after the end of its contexts", le)
	})
}

func TestContextKeepsTheParentsDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		le := lock(t, open(t, d).Mutex("n"))
		parent := within(t, time.Minute)
		ctx, cancel := le.Context(parent)
		defer cancel()
		got, ok := ctx.Deadline()
		if want, _ := parent.Deadline(); !ok || !got.Equal(want) {
			t.Errorf("deadline: got %v, %v, want the parent's, %v", got, ok, want)
		}
		<-ctx.Done()
		wantErr(t, "at the parent's deadline", ctx.Err(), context.DeadlineExceeded)
	})
}

func TestLeaseFrom(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		if _, ok := fencelock.LeaseFrom(t.Context()); ok {
			t.Error("a plain ctx carries a lease")
		}
		outer, inner := lock(t, l.Mutex("outer")), lock(t, l.Mutex("inner"))
		one, cancelOne := outer.Context(t.Context())
		defer cancelOne()
		two, cancelTwo := inner.Context(context.WithValue(one, ctxKey{}, 1))
		defer cancelTwo()
		for want, ctx := range map[*fencelock.Lease]context.Context{outer: one, inner: context.WithoutCancel(two)} {
			if got, ok := fencelock.LeaseFrom(ctx); got != want || !ok {
				t.Errorf("got %v, %v, want the lease of %q", got, ok, want.Name())
			}
		}
		unlock(t, inner)
		if got, ok := fencelock.LeaseFrom(two); got != inner || !ok {
			t.Error("an ended lease is still the innermost")
		}
	})
}

func TestNestedContextsOfTwoLeases(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		outer, inner := lock(t, l.Mutex("outer")), lock(t, l.Mutex("inner"))
		one, cancelOne := outer.Context(t.Context())
		defer cancelOne()
		two, cancelTwo := inner.Context(one)
		defer cancelTwo()
		three, cancelThree := inner.Context(one)
		defer cancelThree()
		unlock(t, inner)
		wantErr(t, "the inner after its unlock", context.Cause(two), fencelock.ErrReleased)
		if err := one.Err(); err != nil {
			t.Errorf("the outer after the inner's unlock: %v", err)
		}
		if err := l.Break(t.Context(), "outer"); err != nil {
			t.Error(err)
		}
		wantErr(t, "the outer after its loss", context.Cause(one), fencelock.ErrLost)
		wantErr(t, "what ended first stays", context.Cause(three), fencelock.ErrReleased)
	})
}

// A loss ends every lease at once, and each ends contexts that are parents of
// the others': neither may wait for the other.
func TestNestedContextsAtTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithManualRenew())
		leases := make([]*fencelock.Lease, 20)
		for i := range leases {
			leases[i] = lock(t, l.Mutex(string(rune('a'+i))))
		}
		for round := range 40 {
			ctx := t.Context()
			for i := range leases {
				var cancel context.CancelFunc
				ctx, cancel = leases[(i*7+round)%len(leases)].Context(ctx)
				defer cancel()
			}
			defer func() { wantErr(t, "the innermost", context.Cause(ctx), fencelock.ErrLost) }()
		}
		time.Sleep(ttl)
		for _, le := range leases {
			wantLost(t, le.Name(), le, fencelock.Expired)
		}
	})
}

func TestContextCostsNoGoroutine(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le, other := lock(t, l.Mutex("n")), lock(t, l.Mutex("other"))
		parent, cancelParent := context.WithCancel(t.Context())
		defer cancelParent()
		synctest.Wait()
		before := ours()
		var ends []context.CancelFunc
		for range 1000 {
			one, end := le.Context(parent)
			ends = append(ends, end)
			two, end := other.Context(one)
			ends = append(ends, end)
			_, end = context.WithTimeout(two, time.Hour)
			ends = append(ends, end)
		}
		if got := ours(); got > before {
			t.Errorf("got %d goroutines after 1,000 contexts of two leases each, %d before", got, before)
		}
		for _, end := range ends {
			end()
		}
	})
}

func TestContextsThatEndAreForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		le := lock(t, open(t, d).Mutex("n"))
		size := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		make1000 := func(end func(context.CancelFunc, context.CancelFunc)) {
			for range 1000 {
				parent, cancelParent := context.WithCancel(context.WithValue(t.Context(), ctxKey{},
					make([]byte, 10<<10)))
				_, cancel := le.Context(parent)
				end(cancel, cancelParent)
				synctest.Wait()
			}
		}
		before := size()
		make1000(func(cancel, cancelParent context.CancelFunc) { cancel(); cancelParent() })
		make1000(func(_, cancelParent context.CancelFunc) { cancelParent() })
		if got := size(); got > before+5<<20 {
			t.Errorf("2,000 ended contexts of a lease left %d KB", (got-before)>>10)
		}
		wantHeld(t, "after its contexts", le)
	})
}

// bareCtx has a deadline, and neither Done nor Err tell when it has passed.
type bareCtx struct {
	context.Context
	at time.Time
}

func (c bareCtx) Deadline() (time.Time, bool) { return c.at, true }

// lateCtx has a deadline, and Done and Err tell of it too late.
type lateCtx struct{ bareCtx }

func (c lateCtx) Done() <-chan struct{} { return c.Context.Done() }

// Contexts of unusual kinds end a call as the usual ones do.
func TestUnusualContexts(t *testing.T) {
	cause := errors.New("a cause")
	in := func(d time.Duration) bareCtx { return bareCtx{context.Background(), time.Now().Add(d)} }
	tests := map[string]struct {
		make func(t *testing.T) context.Context
		took time.Duration
		want []error
	}{
		"a deadline without Done": {
			func(*testing.T) context.Context { return in(time.Second) }, time.Second,
			[]error{context.DeadlineExceeded},
		},
		"a deadline without Done, now over": {
			func(*testing.T) context.Context { return in(-time.Second) }, 0,
			[]error{context.DeadlineExceeded},
		},
		"a deadline that Done tells late": {func(t *testing.T) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			t.Cleanup(cancel)
			b := in(time.Second)
			b.Context = ctx
			return lateCtx{b}
		}, 1500 * time.Millisecond, []error{context.DeadlineExceeded}},
		"a cause": {func(t *testing.T) context.Context {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
			t.Cleanup(cancel)
			return ctx
		}, time.Second, []error{context.DeadlineExceeded, cause}},
		"a cause, now over": {func(t *testing.T) context.Context {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(cause)
			return ctx
		}, 0, []error{context.Canceled, cause}},
		"without cancel over one that is over": {func(t *testing.T) context.Context {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			short, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			t.Cleanup(stop)
			return short
		}, time.Second, []error{context.DeadlineExceeded}},
	}
	for name, tt := range tests {
		calls := map[string]func(ctx context.Context, l *fencelock.Locker, le *fencelock.Lease) error{
			"lock in the queue": func(ctx context.Context, l *fencelock.Locker, _ *fencelock.Lease) error {
				_, err := l.Mutex("n").Lock(ctx)
				return err
			},
			"lock in line": func(ctx context.Context, l *fencelock.Locker, le *fencelock.Lease) error {
				first, cancel := context.WithCancel(context.Background())
				done := background(first, l.Mutex("n"))
				defer func() { cancel(); <-done }()
				_, err := l.Mutex("n").Lock(ctx)
				return err
			},
			"renew": func(ctx context.Context, _ *fencelock.Locker, le *fencelock.Lease) error { return le.Renew(ctx) },
			"inspect": func(ctx context.Context, l *fencelock.Locker, _ *fencelock.Lease) error {
				_, err := l.Inspect(ctx, "n")
				return err
			},
			"break": func(ctx context.Context, l *fencelock.Locker, _ *fencelock.Lease) error {
				return l.Break(ctx, "n")
			},
		}
		for what, call := range calls {
			t.Run(name+"/"+what, func(t *testing.T) {
				bubble(t, func(t *testing.T, d *fake) {
					l := open(t, d, fencelock.WithManualRenew())
					le := lock(t, l.Mutex("n"))
					d.on("renew", hang)
					d.on("inspect", hang)
					ctx := tt.make(t)
					start := time.Now()
					err := call(ctx, l, le)
					wantTook(t, what, start, tt.took, tt.took+20*time.Millisecond)
					wantErr(t, what, err, tt.want...)
					d.on("renew", nil)
					d.on("inspect", nil)
					start = time.Now()
					unlockErr := le.Unlock(ctx) // done already, and works
					wantTook(t, "unlock", start, 0, 0)
					wantErr(t, "unlock", unlockErr, nil)
				})
			})
		}
	}
}
