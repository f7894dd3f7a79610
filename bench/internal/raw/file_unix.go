//go:build unix

package raw

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench/internal/measure"
)

// file is flock(2) on files of a folder of its own beside the library's.
type file struct {
	untold
	dir  string
	open []*os.File
}

func openFile(p Place) (Store, error) {
	dir := filepath.Join(filepath.FromSlash(p.URL.Path), p.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, backend.Unavailable(err)
	}
	return &file{dir: dir}, nil
}

// Mutex opens a name's file anew: an open file, not a process, holds a flock.
func (r *file) Mutex(_ context.Context, name string, _ bool) (measure.Mutex, error) {
	f, err := os.OpenFile(filepath.Join(r.dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return measure.Mutex{}, err
	}
	r.open = append(r.open, f)
	call := func(how int) func(context.Context) error {
		fd := int(f.Fd())
		return func(context.Context) error {
			for {
				if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
					return err
				}
			}
		}
	}
	return measure.Mutex{Lock: call(unix.LOCK_EX), Unlock: call(unix.LOCK_UN)}, nil
}

func (r *file) Wipe(context.Context) error { return os.RemoveAll(r.dir) }

func (r *file) Close() error {
	var errs []error
	for _, f := range r.open {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
