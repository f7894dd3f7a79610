package fencelock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
)

func TestDo(t *testing.T) {
	fault := errors.New("fn's error")
	tests := map[string]struct {
		fn      error
		release step
		want    []error // nil: none
	}{
		"both well":    {nil, pass, nil},
		"fn fails":     {fault, pass, []error{fault}},
		"unlock fails": {nil, refuse(errStore), []error{fencelock.ErrUnavailable, errStore}},
		"both fail":    {fault, refuse(errStore), []error{fault, fencelock.ErrUnavailable}},
		"lost":         {nil, refuse(fencelock.ErrLost), []error{fencelock.ErrLost}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := openLoose(t, d)
				d.on("release", tt.release)
				var inside context.Context
				err := l.Do(t.Context(), "n", func(ctx context.Context, le *fencelock.Lease) error {
					inside = ctx
					if got, ok := fencelock.LeaseFrom(ctx); got != le || !ok {
						t.Error("fn's ctx does not carry the lease")
					}
					wantHeld(t, "inside", le)
					_, err := l.Mutex("n").Lock(ctx)
					wantErr(t, "lock of the same name inside", err, fencelock.ErrDeadlock)
					return tt.fn
				})
				wantErr(t, "do", err, tt.want...)
				if got := err == nil; got != (tt.want == nil) {
					t.Errorf("do: got %v, want %v", err, tt.want)
				}
				if inside.Err() == nil {
					t.Error("fn's ctx is alive after Do")
				}
				d.on("release", nil)
				_ = l.Close()
			})
		})
	}
}

func TestDoDoesNotCallWithoutTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d), open(t, d.other())
		lock(t, a.Mutex("n"))
		called := false
		err := b.Do(within(t, time.Second), "n", func(context.Context, *fencelock.Lease) error {
			called = true
			return nil
		})
		wantErr(t, "do", err, fencelock.ErrLocked, context.DeadlineExceeded)
		if called {
			t.Error("fn was called")
		}
	})
}

func TestDoUnlocksAfterAPanic(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		func() {
			defer func() {
				if got := recover(); got != "at the disco" {
					t.Errorf("got panic %v, want fn's", got)
				}
			}()
			_ = l.Do(t.Context(), "n", func(context.Context, *fencelock.Lease) error { panic("at the disco") })
		}()
		wantFree(t, l, "n")
	})
}

func TestDoEndsWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		start := time.Now()
		err := l.Do(t.Context(), "n", func(ctx context.Context, _ *fencelock.Lease) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, fencelock.WithMaxHold(time.Second))
		wantTook(t, "do", start, time.Second, time.Second)
		var lost *fencelock.LostError
		if !errors.As(err, &lost) || lost.Reason != fencelock.MaxHold {
			t.Errorf("got %v, want lost by max hold", err)
		}
	})
}

func TestDoUnlocksWhenItsContextEnded(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		err := l.Do(ctx, "n", func(ctx context.Context, _ *fencelock.Lease) error {
			cancel()
			<-ctx.Done()
			return nil
		})
		if err != nil {
			t.Errorf("do: %v", err)
		}
		wantFree(t, l, "n")
	})
}
