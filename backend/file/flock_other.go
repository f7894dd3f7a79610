//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package file

import (
	"os"

	"github.com/fencelock/fencelock/backend"
)

const (
	nofollow  = 0
	freeReads = 0
)

func tryLock(*os.File) (bool, error) {
	return false, backend.Unsupported("this system has no flock(2)")
}

func unlock(*os.File) {}
