package run

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootClock is a clock that all processes of this machine share. It cannot be set, and it goes on
// while the machine sleeps.
func bootClock() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail
	return time.Duration(ts.Nano())
}

func nameKeeper() {}
