package backend

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestInstantWithoutSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := Now()
		time.Sleep(3 * time.Second)
		j := Now()
		if got := j.Sub(i); got != 3*time.Second {
			t.Errorf("sub: got %v, want 3s", got)
		}
		if got := i.Sub(j); got != -3*time.Second {
			t.Errorf("sub the other way: got %v, want -3s", got)
		}
		if got := i.Elapsed(); got != 3*time.Second {
			t.Errorf("elapsed: got %v, want 3s", got)
		}
		if got := i.Add(time.Second).Elapsed(); got != 2*time.Second {
			t.Errorf("elapsed since a second later: got %v, want 2s", got)
		}
		if got := i.Add(3 * time.Second).Time(); !got.Equal(j.Time()) {
			t.Errorf("time: got %v, want %v", got, j.Time())
		}
	})
}

func TestInstantWithSleep(t *testing.T) {
	at := time.Now()
	tests := map[string]struct {
		awake        time.Duration // by the monotonic clock
		before, then time.Duration // how long the machine had slept
		want         time.Duration
	}{
		"never slept":                 {time.Minute, 0, 0, time.Minute},
		"slept before":                {time.Minute, time.Hour, time.Hour, time.Minute},
		"slept in between":            {time.Second, 0, time.Hour, time.Hour + time.Second},
		"slept before and in between": {time.Second, time.Hour, 3 * time.Hour, 2*time.Hour + time.Second},
		"slept a little": {
			time.Second, time.Hour, time.Hour + 3*time.Millisecond,
			time.Second + 3*time.Millisecond,
		},
		"noise of the two clocks":        {time.Second, time.Hour, time.Hour + time.Millisecond, time.Second},
		"noise the other way":            {time.Second, time.Hour, time.Hour - time.Millisecond, time.Second},
		"the reading was worse at first": {time.Second, time.Hour, 0, time.Second},
	}
	for name, tt := range tests {
		i := Instant{at, tt.before}
		j := Instant{at.Add(tt.awake), tt.then}
		if got := j.Sub(i); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
		// A deadline on the scale of i: the sleep after i counts towards it.
		deadline := i.Add(30 * time.Second)
		if got, want := j.Sub(deadline) >= 0, tt.want >= 30*time.Second; got != want {
			t.Errorf("%s: past a deadline of 30 s: got %v, want %v", name, got, want)
		}
	}
}

func TestInstantZero(t *testing.T) {
	if got := (Instant{}).IsZero(); !got {
		t.Error("the zero Instant is a moment")
	}
	if Now().IsZero() {
		t.Error("now is no moment")
	}
	if got := (Instant{time.Now(), time.Hour}).Sub(Instant{}); got <= 0 {
		t.Errorf("since no moment, on a machine that has slept: got %v, want the longest time", got)
	}
	if s := Now().Time().String(); !strings.Contains(s, " m=") {
		t.Errorf("%s has no monotonic reading", s)
	}
}

// The machine does not sleep during the test, so that what it has slept stays
// the same but for the noise that Sub overlooks.
func TestSuspendedIsSteady(t *testing.T) {
	first := suspended()
	for range 1000 {
		if got := suspended(); got < 0 || (got-first).Abs() > 2*time.Millisecond {
			t.Fatalf("got %v, before that %v", got, first)
		}
	}
}

// How long the machine has slept is asked once, and again after what moved the wall clock against the monotonic one.
func TestNowAsksForSleepOnlyAfterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slept, asked := time.Minute, 0
		c := sleepClock{start: time.Now(), suspended: func() time.Duration { asked++; return slept }}
		first := c.now()
		for range 1000 {
			time.Sleep(time.Second)
			c.now()
		}
		if asked != 1 {
			t.Errorf("a thousand moments without a sleep: got %d questions, want 1", asked)
		}
		// An hour's sleep: the monotonic clock is an hour behind what it would be.
		slept += time.Hour
		c.start = c.start.Add(time.Hour)
		if got, want := c.now().Sub(first), 1000*time.Second+time.Hour; got != want || asked != 2 {
			t.Errorf("after a sleep: got %v and %d questions, want %v and 2", got, asked, want)
		}
	})
}
