//go:build !unix

package measure

import "time"

// CPUTime returns the CPU time that this process has used; false here.
func CPUTime() (time.Duration, bool) { return 0, false }
