package measure_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/metrics/internal/measure"
)

func TestGroups(t *testing.T) {
	tests := []struct{ name, want string }{
		{"jobs/nightly", "jobs"},
		{"jobs/eu/nightly", "jobs"},
		{"nightly", "other"},
		{"/nightly", "other"},
		{"other/nightly", "other"},
		{"jobs/", "jobs"},
		{"Ärzte/1", "Ärzte"},
		{"", "other"},
		{"a\x00/1", "other"},
		{"a\xff/1", "other"},
		{strings.Repeat("a", 600) + "/1", "other"},
	}
	g := measure.NewGroups(nil, 0)
	for _, tt := range tests {
		if got := g.Of(tt.name); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestGroupsAreBounded(t *testing.T) {
	g := measure.NewGroups(func(n string) string { return n }, 2)
	for _, tt := range []struct{ name, want string }{
		{"a", "a"}, {"b", "b"}, {"c", "other"}, {"a", "a"}, {"d", "other"}, {"b", "b"}, {"other", "other"},
	} {
		if got := g.Of(tt.name); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestGroupsOfABadFunction(t *testing.T) {
	g := measure.NewGroups(func(string) string { return "a\xff" }, 0)
	if got, want := g.Of("x"), "a\uFFFD"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFailure(t *testing.T) {
	outage := fmt.Errorf("%w (%w)", context.DeadlineExceeded, backend.Unavailable(errors.New("refused")))
	tests := []struct {
		err    error
		want   string
		waited bool
	}{
		{fencelock.ErrLocked, "locked", false},
		{fmt.Errorf("%w (%w)", context.DeadlineExceeded, fencelock.ErrLocked), "timeout", true},
		{context.Canceled, "canceled", true},
		{outage, "unavailable", true},
		{fencelock.ErrDeadlock, "deadlock", false},
		{fencelock.ErrClosed, "closed", false},
		{backend.Invalid("x"), "invalid", false},
		{backend.Unsupported("x"), "unsupported", false},
		{errors.New("x"), "other", false},
	}
	for _, tt := range tests {
		got := measure.Failure(&fencelock.OpError{Op: "lock", Err: tt.err})
		if got != tt.want || !slices.Contains(measure.Failures, got) || measure.Waited(got) != tt.waited {
			t.Errorf("%v: got %q, waited %v, want %q, %v", tt.err, got, measure.Waited(got), tt.want, tt.waited)
		}
	}
}

func TestUnlockFailure(t *testing.T) {
	tests := map[string]error{
		"lost": &fencelock.LostError{Reason: fencelock.Expired}, "released": fencelock.ErrReleased,
		"unavailable": fencelock.ErrUnavailable, "other": errors.New("x"),
	}
	for want, err := range tests {
		if got := measure.UnlockFailure(err); got != want || !slices.Contains(measure.UnlockFailures, got) {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}

func TestLoss(t *testing.T) {
	tests := map[fencelock.Reason]string{
		fencelock.Expired: "expired", fencelock.Revoked: "revoked",
		fencelock.SessionLost: "session_lost", fencelock.MaxHold: "max_hold", 0: "other",
		99: "other",
	}
	for r, want := range tests {
		if got := measure.Loss(r); got != want {
			t.Errorf("%v: got %q, want %q", r, got, want)
		}
	}
}

// The clocks of this machine advance together.
func TestClock(t *testing.T) {
	clock := measure.Clock()
	j := measure.NewJumps(clock)
	first := clock()
	<-time.After(20 * time.Millisecond)
	second := clock()
	wall, run := second.Wall.Sub(first.Wall), second.Run-first.Run
	if run < 20*time.Millisecond || wall-run > 100*time.Millisecond || run-wall > 100*time.Millisecond {
		t.Errorf("got %v by the wall clock and %v by the other, want the same and at least 20 ms", wall, run)
	}
	if forward, backward := j.Look(); forward+backward != 0 {
		t.Errorf("got %d and %d jumps, want none", forward, backward)
	}
}
