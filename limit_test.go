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
