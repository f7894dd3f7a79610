//go:build !unix

package bench

import "time"

// cpuTime returns the CPU time that this process has used; false here.
func cpuTime() (time.Duration, bool) { return 0, false }
