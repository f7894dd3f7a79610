//go:build unix && !linux && !darwin

package run

import "time"

// bootClock is the wall clock here: a step of it shifts when the keeper steps in.
func bootClock() time.Duration { return time.Duration(time.Now().UnixNano()) }

func nameKeeper() {}
