package logs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/metrics/logs"
)

type traceKey struct{}

// traced is a handler that adds what the context carries.
type traced struct{ slog.Handler }

func (h traced) Handle(ctx context.Context, r slog.Record) error {
	if id, ok := ctx.Value(traceKey{}).(string); ok {
		r.AddAttrs(slog.String("trace", id))
	}
	return h.Handler.Handle(ctx, r)
}

func TestALeaseInLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		json := slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})
		l, err := fencelock.New(d, fencelock.WithTTL(10*time.Second), fencelock.WithManualRenew(),
			fencelock.WithOwner("me"),
			fencelock.WithObserver(logs.New(slog.New(traced{json}))))
		if err != nil {
			t.Fatal(err)
		}
		m, ctx := l.Mutex("a/1"), context.WithValue(t.Context(), traceKey{}, "4bf9")
		le, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = m.TryLock(ctx)
		time.Sleep(time.Second)
		if err := le.Unlock(ctx); err != nil {
			t.Error(err)
		}
		_ = le.Unlock(ctx)
		le, err = m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		<-le.Done()
		synctest.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		tests := []struct{ message, level, trace, extra string }{
			{"lock acquired", "DEBUG", "4bf9", "token took"},
			{"lock not acquired", "DEBUG", "4bf9", "took err"},
			{"lock released", "DEBUG", "4bf9", "token took"},
			{"lock not released", "WARN", "4bf9", "token took err"},
			{"lock acquired", "DEBUG", "4bf9", "token took"},
			{"lock lost", "ERROR", "", "token took reason margin err"},
			{"lock cleaned up", "DEBUG", "", "took"},
		}
		lines := parse(t, out.String())
		if len(lines) != len(tests) {
			t.Fatalf("got %d lines, want %d:\n%s", len(lines), len(tests), &out)
		}
		for i, tt := range tests {
			line := lines[i]
			trace, _ := line["trace"].(string)
			if line["msg"] != tt.message || line["level"] != tt.level || trace != tt.trace ||
				line["name"] != "a/1" || line["owner"] != "me" || line["backend"] != "memory" {
				t.Errorf("line %d: got %v, want %+v", i, line, tt)
			}
			for _, key := range []string{"token", "took", "reason", "margin", "err"} {
				if _, ok := line[key]; ok != strings.Contains(" "+tt.extra+" ", " "+key+" ") {
					t.Errorf("line %d (%s): %s is there: %v", i, tt.message, key, ok)
				}
			}
		}
		lost := lines[5]
		if lost["reason"] != "expired" || lost["margin"] != float64(200*time.Millisecond) ||
			lost["took"] != float64(9800*time.Millisecond) {
			t.Errorf("got %v, want a lease that expired after 9.8 s with a margin of 200 ms", lost)
		}
	})
}

// A line tells how the name is held, where that is not alone.
func TestModesInLines(t *testing.T) {
	var out bytes.Buffer
	to := logs.New(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for _, e := range []fencelock.Event{
		{Kind: fencelock.Acquired, Token: 7},
		{Kind: fencelock.Acquired, Token: 7, Mode: fencelock.Reader},
		{Kind: fencelock.Acquired, Token: 7, Mode: fencelock.Permit, Slot: 2},
		{Kind: fencelock.NotAcquired, Mode: fencelock.Permit},
	} {
		to.Observe(t.Context(), e)
	}
	for i, want := range []struct{ mode, slot any }{{}, {"reader", nil}, {"permit", 2.0}, {"permit", nil}} {
		if line := parse(t, out.String())[i]; line["mode"] != want.mode || line["slot"] != want.slot {
			t.Errorf("line %d: got %v, want %+v", i, line, want)
		}
	}
}

func parse(t *testing.T, out string) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for line := range strings.Lines(out) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines
}

func TestLevels(t *testing.T) {
	timeout := errors.Join(context.DeadlineExceeded, fencelock.ErrLocked)
	tests := []struct {
		e    fencelock.Event
		want slog.Level
	}{
		{fencelock.Event{Kind: fencelock.Acquired}, slog.LevelDebug},
		{fencelock.Event{Kind: fencelock.Joined}, slog.LevelDebug},
		{fencelock.Event{Kind: fencelock.Left}, slog.LevelDebug},
		{fencelock.Event{Kind: fencelock.Renewed}, slog.LevelDebug},
		{fencelock.Event{Kind: fencelock.CleanedUp}, slog.LevelDebug},
		{fencelock.Event{Kind: fencelock.Released}, slog.LevelDebug},
		{fencelock.Event{Kind: fencelock.Released, Err: &fencelock.UndoneError{Err: errors.New("x")}}, slog.LevelError},
		{fencelock.Event{Kind: fencelock.NotAcquired, Err: fencelock.ErrLocked}, slog.LevelDebug},
		{fencelock.Event{Kind: fencelock.NotAcquired, Err: fencelock.ErrClosed}, slog.LevelDebug},
		{fencelock.Event{Kind: fencelock.NotAcquired, Err: timeout}, slog.LevelInfo},
		{fencelock.Event{Kind: fencelock.NotAcquired, Err: context.Canceled}, slog.LevelInfo},
		{fencelock.Event{Kind: fencelock.NotAcquired, Err: fencelock.ErrUnavailable}, slog.LevelWarn},
		{fencelock.Event{Kind: fencelock.NotAcquired, Err: fencelock.ErrDeadlock}, slog.LevelWarn},
		{fencelock.Event{Kind: fencelock.NotReleased, Err: fencelock.ErrReleased}, slog.LevelWarn},
		{fencelock.Event{Kind: fencelock.NotReleased, Err: &fencelock.UndoneError{}}, slog.LevelError},
		{fencelock.Event{Kind: fencelock.RenewFailed, Err: fencelock.ErrUnavailable}, slog.LevelWarn},
		{fencelock.Event{Kind: fencelock.RenewFailed, Err: fencelock.ErrReleased}, slog.LevelDebug},
		{
			fencelock.Event{
				Kind: fencelock.RenewFailed, Err: &fencelock.LostError{Reason: fencelock.Revoked},
			},
			slog.LevelDebug,
		},
		{fencelock.Event{Kind: fencelock.Lost, Reason: fencelock.Expired}, slog.LevelError},
		{fencelock.Event{Kind: fencelock.Lost, Reason: fencelock.MaxHold}, slog.LevelWarn},
	}
	for _, tt := range tests {
		if got := logs.Level(tt.e); got != tt.want {
			t.Errorf("%v, %v, %v: got %v, want %v", tt.e.Kind, tt.e.Err, tt.e.Reason, got, tt.want)
		}
	}
}

// What is below the logger's level costs nothing.
func TestWhatIsNotLoggedCostsNothing(t *testing.T) {
	o := logs.New(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	e := fencelock.Event{Kind: fencelock.Acquired, Backend: "redis", Name: "a", Owner: "me", Token: 1}
	if got := testing.AllocsPerRun(100, func() { o.Observe(context.Background(), e) }); got != 0 {
		t.Errorf("got %v allocations, want none", got)
	}
}

func TestNilIsTheDefaultLogger(t *testing.T) {
	var out bytes.Buffer
	was := slog.Default()
	t.Cleanup(func() { slog.SetDefault(was) })
	o := logs.New(nil)
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	o.Observe(t.Context(), fencelock.Event{Kind: fencelock.Lost, Name: "a", Err: fencelock.ErrLost})
	if !strings.Contains(out.String(), `msg="lock lost"`) {
		t.Errorf("got %q, want the loss", &out)
	}
}
