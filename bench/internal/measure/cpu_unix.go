//go:build unix

package measure

import (
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time that this process has used; false if the system does not tell.
func CPUTime() (time.Duration, bool) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
