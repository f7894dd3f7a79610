//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"os"
	"syscall"

	"github.com/fencelock/fencelock/backend"
)

// nofollow: our files are never links, whoever may have put them there.
const nofollow = syscall.O_NOFOLLOW

// freeReads is how often the state is read without a lock before the lock is
// taken for it.
const freeReads = 3

// tryLock takes the exclusive flock of f, or reports that another has it.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return false, nil
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EOPNOTSUPP):
		return false, backend.Unsupported("flock(2) does not work on %s: %w", f.Name(), err)
	}
	return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
}

// unlock gives the flock of f back, also if a child has inherited f. It cannot fail.
func unlock(f *os.File) { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
