package fencelock_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
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

// counting is a context that knows how many things wait for its end.
type counting struct {
	context.Context
	done    chan struct{}
	waiting atomic.Int64
}

func (c *counting) Done() <-chan struct{} { return c.done }

func (c *counting) AfterFunc(func()) func() bool {
	c.waiting.Add(1)
	return sync.OnceValue(func() bool { c.waiting.Add(-1); return true })
}

// A context that has ended leaves nothing with its parent, which may go on for ever.
func TestContextsThatEndLeaveTheParent(t *testing.T) {
	ways := map[string]func(*testing.T, *fencelock.Lease, context.Context){
		"by its function": func(_ *testing.T, le *fencelock.Lease, parent context.Context) {
			_, cancel := le.Context(parent)
			cancel()
		},
		"with the lease": func(t *testing.T, le *fencelock.Lease, parent context.Context) {
			le.Context(parent) //nolint:govet // it ends with the lease
			unlock(t, le)
		},
		"made of a lease that has ended": func(t *testing.T, le *fencelock.Lease, parent context.Context) {
			unlock(t, le)
			le.Context(parent) //nolint:govet // it has ended
		},
	}
	for name, end := range ways {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				parent := &counting{Context: t.Context(), done: make(chan struct{})}
				end(t, lock(t, open(t, d).Mutex("n")), parent)
				synctest.Wait()
				if got := parent.waiting.Load(); got != 0 {
					t.Errorf("%d things wait for the parent's end", got)
				}
			})
		})
	}
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

// A driver may do with its ctx what it likes: these are the ways in which it can learn of the end.
var listeners = map[string]func(ctx context.Context) (ended <-chan struct{}, err func() error){
	"Done": func(ctx context.Context) (<-chan struct{}, func() error) { return ctx.Done(), ctx.Err },
	"Done of a derived context": func(ctx context.Context) (<-chan struct{}, func() error) {
		derived, cancel := context.WithCancel(ctx)
		context.AfterFunc(derived, cancel)
		return derived.Done(), derived.Err
	},
	"AfterFunc": func(ctx context.Context) (<-chan struct{}, func() error) {
		ended := make(chan struct{})
		context.AfterFunc(ctx, func() { close(ended) })
		return ended, ctx.Err
	},
	"Err again and again": func(ctx context.Context) (<-chan struct{}, func() error) {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		}()
		return ended, ctx.Err
	},
}

// The ctx of a driver's call ends with whatever bounds the call, however the driver looks at it.
func TestWhatEndsADriversContext(t *testing.T) {
	calls := map[string]struct {
		op   string
		do   func(ctx context.Context, l *fencelock.Locker, le *fencelock.Lease) error
		ends func(cancel context.CancelFunc, l *fencelock.Locker) // a second after the call began
		want time.Duration                                        // after its beginning
		err  error
	}{
		"Lock, its caller gives up": {
			op: "acquire",
			do: func(ctx context.Context, l *fencelock.Locker, _ *fencelock.Lease) error {
				return second(l.Mutex("n").Lock(ctx))
			},
			ends: func(cancel context.CancelFunc, _ *fencelock.Locker) { cancel() },
			want: time.Second, err: context.Canceled,
		},
		"Lock, the Locker is closed": {
			op: "acquire",
			do: func(ctx context.Context, l *fencelock.Locker, _ *fencelock.Lease) error {
				return second(l.Mutex("n").Lock(ctx))
			},
			ends: func(_ context.CancelFunc, l *fencelock.Locker) { _ = l.Close() },
			want: time.Second, err: fencelock.ErrClosed,
		},
		"TryLock, no answer": {
			op: "acquire",
			do: func(ctx context.Context, l *fencelock.Locker, _ *fencelock.Lease) error {
				return second(l.Mutex("n").TryLock(ctx))
			},
			ends: func(context.CancelFunc, *fencelock.Locker) {},
			want: 5 * time.Second, err: fencelock.ErrUnavailable,
		},
		"Inspect, its caller gives up": {
			op: "inspect",
			do: func(ctx context.Context, l *fencelock.Locker, _ *fencelock.Lease) error {
				return second(l.Inspect(ctx, "n"))
			},
			ends: func(cancel context.CancelFunc, _ *fencelock.Locker) { cancel() },
			want: time.Second, err: context.Canceled,
		},
		"Unlock, its caller gives up": {
			op:   "release",
			do:   func(ctx context.Context, _ *fencelock.Locker, le *fencelock.Lease) error { return le.Unlock(ctx) },
			ends: func(cancel context.CancelFunc, _ *fencelock.Locker) { cancel() },
			want: time.Second, err: context.Canceled,
		},
		"Unlock, no answer": {
			op:   "release",
			do:   func(ctx context.Context, _ *fencelock.Locker, le *fencelock.Lease) error { return le.Unlock(ctx) },
			ends: func(context.CancelFunc, *fencelock.Locker) {},
			want: 5 * time.Second, err: fencelock.ErrUnavailable,
		},
	}
	for name, tt := range calls {
		for how, listen := range listeners {
			t.Run(name+": "+how, func(t *testing.T) {
				bubble(t, func(t *testing.T, d *fake) {
					l := openLoose(t, d, fencelock.WithManualRenew())
					le := lock(t, l.Mutex("held"))
					var goroutines int
					d.on(tt.op, func(c call) error {
						before := runtime.NumGoroutine()
						ended, err := listen(c.ctx)
						goroutines = runtime.NumGoroutine() - before
						<-ended
						return err()
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					go func() {
						time.Sleep(time.Second)
						tt.ends(cancel, l)
					}()
					start := time.Now()
					err := tt.do(ctx, l, le)
					if took := time.Since(start); took < tt.want || took > tt.want+time.Millisecond {
						t.Errorf("took %v, want %v", took, tt.want)
					}
					wantErr(t, name, err, tt.err)
					if how != "Err again and again" && goroutines > 0 {
						t.Errorf("the context costs %d goroutines", goroutines)
					}
					d.on(tt.op, nil)
					synctest.Wait()
					_ = l.Close()
				})
			})
		}
	}
}

// What a driver started with its ctx and forgot ends with the call, and what it took back is not called.
func TestADriversContextEndsWithTheCall(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		called, backed := make(chan error, 2), false
		for _, op := range []string{"acquire", "release"} {
			d.on(op, func(c call) error {
				if c.ctx.Err() != nil {
					t.Errorf("%s: it has ended before the call", op)
				}
				context.AfterFunc(c.ctx, func() { called <- c.ctx.Err() })
				stop := context.AfterFunc(c.ctx, func() { backed = true })
				if !stop() || stop() {
					t.Errorf("%s: want AfterFunc stopped once", op)
				}
				return c.apply()
			})
		}
		unlock(t, lock(t, l.Mutex("n")))
		for range 2 {
			if err := <-called; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
		}
		synctest.Wait()
		if backed {
			t.Error("what was stopped was called")
		}
	})
}

func TestDeadlineOfADriversContext(t *testing.T) {
	calls := map[string]struct {
		op     string
		do     func(ctx context.Context, l *fencelock.Locker, le *fencelock.Lease) error
		caller time.Duration // the caller's deadline; 0: none
		want   time.Duration // 0: none
	}{
		"Lock":                        {"acquire", lockN, 0, 0},
		"Lock with a deadline":        {"acquire", lockN, time.Second, time.Second},
		"TryLock":                     {"acquire", tryN, 0, 5 * time.Second},
		"TryLock with a sooner one":   {"acquire", tryN, 2 * time.Second, 2 * time.Second},
		"TryLock with a later one":    {"acquire", tryN, time.Hour, 5 * time.Second},
		"Unlock":                      {"release", unlockIt, 0, 5 * time.Second},
		"Unlock with a sooner one":    {"release", unlockIt, 2 * time.Second, 2 * time.Second},
		"Unlock with a much too soon": {"release", unlockIt, time.Millisecond, time.Second},
		"Unlock with a later one":     {"release", unlockIt, time.Hour, 5 * time.Second},
	}
	for name, tt := range calls {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				le := lock(t, l.Mutex("held"))
				d.on(tt.op, func(c call) error {
					at, ok := c.ctx.Deadline()
					if got := time.Until(at); ok != (tt.want > 0) || ok && got != tt.want {
						t.Errorf("got the deadline %v, %v from now, want %v", ok, got, tt.want)
					}
					return c.apply()
				})
				ctx := t.Context()
				if tt.caller > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.caller)
					defer cancel()
				}
				if err := tt.do(ctx, l, le); err != nil {
					t.Error(err)
				}
				d.on(tt.op, nil)
			})
		})
	}
}

func lockN(ctx context.Context, l *fencelock.Locker, _ *fencelock.Lease) error {
	return second(l.Mutex("n").Lock(ctx))
}

func tryN(ctx context.Context, l *fencelock.Locker, _ *fencelock.Lease) error {
	return second(l.Mutex("n").TryLock(ctx))
}

func unlockIt(ctx context.Context, _ *fencelock.Locker, le *fencelock.Lease) error {
	return le.Unlock(ctx)
}

func second[T any](_ T, err error) error { return err }

// What a lock costs the program itself: see the counts of the whole cycle with a store in package bench.
func TestAllocationsOfTheEngine(t *testing.T) {
	d := newFake(t).other()
	l := open(t, d)
	m := l.Mutex("n")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	got := testing.AllocsPerRun(200, func() {
		le, err := m.Lock(ctx)
		if err == nil {
			err = le.Unlock(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	})
	// Of them 8 are the memory driver's, and one the race detector's.
	if got > 16 {
		t.Errorf("got %v allocations for Lock and Unlock, want at most 16", got)
	}
}
