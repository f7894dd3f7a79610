package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

var errStore = errors.New("connection reset by peer")

// looks is a look function that follows a script, and then stays at its last line.
type looks struct {
	script []answer
	at     []time.Duration // when it was called
	began  time.Time
}

type answer struct {
	done bool
	next time.Duration
	err  error
	took time.Duration
}

func (l *looks) look(ctx context.Context) (bool, time.Duration, error) {
	if l.began.IsZero() {
		l.began = time.Now()
	}
	a := l.script[min(len(l.at), len(l.script)-1)]
	l.at = append(l.at, time.Since(l.began))
	if a.took > 0 {
		timer := time.NewTimer(a.took)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false, 0, ctx.Err()
		}
	}
	return a.done, a.next, a.err
}

func matches(t *testing.T, what string, got error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(got, w) {
			t.Errorf("%s: got %v, want %v", what, got, w)
		}
	}
}

func matchesNot(t *testing.T, what string, got error, not ...error) {
	t.Helper()
	for _, n := range not {
		if errors.Is(got, n) {
			t.Errorf("%s: got %v, which must not match %v", what, got, n)
		}
	}
}

func TestWaitLooksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := looks{script: []answer{{done: true}}}
		if err := core.Wait(t.Context(), "1", nil, l.look); err != nil || len(l.at) != 1 || l.at[0] != 0 {
			t.Errorf("got %v after looks at %v, want one look at once", err, l.at)
		}
	})
}

func TestWaitFloorTimer(t *testing.T) {
	const jitter = 100 * time.Millisecond
	tests := map[string]struct {
		next  time.Duration
		least time.Duration
		most  time.Duration
	}{
		"seconds":          {2 * time.Second, 2 * time.Second, 2*time.Second + jitter},
		"milliseconds":     {50 * time.Millisecond, 50 * time.Millisecond, 55 * time.Millisecond},
		"at once":          {0, 0, 0},
		"in the past":      {-time.Second, 0, 0}, // an expiry that is over by the store's clock
		"a moment ago":     {-1, 0, 0},
		"an hour ago":      {-time.Hour, 0, 0},
		"the longest time": {24 * time.Hour, 5 * time.Second, 5*time.Second + jitter}, // an outage is to be noticed
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := looks{script: []answer{{next: tt.next}, {done: true}}}
				if err := core.Wait(t.Context(), "1", make(chan struct{}), l.look); err != nil {
					t.Fatal(err)
				}
				if got := l.at[1]; got < tt.least || got > tt.most {
					t.Errorf("the second look came after %v, want %v to %v", got, tt.least, tt.most)
				}
			})
		})
	}
}

func TestWaitWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wake := make(chan struct{}, 1)
		l := looks{script: []answer{{next: time.Hour}, {next: time.Hour}, {next: time.Hour}, {done: true}}}
		for i := range 3 {
			time.AfterFunc(time.Duration(i+1)*time.Second, func() { wake <- struct{}{} })
		}
		if err := core.Wait(t.Context(), "1", wake, l.look); err != nil {
			t.Fatal(err)
		}
		for i, got := range l.at {
			if want := time.Duration(i) * time.Second; got != want {
				t.Errorf("look %d: got %v, want %v: at once when woken, and not before", i, got, want)
			}
		}
	})
}

func TestWaitSpreadsItsLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := looks{script: []answer{{next: time.Second}}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_ = core.Wait(ctx, "1", nil, l.look)
		gaps := map[time.Duration]bool{}
		for i := range len(l.at) - 1 {
			gaps[l.at[i+1]-l.at[i]] = true
		}
		if len(gaps) < 10 {
			t.Errorf("got gaps %v, want many different ones", gaps)
		}
	})
}

func TestWaitRidesOutAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, last := time.Now(), time.Now()
		var pauses []time.Duration
		err := core.Wait(t.Context(), "1", nil, func(context.Context) (bool, time.Duration, error) {
			pauses, last = append(pauses, time.Since(last)), time.Now()
			if time.Since(start) < 4900*time.Millisecond {
				return false, 0, errStore
			}
			return true, 0, nil
		})
		if err != nil {
			t.Errorf("an outage of 4.9 s: got %v, want nil", err)
		}
		most, sum := 20*time.Millisecond, time.Duration(0)
		for _, p := range pauses[1:] {
			if p < most/2 || p > most {
				t.Errorf("got a pause of %v, want half of %v at least, and no more than it", p, most)
			}
			most, sum = min(2*most, 500*time.Millisecond), sum+most
		}
		if share := float64(time.Since(start)) / float64(sum); share < 0.6 || share > 0.9 {
			t.Errorf("the pauses are %.2f of the longest that they may be, want about three quarters", share)
		}
	})
}

func TestWaitGivesUp(t *testing.T) {
	for name, a := range map[string]answer{"errors": {err: errStore}, "no answer": {took: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				l := looks{script: []answer{a}}
				err := core.Wait(t.Context(), "1", nil, l.look)
				matches(t, name, err, backend.ErrUnavailable)
				if !core.Outlasted(err) || !strings.Contains(err.Error(), "for 5s now") {
					t.Errorf("got %v, want an outage that outlasted the wait, and how long it was", err)
				}
				// The last look has a second at least.
				if got := time.Since(start); got < core.Patience || got > core.Patience+time.Second {
					t.Errorf("gave up after %v, want %v and no look of two seconds", got, core.Patience)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := looks{script: []answer{{err: errStore}}}
		matches(t, "the cause", core.Wait(t.Context(), "1", nil, l.look), errStore)
	})
}

// The end of a look's own time is not the caller's, and the store's words about it are told.
func TestWaitTellsWhyThereIsNoAnswer(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{context.DeadlineExceeded, "no answer within 1s"},
		{errors.Join(context.DeadlineExceeded, errStore), errStore.Error()},
	} {
		synctest.Test(t, func(t *testing.T) {
			err := core.Wait(t.Context(), "1", nil, (&looks{script: []answer{{err: tt.err}}}).look)
			matches(t, tt.want, err, backend.ErrUnavailable)
			matchesNot(t, tt.want, err, context.DeadlineExceeded)
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want it to say %q", err, tt.want)
			}
		})
	}
}

// A look may last as long as the store answers; the outage begins with the last answer.
func TestWaitCountsFromTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var tries int
		err := core.Wait(t.Context(), "1", nil, func(context.Context) (bool, time.Duration, error) {
			if tries++; tries > 1 {
				return false, 0, errStore
			}
			time.Sleep(10 * time.Second)
			return false, 0, backend.Silence(2 * time.Second)
		})
		matches(t, "after the outage", err, backend.ErrUnavailable, errStore)
		if got, least := time.Since(start), 8*time.Second+core.Patience; got < least || got > least+time.Second {
			t.Errorf("gave up after %v, want %v", got, least)
		}
	})
}

// A process that was stopped while it looked comes back: that was no outage.
func TestWaitOutlastsAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks int
		err := core.Wait(t.Context(), "1", nil, func(ctx context.Context) (bool, time.Duration, error) {
			if looks++; looks > 1 {
				return true, 0, nil
			}
			time.Sleep(time.Minute)
			return false, 0, ctx.Err()
		})
		if err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
}

// Other ends of a wait are not an outage that lasted: those behind it in line have their own.
func TestOutlastedIsNoOtherError(t *testing.T) {
	for _, err := range []error{
		nil, errStore, backend.ErrLost, backend.Unavailable(errStore),
		core.Ended(t.Context(), true, errStore),
	} {
		if core.Outlasted(err) {
			t.Errorf("%v: got true, want false", err)
		}
	}
}

// A waiter in the queue notices an outage although nothing wakes it and its look asked for a long pause.
func TestWaitHearsFromTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var last time.Time
		down := time.Time{}
		err := core.Wait(t.Context(), "1", nil, func(context.Context) (bool, time.Duration, error) {
			if time.Since(start) > time.Minute {
				if down.IsZero() {
					down = last // at the latest just after the look before
				}
				return false, 0, errStore
			}
			if gap := time.Since(last); !last.IsZero() && gap > 5100*time.Millisecond {
				t.Errorf("got %v between two looks, want 5 s and a jitter of 100 ms at most", gap)
			}
			last = time.Now()
			return false, time.Hour, nil
		})
		matches(t, "an outage in the queue", err, backend.ErrUnavailable)
		if took := time.Since(down); took < core.Patience || took > 11*time.Second {
			t.Errorf("gave up %v after the last answer, want 5 to 11 s", took)
		}
	})
}

// The patience starts anew after each answer.
func TestWaitThroughManyOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := core.Wait(t.Context(), "1", nil, func(context.Context) (bool, time.Duration, error) {
			switch since := time.Since(start); {
			case since > time.Minute:
				return true, 0, nil
			case since%(6*time.Second) < 4500*time.Millisecond:
				return false, 0, errStore
			}
			return false, 100 * time.Millisecond, nil
		})
		if err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
}

// One look that gets lost uses up no more than 2 s of the patience.
func TestWaitBoundsALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := looks{script: []answer{{took: time.Hour}, {done: true}}}
		if err := core.Wait(t.Context(), "1", nil, l.look); err != nil {
			t.Fatal(err)
		}
		if got := l.at[1]; got < 2*time.Second || got > 3*time.Second {
			t.Errorf("the second look came after %v, want a little more than 2 s", got)
		}
	})
}

func TestWaitFinalErrors(t *testing.T) {
	for _, final := range []error{
		backend.ErrInvalid, backend.ErrUnsupported, backend.ErrLost, backend.ErrLocked, backend.ErrClosed,
		backend.Invalid("wrong type"), &backend.LostError{Reason: backend.SessionLost},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := looks{script: []answer{{next: time.Second}, {err: final}}}
			err := core.Wait(t.Context(), "1", nil, l.look)
			matches(t, "wait", err, final)
			matchesNot(t, "wait", err, backend.ErrUnavailable)
			if len(l.at) != 2 {
				t.Errorf("got %d looks, want none after a final answer", len(l.at))
			}
		})
	}
}

func TestWaitEndedByContext(t *testing.T) {
	const bound = 3 * time.Second
	tests := map[string]struct {
		script    []answer
		want, not []error
	}{
		"held": {
			[]answer{{next: time.Hour}},
			[]error{backend.ErrLocked},
			[]error{backend.ErrUnavailable},
		},
		// the first look failed after 2 s
		"never an answer": {
			[]answer{{took: time.Hour}},
			[]error{backend.ErrUnavailable},
			[]error{backend.ErrLocked},
		},
		"down": {
			[]answer{{err: errStore}},
			[]error{backend.ErrUnavailable, errStore},
			[]error{backend.ErrLocked},
		},
		"down after held": {
			[]answer{{next: time.Second}, {err: errStore}},
			[]error{backend.ErrUnavailable, backend.ErrLocked},
			nil,
		},
		"held after down": {
			[]answer{{err: errStore}, {next: time.Hour}},
			[]error{backend.ErrLocked},
			[]error{backend.ErrUnavailable},
		},
		"held, then no answer": {[]answer{{next: 2 * time.Second}, {took: time.Hour}}, []error{backend.ErrLocked}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				start := time.Now()
				l := looks{script: tt.script}
				err := core.Wait(ctx, "1", nil, l.look)
				matches(t, name, err, append(tt.want, context.DeadlineExceeded)...)
				matchesNot(t, name, err, tt.not...)
				if got := time.Since(start); got != bound {
					t.Errorf("took %v, want %v", got, bound)
				}
			})
		})
	}
}

func TestWaitWithADoneContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := looks{script: []answer{{done: true}}}
	err := core.Wait(ctx, "1", nil, l.look)
	matches(t, "wait", err, context.Canceled)
	if len(l.at) != 0 {
		t.Errorf("got %d looks, want none", len(l.at))
	}
}

func TestEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tests := map[string]struct {
		locked    bool
		outage    error
		want, not []error
	}{
		"nothing known":    {false, nil, nil, []error{backend.ErrLocked, backend.ErrUnavailable}},
		"held":             {true, nil, []error{backend.ErrLocked}, []error{backend.ErrUnavailable}},
		"down":             {false, errStore, []error{backend.ErrUnavailable, errStore}, []error{backend.ErrLocked}},
		"both":             {true, errStore, []error{backend.ErrLocked, backend.ErrUnavailable, errStore}, nil},
		"the ctx's own":    {false, context.Canceled, nil, []error{backend.ErrUnavailable}},
		"unavailable once": {false, backend.Unavailable(errStore), []error{backend.ErrUnavailable}, nil},
	}
	for name, tt := range tests {
		err := core.Ended(ctx, tt.locked, tt.outage)
		matches(t, name, err, append(tt.want, context.Canceled)...)
		matchesNot(t, name, err, tt.not...)
	}
}
