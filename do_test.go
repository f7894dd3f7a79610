package fencelock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
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

// transaction is a Handle that the holder writes through.
type transaction struct {
	wrote  bool
	cause  error
	closed bool // committed, or rolled back
}

func (x *transaction) Undo(cause error) {
	if x.cause == nil {
		x.cause = cause
	}
}

// transactional makes the locks of d transactional and returns the transaction of the next one.
func transactional(d *fake) *transaction {
	x := &transaction{}
	d.grant = func(g *backend.Grant) { g.Handle = x }
	d.on("release", func(c call) error {
		x.closed = true
		if err := c.apply(); err != nil || x.cause == nil || !x.wrote {
			return err
		}
		return &fencelock.UndoneError{Err: x.cause}
	})
	return x
}

// write writes through the lease's handle.
func write(t *testing.T, le *fencelock.Lease) {
	t.Helper()
	x, ok := le.Handle().(*transaction)
	if !ok {
		t.Fatal("the lease has no transaction")
	}
	x.wrote = true
}

// What fn wrote commits only if fn meant it, and fn's error comes back as it is.
func TestDoCommitsOnlyWhatWasMeant(t *testing.T) {
	fault := errors.New("fn's error")
	tests := map[string]struct {
		fn     func(cancel context.CancelFunc) error
		commit bool
		want   error
		undone bool // Do says so
	}{
		"well":     {func(context.CancelFunc) error { return nil }, true, nil, false},
		"fn fails": {func(context.CancelFunc) error { return fault }, false, fault, false},
		"cancelled, nil": {
			func(cancel context.CancelFunc) error { cancel(); return nil }, false, context.Canceled,
			true,
		},
		"cancelled, an error": {func(cancel context.CancelFunc) error { cancel(); return fault }, false, fault, false},
		"a panic":             {func(context.CancelFunc) error { panic(fault) }, false, fault, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d)
				x := transactional(d)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				err := func() (err error) {
					defer func() {
						if got := recover(); got != nil {
							err = got.(error)
						}
					}()
					return l.Do(ctx, "n", func(_ context.Context, le *fencelock.Lease) error {
						write(t, le)
						return tt.fn(cancel)
					})
				}()
				if committed := x.closed && x.cause == nil; committed != tt.commit {
					t.Errorf("committed: got %v (undone by %v), want %v", committed, x.cause, tt.commit)
				}
				var undone *fencelock.UndoneError
				if got := errors.As(err, &undone); got != tt.undone || !errors.Is(err, tt.want) {
					t.Errorf("do: got %v, want %v", err, tt.want)
				}
				if tt.want == fault && err != fault {
					t.Errorf("do: got %v, want fn's error as it is", err)
				}
				wantFree(t, l, "n")
			})
		})
	}
}

// An ended ctx undoes nothing where nothing could be written.
func TestDoWithoutWritesIsAsElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		x := transactional(d)
		ctx, cancel := context.WithCancel(t.Context())
		err := l.Do(ctx, "n", func(context.Context, *fencelock.Lease) error { cancel(); return nil })
		if err != nil || x.cause != nil {
			t.Errorf("do: got %v, and undone by %v; want neither", err, x.cause)
		}
	})
}

// fn's error and that of an Unlock that failed come both.
func TestDoJoinsWhatUnlockSays(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		fault := errors.New("fn's error")
		l := openLoose(t, d)
		d.on("release", refuse(fencelock.ErrLost))
		err := l.Do(t.Context(), "n", func(context.Context, *fencelock.Lease) error { return fault })
		wantErr(t, "do", err, fault, fencelock.ErrLost)
		d.on("release", nil)
	})
}

// A loss that fn has found, by its ctx's cause, is told once.
func TestDoTellsALossOnce(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d, fencelock.WithMaxHold(time.Minute))
		err := l.Do(t.Context(), "n", func(ctx context.Context, _ *fencelock.Lease) error {
			<-ctx.Done()
			return fmt.Errorf("the work: %w", context.Cause(ctx))
		})
		wantErr(t, "do", err, fencelock.ErrLost)
		if n := strings.Count(err.Error(), fencelock.ErrLost.Error()); n != 1 {
			t.Errorf("do: the loss is told %d times: %v", n, err)
		}
	})
}

// A part that enters again and fails undoes the transaction that it shares; who is outside is told.
func TestDoInsideDoUndoesBoth(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		fault := errors.New("the part's error")
		l := open(t, d, fencelock.WithReentrancy())
		x := transactional(d)
		err := l.Do(t.Context(), "n", func(ctx context.Context, le *fencelock.Lease) error {
			write(t, le)
			if err := l.Do(ctx, "n", func(context.Context, *fencelock.Lease) error { return fault }); err != fault {
				t.Errorf("the part: got %v, want its error as it is", err)
			}
			return nil
		})
		var undone *fencelock.UndoneError
		if !errors.As(err, &undone) || !errors.Is(err, fault) || x.cause != fault {
			t.Errorf("do: got %v, and undone by %v; want an UndoneError with the part's error", err, x.cause)
		}
	})
}
