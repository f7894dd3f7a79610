//go:build !unix

package history

import "time"

// Now reads the wall clock, the only one that processes share here.
func Now() Moment { return Moment(time.Now().UnixNano()) }
