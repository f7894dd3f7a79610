package otel_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/fencelock/fencelock"
)

func TestSpansOfALease(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		ctx, request := r.tracer.Tracer("test").Start(t.Context(), "request")
		start := time.Now()
		first, err := r.Mutex("jobs/nightly").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(3*time.Second, func() { _ = first.Unlock(ctx) })
		le, err := r.Mutex("jobs/nightly").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := le.Unlock(ctx); err != nil {
			t.Error(err)
		}
		request.End()

		spans := r.ended(t)
		if len(spans["lock"]) != 2 || len(spans["hold"]) != 2 || len(spans["unlock"]) != 2 {
			t.Fatalf("got %v, want two of each", spans)
		}
		common := map[string]any{
			"lock.name": "jobs/nightly", "lock.backend": "memory", "lock.owner": "me",
			"lock.resource": "jobs", "lock.mode": "exclusive", "lock.token": int64(le.Token()),
		}
		tests := map[string]struct {
			from, to time.Duration
			outcome  string
		}{
			"lock":   {0, 3 * time.Second, "acquired"},
			"hold":   {3 * time.Second, 5 * time.Second, "released"},
			"unlock": {5 * time.Second, 5 * time.Second, "released"},
		}
		for name, tt := range tests {
			s := spans[name][1]
			if from, to := s.StartTime().Sub(start), s.EndTime().Sub(start); from != tt.from || to != tt.to {
				t.Errorf("%s: got %v to %v, want %v to %v", name, from, to, tt.from, tt.to)
			}
			if s.Parent().SpanID() != request.SpanContext().SpanID() || s.Status().Code != codes.Unset {
				t.Errorf("%s: got parent %v, status %v, want a child of the "+
					"request's span, no status", name, s.Parent(), s.Status())
			}
			got := attributes(s)
			if got["lock.outcome"] != tt.outcome {
				t.Errorf("%s: got outcome %v, want %v", name, got["lock.outcome"], tt.outcome)
			}
			delete(got, "lock.outcome")
			if !reflect.DeepEqual(got, common) {
				t.Errorf("%s: got %v, want %v", name, got, common)
			}
		}
		links := spans["hold"][1].Links()
		if len(links) != 1 || links[0].SpanContext.SpanID() != spans["lock"][1].SpanContext().SpanID() {
			t.Errorf("got links %v, want the hold linked to its lock", links)
		}
	})
}

func TestSpansOfFailures(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		m := r.Mutex("a/1")
		le, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held, cancel := le.Context(t.Context())
		defer cancel()
		joined, err := r.Mutex("a/1", fencelock.WithReentrancy()).TryLock(held)
		if err != nil {
			t.Fatal(err)
		}
		_, locked := m.TryLock(t.Context())
		short, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		_, late := m.Lock(short)
		if err := joined.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		r.store.down.Store(true)
		<-le.Done()
		lost := le.Unlock(t.Context())
		r.store.down.Store(false)
		time.Sleep(time.Minute)

		spans := r.ended(t)
		tests := []struct {
			what    string
			span    trace.ReadOnlySpan
			outcome string
			code    codes.Code
			err     error // the last that is recorded
		}{
			{"a grant", spans["lock"][0], "acquired", codes.Unset, nil},
			{"re-entry", spans["trylock"][0], "joined", codes.Unset, nil},
			{"locked", spans["trylock"][1], "not acquired", codes.Unset, locked},
			{"a timeout", spans["lock"][1], "not acquired", codes.Error, late},
			{"one of two leases", spans["unlock"][0], "left", codes.Unset, nil},
			{"a loss", spans["hold"][0], "lost", codes.Error, le.Err()},
			{"unlock of what is lost", spans["unlock"][1], "not released", codes.Error, lost},
		}
		for _, tt := range tests {
			if got := attributes(tt.span)["lock.outcome"]; got != tt.outcome || tt.span.Status().Code != tt.code {
				t.Errorf("%s: got %v, %v, want %s, %v", tt.what, got, tt.span.Status(), tt.outcome, tt.code)
			}
			if got := recorded(tt.span); (tt.err == nil) != (got == "") || tt.err != nil && got != tt.err.Error() {
				t.Errorf("%s: got the error %q, want %v", tt.what, got, tt.err)
			}
		}
		hold := attributes(spans["hold"][0])
		if hold["lock.loss"] != "expired" || hold["lock.margin_seconds"] != 0.2 {
			t.Errorf("got %v, want a loss by expiry with a margin of 0.2 s", hold)
		}
		if len(spans["hold"]) != 1 || len(spans["hold"][0].Events()) < 2 {
			t.Errorf("got %v, want one hold with the renewals that failed and the loss", spans["hold"])
		}
		if !errors.Is(lost, fencelock.ErrLost) {
			t.Errorf("got %v, want lost", lost)
		}
	})
}

// recorded returns the last error that was recorded with a span.
func recorded(s trace.ReadOnlySpan) string {
	last := ""
	for _, e := range s.Events() {
		for _, a := range e.Attributes {
			if a.Key == "exception.message" {
				last = a.Value.AsString()
			}
		}
	}
	return last
}

func TestCloseEndsTheSpansOfHolds(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		for _, n := range []string{"a", "b", "c"} {
			if _, err := r.Mutex(n).Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if got := len(r.ended(t)["hold"]); got != 3 {
			t.Errorf("got %d holds, want 3", got)
		}
	})
}

// What the sampler leaves out costs no memory while it is held.
func TestUnsampled(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		le, err := r.Mutex("a/1").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := r.otel.Holds(); n != 0 {
			t.Errorf("got %d spans of holds, want none", n)
		}
		if err := le.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if got := len(r.spans.Started()); got != 0 {
			t.Errorf("got %d spans, want none", got)
		}
	}, trace.WithSampler(trace.NeverSample()))
}

// One string that is no UTF-8 would cost an exporter a whole batch of spans. A caller's mistake may be of any length.
func TestSpansOfAnyNameAndError(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		for _, name := range []string{"a/\xff", strings.Repeat("a/\xff", 1<<18)} {
			if _, err := r.Mutex(name).TryLock(t.Context()); !errors.Is(err, fencelock.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		}
		le, err := r.Mutex("a/1").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cause := errors.New("\xff")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if _, err := r.Mutex("a/1").Lock(ctx); !errors.Is(err, cause) {
			t.Errorf("got %v, want its ctx's cause", err)
		}
		if err := le.Unlock(t.Context()); err != nil {
			t.Error(err)
		}

		strs, errs := 0, 0
		check := func(what, s string) {
			if strs++; !utf8.ValidString(s) || len(s) > 2048 {
				t.Errorf("%s is no UTF-8, or too long: %d bytes, %.100q", what, len(s), s)
			}
		}
		for _, s := range r.spans.Ended() {
			check("the status of "+s.Name(), s.Status().Description)
			for _, a := range s.Attributes() {
				check(string(a.Key), a.Value.String())
			}
			for _, e := range s.Events() {
				errs++
				for _, a := range e.Attributes {
					check(string(a.Key), a.Value.String())
				}
			}
		}
		if strs == 0 || errs != 3 {
			t.Errorf("got %d strings and %d errors, want some, and 3", strs, errs)
		}
	})
}
