package backend

import (
	"sync/atomic"
	"time"
)

// An Instant is a moment from which elapsed time can be told even if the
// machine was suspended in between, where the system can tell (Linux: from
// CLOCK_BOOTTIME; elsewhere the monotonic clock alone, which stops while the
// machine sleeps). The wall clock plays no part. The zero value is no moment.
type Instant struct {
	at    time.Time     // with its monotonic reading
	slept time.Duration // how long the machine had been suspended since it booted
}

// Now returns the present moment.
func Now() Instant { return machine.now() }

// machine is the clock of this machine.
var machine = sleepClock{start: time.Now(), suspended: suspended}

// sleepClock tells the present moment with one reading of the clocks, which costs no system call on
// most systems. How long the machine has slept costs three, so it is asked again only when the wall
// clock has moved against the monotonic one: a sleep does that, and whatever else does it costs a
// needless question.
type sleepClock struct {
	start     time.Time
	suspended func() time.Duration
	last      atomic.Pointer[reading]
}

// reading is what was last heard of sleep, and how far the wall clock was ahead of the monotonic one just before.
type reading struct{ apart, slept time.Duration }

func (c *sleepClock) now() Instant {
	l := c.last.Load()
	var now time.Time
	for range 10 { // a machine that sleeps between the two readings is asked again
		now = time.Now()
		apart := time.Duration(now.UnixNano()) - now.Sub(c.start)
		if l != nil && (apart-l.apart).Abs() < time.Millisecond {
			break
		}
		l = &reading{apart, c.suspended()}
		c.last.Store(l)
	}
	return Instant{now, l.slept}
}

// IsZero reports whether i is no moment.
func (i Instant) IsZero() bool { return i.at.IsZero() }

// Elapsed returns the time since i, the machine's sleep included.
func (i Instant) Elapsed() time.Duration { return Now().Sub(i) }

// Sub returns the time from j to i, the machine's sleep included.
func (i Instant) Sub(j Instant) time.Duration {
	d := i.at.Sub(j.at)
	// The two readings behind suspended are not taken at the same moment, so a
	// tiny difference is noise and no sleep. Since no moment the time is the longest
	// that there is, and no sleep can be added.
	if s := i.slept - j.slept; s > 2*time.Millisecond && !j.IsZero() {
		d += s
	}
	return d
}

// Add returns the moment d after i. It does not foresee sleep.
func (i Instant) Add(d time.Duration) Instant { return Instant{i.at.Add(d), i.slept} }

// Time returns i as a time on the scale of time.Now, with a monotonic reading:
// comparable with it as long as the machine does not sleep.
func (i Instant) Time() time.Time { return i.at }
