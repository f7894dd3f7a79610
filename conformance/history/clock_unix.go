//go:build unix

package history

import "golang.org/x/sys/unix"

// Now reads the machine's monotonic clock.
func Now() Moment {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every system has it
	}
	return Moment(ts.Nano())
}
