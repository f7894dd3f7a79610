package fencelock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
)

func TestInspect(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		a, b := open(t, d, fencelock.WithOwner("me"), fencelock.WithManualRenew()), open(t, d.other())
		info, err := a.Inspect(t.Context(), "n")
		if want := (fencelock.Info{Name: "n"}); err != nil || info != want {
			t.Errorf("a free lock: got %+v, %v, want %+v", info, err, want)
		}
		le := lock(t, a.Mutex("n"))
		ctx, cancel := context.WithCancel(t.Context())
		waiter := background(ctx, b.Mutex("n"))
		time.Sleep(time.Second)
		info, err = b.Inspect(t.Context(), "n")
		want := fencelock.Info{
			Name: "n", Owner: "me", Held: true, Token: le.Token(), ExpiresIn: ttl - time.Second,
			Waiters: 1,
		}
		if err != nil || info != want {
			t.Errorf("a held lock: got %+v, %v, want %+v", info, err, want)
		}
		cancel()
		wantErr(t, "the waiter", (<-waiter).err, context.Canceled)
	})
}

func TestList(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		for _, name := range []string{"jobs/a", "jobs/b", "other", "jobs"} {
			lock(t, l.Mutex(name))
		}
		tests := map[string][]string{
			"":      {"jobs", "jobs/a", "jobs/b", "other"},
			"jobs/": {"jobs/a", "jobs/b"},
			"none":  nil,
		}
		for prefix, want := range tests {
			var got []string
			for info, err := range l.List(t.Context(), prefix) {
				if err != nil || !info.Held {
					t.Errorf("list %q: got %+v, %v", prefix, info, err)
				}
				got = append(got, info.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("list %q: got %q, want %q", prefix, got, want)
			}
		}
		n := 0
		for range l.List(t.Context(), "") {
			if n++; n == 2 {
				break
			}
		}
		seq := l.List(t.Context(), "other")
		for range 2 { // a sequence may be used twice
			for info := range seq {
				n += len(info.Name)
			}
		}
		if want := 2 + 2*len("other"); n != want {
			t.Errorf("got %d, want %d", n, want)
		}
	})
}

func TestOperatorsCallsAndErrors(t *testing.T) {
	calls := map[string]func(context.Context, *fencelock.Locker) error{
		"inspect": func(ctx context.Context, l *fencelock.Locker) error {
			_, err := l.Inspect(ctx, "n")
			return err
		},
		"break": func(ctx context.Context, l *fencelock.Locker) error { return l.Break(ctx, "n") },
		"list": func(ctx context.Context, l *fencelock.Locker) (last error) {
			for _, err := range l.List(ctx, "n") {
				last = err
			}
			return last
		},
	}
	for op, do := range calls {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := openLoose(t, d)
				cause := errors.New("the cause")
				tests := map[string]struct {
					step step
					want []error
				}{
					"store error": {refuse(errStore), []error{fencelock.ErrUnavailable, errStore}},
					"rights":      {refuse(fencelock.ErrInvalid), []error{fencelock.ErrInvalid}},
					"unsupported": {refuse(fencelock.ErrUnsupported), []error{fencelock.ErrUnsupported}},
					"no answer":   {hang, []error{context.DeadlineExceeded, cause}},
				}
				for name, tt := range tests {
					d.on(op, tt.step)
					ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, cause)
					defer cancel()
					err := do(ctx, l)
					wantErr(t, name, err, tt.want...)
					if got := opErrors(err); got != 1 {
						t.Errorf("%s: got %d OpErrors in %v, want 1", name, got, err)
					}
				}
				d.on(op, hang)
				done := make(chan error, 1)
				go func() { done <- do(t.Context(), l) }()
				time.Sleep(time.Second)
				start := time.Now()
				if err := l.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				wantErr(t, "a call that Close ended", <-done, fencelock.ErrClosed)
				wantTook(t, "close", start, 0, time.Second)
			})
		})
	}
}

func TestBreak(t *testing.T) {
	for _, by := range []string{"the same Locker", "another Locker"} {
		t.Run(by, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				a, b := open(t, d), open(t, d.other())
				breaker := map[string]*fencelock.Locker{"the same Locker": a, "another Locker": b}[by]
				if err := breaker.Break(t.Context(), "n"); err != nil {
					t.Errorf("break of a free lock: %v", err)
				}
				le, other := lock(t, a.Mutex("n")), lock(t, a.Mutex("other"))
				next := background(t.Context(), b.Mutex("n"))
				if err := breaker.Break(t.Context(), "n"); err != nil {
					t.Errorf("break: %v", err)
				}
				r := <-next
				if r.err != nil || r.le.Token() <= le.Token() {
					t.Errorf("the next: got %v, %v", r.le, r.err)
				}
				time.Sleep(a.Traits().Revoked)
				wantLost(t, "the holder", le, fencelock.Revoked)
				wantErr(t, "its unlock", le.Unlock(t.Context()), fencelock.ErrLost)
				wantHeld(t, "the next holder", r.le)
				wantHeld(t, "another name", other)
			})
		})
	}
}

func TestBreakThatFailedTellsNobody(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d)
		le := lock(t, l.Mutex("n"))
		d.on("break", refuse(errStore))
		wantErr(t, "break", l.Break(t.Context(), "n"), fencelock.ErrUnavailable)
		wantHeld(t, "the holder", le)
	})
}
