//go:build !linux

package file

import "github.com/fencelock/fencelock/backend"

// clock tells the time that all processes of this machine share: here the wall
// clock, because neither a boot id nor a clock since boot can be had without cgo. A jump of
// it ends leases early or late by as much.
type clock struct{ boot string }

func newClock() (clock, error) { return clock{"wall"}, nil }

// at returns the shared time of a moment.
func (c clock) at(i backend.Instant) int64 { return i.Time().UnixNano() }
