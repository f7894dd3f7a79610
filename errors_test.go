package fencelock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

var sentinels = map[string]error{
	"ErrLocked": fencelock.ErrLocked, "ErrLost": fencelock.ErrLost, "ErrReleased": fencelock.ErrReleased,
	"ErrDeadlock": fencelock.ErrDeadlock, "ErrStale": fencelock.ErrStale, "ErrUnavailable": fencelock.ErrUnavailable,
	"ErrUnsupported": fencelock.ErrUnsupported, "ErrInvalid": fencelock.ErrInvalid, "ErrClosed": fencelock.ErrClosed,
}

func TestWhatMatchesWhat(t *testing.T) {
	lost := &fencelock.LostError{Reason: fencelock.SessionLost}
	stale := &fencelock.StaleError{Max: 7}
	tests := map[string]struct {
		err  error
		want []string // the sentinels it matches, and no others
	}{
		"lost":        {lost, []string{"ErrLost"}},
		"stale":       {stale, []string{"ErrStale"}},
		"invalid":     {backend.Invalid("bad: %w", errStore), []string{"ErrInvalid"}},
		"unsupported": {backend.Unsupported("no"), []string{"ErrUnsupported"}},
		"unavailable": {backend.Unavailable(errStore), []string{"ErrUnavailable"}},
		"joined":      {errors.Join(lost, fencelock.ErrClosed), []string{"ErrLost", "ErrClosed"}},
		"plain":       {errStore, nil},
	}
	for s, err := range sentinels {
		tests[s] = struct {
			err  error
			want []string
		}{err, []string{s}}
	}
	for name, tt := range tests {
		wrapped := &fencelock.OpError{Op: "lock", Backend: "memory", Name: "n", Err: tt.err}
		for how, err := range map[string]error{
			"bare": tt.err, "in an OpError": wrapped, "deeper": fmt.Errorf("doing it: %w", wrapped),
		} {
			want := map[string]bool{}
			for _, w := range tt.want {
				want[w] = true
			}
			for s, sentinel := range sentinels {
				if got := errors.Is(err, sentinel); got != want[s] {
					t.Errorf("%s, %s: matches %s: got %v, want %v", name, how, s, got, want[s])
				}
			}
		}
	}
	got := backend.Unavailable(backend.Unavailable(errStore)).Error()
	if strings.Count(got, fencelock.ErrUnavailable.Error()) != 1 {
		t.Errorf("got %q, want the mark once", got)
	}
	wantErr(t, "the cause", backend.Unavailable(errStore), errStore)
	wantErr(t, "the cause", backend.Invalid("bad: %w", errStore), errStore)
}

func TestErrorsAs(t *testing.T) {
	var lost *fencelock.LostError
	unlock := func(err error) error {
		return fmt.Errorf("x: %w", &fencelock.OpError{Op: "unlock", Err: err})
	}
	err := unlock(&fencelock.LostError{Reason: fencelock.MaxHold})
	if !errors.As(err, &lost) || lost.Reason != fencelock.MaxHold {
		t.Errorf("got %v, want the LostError", lost)
	}
	var stale *fencelock.StaleError
	if err := fmt.Errorf("x: %w", &fencelock.StaleError{Max: 7}); !errors.As(err, &stale) || stale.Max != 7 {
		t.Errorf("got %v, want the StaleError", stale)
	}
	var op *fencelock.OpError
	if err := unlock(fencelock.ErrLost); !errors.As(err, &op) || op.Op != "unlock" {
		t.Errorf("got %v, want the OpError", op)
	}
}

func TestOpErrorText(t *testing.T) {
	tests := []struct {
		err  fencelock.OpError
		want string
	}{
		{fencelock.OpError{Op: "open", Err: errStore}, "fencelock: open: connection reset by peer"},
		{
			fencelock.OpError{Op: "open", Backend: "redis", Err: errStore},
			"fencelock: open (redis): connection reset by peer",
		},
		{
			fencelock.OpError{Op: "lock", Backend: "redis", Name: "a\nb", Err: fencelock.ErrLocked},
			`fencelock: lock "a\nb" (redis): locked by another holder`,
		},
		{
			fencelock.OpError{Op: "lock", Name: strings.Repeat("é", 200), Err: fencelock.ErrLocked},
			`fencelock: lock "` + strings.Repeat("é", 40) + `…": locked by another holder`,
		},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestReasons(t *testing.T) {
	want := map[fencelock.Reason]string{
		fencelock.Expired: "expired", fencelock.Revoked: "revoked", fencelock.SessionLost: "session lost",
		fencelock.MaxHold: "maximum hold reached", 0: "reason 0", 9: "reason 9",
	}
	for r, want := range want {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := (&fencelock.LostError{Reason: r}).Error(); got != "lease lost: "+want {
			t.Errorf("got %q", got)
		}
	}
}

// Every method of a Locker and a Lease wraps its error once, and says what it did.
func TestEachOperationIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := openLoose(t, d)
		le := lock(t, l.Mutex("n"))
		for _, op := range []string{"acquire", "renew", "release", "inspect", "list", "break", "abandon"} {
			d.on(op, refuse(errStore))
		}
		_, lockErr := l.Mutex("x").Lock(t.Context())
		_, tryErr := l.Mutex("x").TryLock(t.Context())
		_, inspectErr := l.Inspect(t.Context(), "x")
		var listErr error
		for _, err := range l.List(t.Context(), "x") {
			listErr = err
		}
		errs := []struct {
			op, name string
			err      error
		}{
			{"lock", "x", lockErr},
			{"trylock", "x", tryErr},
			{"inspect", "x", inspectErr},
			{"list", "x", listErr},
			{"break", "x", l.Break(t.Context(), "x")},
			{"renew", "n", le.Renew(t.Context())},
			{"unlock", "n", le.Unlock(t.Context())},
			{"close", "", l.Close()},
		}
		for _, e := range errs {
			var op *fencelock.OpError
			if !errors.As(e.err, &op) || opErrors(e.err) != 1 {
				t.Errorf("%s: got %v, want one OpError", e.op, e.err)
				continue
			}
			if op.Op != e.op || op.Name != e.name || op.Backend != "memory" {
				t.Errorf("got %s %q (%s), want %s %q (memory)", op.Op, op.Name, op.Backend, e.op, e.name)
			}
			wantErr(t, e.op, e.err, fencelock.ErrUnavailable, errStore)
		}
	})
}
