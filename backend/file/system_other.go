//go:build !linux

package file

import (
	"context"
	"os"

	"github.com/fencelock/fencelock/backend"
)

// sharedTime tells a moment by the clock that all processes of this machine share: here the wall
// clock, because neither a boot id nor a clock since boot can be had without cgo. A jump of
// it ends leases early or late by as much.
func sharedTime(i backend.Instant) int64 { return i.Time().UnixNano() }

func bootID() (string, error) { return "wall", nil }

// inhabit has nothing to compare.
func inhabit(context.Context, string, string) (*os.File, error) { return nil, nil }

// usable cannot tell more here: what is wrong shows at the first write.
func usable(string) error { return nil }

// exchange is not to be had here.
func exchange(_, _ string) bool { return false }
