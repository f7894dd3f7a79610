//go:build !linux

package backend

import "time"

// suspended is unknown here: the monotonic clock stops while the machine sleeps.
func suspended() time.Duration { return 0 }
