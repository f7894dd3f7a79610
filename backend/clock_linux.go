package backend

import (
	"syscall"
	"time"
	"unsafe"
)

const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// suspended returns how long the machine has slept since it booted: what
// CLOCK_BOOTTIME has counted and CLOCK_MONOTONIC has not.
func suspended() time.Duration {
	// The truth lies between boot-after and boot-before. If the process was
	// preempted between the readings, read again; the bound keeps this finite, and
	// boot-after never claims a sleep that was none.
	var slept time.Duration
	for range 10 {
		before := clock(clockMonotonic)
		boot := clock(clockBoottime)
		after := clock(clockMonotonic)
		slept = boot - after
		if after-before < time.Millisecond {
			break
		}
	}
	return max(slept, 0)
}

func clock(id uintptr) time.Duration {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
