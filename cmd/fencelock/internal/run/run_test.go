package run

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// A command that the keeper has killed was ended for its lease, though a renewal came after that.
func TestKilledByTheKeeper(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		code int
		at   time.Time
		lost bool
	}{
		{cli.ExitSignal + 9, now.Add(-time.Millisecond), true},
		{cli.ExitSignal + 9, now.Add(time.Second), false}, // by somebody else
		{0, now.Add(-time.Millisecond), false},
	} {
		h := holding{events: events{a: &cli.App{}}, deadline: tt.at, keeperAt: tt.at}
		if h.kept(tt.code, now); (h.lost != nil) != tt.lost {
			t.Errorf("code %d, killed at %v: got %v", tt.code, tt.at.Sub(now), h.lost)
		}
	}
}

// A loss of which the unlock is the first to know: the command has ended, and may have overlapped.
func TestLossFoundAtTheUnlock(t *testing.T) {
	t.Parallel()
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	l, err := fencelock.New(d)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lease, err := l.Mutex("n").TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Break(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	a := &cli.App{Err: io.Discard}
	h := holding{a: a, lease: lease, events: events{a, lease}, renewals: &renewals{}}
	code, err := h.unlock(3, nil)
	want := "n: lease lost: revoked; the command had ended by itself with code 3"
	if code != cli.ExitLost || err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got code %d and %v, want %d and %q", code, err, cli.ExitLost, want)
	}
}

func TestLossNamesTheCause(t *testing.T) {
	t.Parallel()
	var r renewals
	expired := &fencelock.LostError{Reason: fencelock.Expired}
	r.Observe(t.Context(), fencelock.Event{Kind: fencelock.RenewFailed, Err: expired})
	if got := r.why(expired); got != "" {
		t.Errorf("got %q, want nothing where nothing is known", got)
	}
	cause := context.DeadlineExceeded
	r.Observe(t.Context(), fencelock.Event{Kind: fencelock.RenewFailed, Err: cause})
	if got := r.why(expired); !strings.Contains(got, cause.Error()) {
		t.Errorf("got %q, want the last renewal's error", got)
	}
	if got := r.why(&fencelock.LostError{Reason: fencelock.Revoked}); strings.Contains(got, cause.Error()) {
		t.Errorf("got %q, want a lock that was taken away without a renewal's error", got)
	}
	r.Observe(t.Context(), fencelock.Event{Kind: fencelock.Renewed})
	if got := r.why(expired); strings.Contains(got, cause.Error()) {
		t.Errorf("got %q, want nothing of a renewal that was made good", got)
	}
}

func TestMargins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ killAfter, span, term, kill time.Duration }{
		{2 * time.Second, 30 * time.Second, 2250 * time.Millisecond, 250 * time.Millisecond},
		{2 * time.Second, 3 * time.Second, time.Second, 250 * time.Millisecond},
		{2 * time.Second, 900 * time.Millisecond, 300 * time.Millisecond, 90 * time.Millisecond},
		{0, 30 * time.Second, 250 * time.Millisecond, 250 * time.Millisecond},
		{time.Hour, 30 * time.Second, 10 * time.Second, 250 * time.Millisecond},
		{2 * time.Second, 0, 0, 0},
	} {
		if term, kill := margins(c.killAfter, c.span); term != c.term || kill != c.kill {
			t.Errorf("margins(%v, %v) = %v, %v; want %v, %v", c.killAfter, c.span, term, kill, c.term, c.kill)
		}
	}
}
