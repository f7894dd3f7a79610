package measure

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// lock is a mutex that gives up when its ctx ends.
func lock(held chan struct{}) Mutex {
	return Mutex{
		Lock: func(ctx context.Context) error {
			select {
			case held <- struct{}{}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Unlock: func(context.Context) error { time.Sleep(time.Millisecond); <-held; return nil },
	}
}

// Without a drain all that was begun counts, once each at least; with one, only what was granted in time.
func TestCrowd(t *testing.T) {
	for _, tt := range []struct {
		what         string
		l            Load
		ops          float64
		late, stuck  int64
		took         time.Duration
		withoutTakes bool // somebody holds the lock for ever
	}{
		{what: "once each", ops: 3, took: 3 * time.Millisecond},
		{what: "all that was begun", l: Load{For: 10 * time.Millisecond}, ops: 12, took: 12 * time.Millisecond},
		{
			what: "only in time", l: Load{For: 10 * time.Millisecond, Drain: time.Second},
			ops: 10, late: 2, took: 10 * time.Millisecond,
		},
		{
			what: "stuck", l: Load{For: 10 * time.Millisecond, Drain: time.Second}, withoutTakes: true,
			stuck: 3, took: 10 * time.Millisecond,
		},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				held := make(chan struct{}, 1)
				if tt.withoutTakes {
					held <- struct{}{}
				}
				s, err := Crowd(t.Context(), []Mutex{lock(held), lock(held), lock(held)}, tt.l)
				if err != nil {
					t.Fatal(err)
				}
				if s.Ops() != tt.ops || s.Late != tt.late || s.Stuck != tt.stuck || s.Elapsed != tt.took {
					t.Errorf("got %v, %d late and %d stuck in %v, want %+v", s.Ops(), s.Late, s.Stuck, s.Elapsed, tt)
				}
			})
		})
	}
}

// The first error ends the others, and is the one that is returned.
func TestCrowdThatFails(t *testing.T) {
	broken := errors.New("broken")
	waits := lock(make(chan struct{}))
	fails := Mutex{Lock: func(context.Context) error { return broken }}
	for _, l := range []Load{{}, {For: time.Hour}, {For: time.Hour, Drain: time.Hour}} {
		if _, err := Crowd(t.Context(), []Mutex{waits, fails, waits}, l); !errors.Is(err, broken) {
			t.Errorf("%+v: got %v, want %v", l, err, broken)
		}
	}
}

// A lock is free after hand-overs, whatever ended them.
func TestHandOver(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		what string
		end  time.Duration // of ctx
		lock error         // of the second client
		want error
	}{
		{"to the end", time.Hour, nil, nil},
		{"ctx ends", 10 * time.Millisecond, nil, context.DeadlineExceeded},
		{"a waiter fails", time.Hour, broken, broken},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.end)
				defer cancel()
				held := make(chan struct{}, 1)
				one, two := lock(held), lock(held)
				if tt.lock != nil {
					two.Lock = func(context.Context) error { return tt.lock }
				}
				s, err := HandOver(ctx, Here(one), Here(two), time.Second)
				if !errors.Is(err, tt.want) || len(held) > 0 {
					t.Errorf("got %v, want %v and a free lock", err, tt.want)
				}
				if tt.want == nil && (s.Ops() < 1000/62 || s.Ops() > 1000/10+1) {
					t.Errorf("got %v hand-overs in a second, want one for each pause", s.Ops())
				}
			})
		})
	}
}
