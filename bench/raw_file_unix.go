//go:build unix

package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/backend"
)

// rawFile is flock(2) on files of a folder of its own beside the library's.
type rawFile struct {
	dir  string
	open []*os.File
}

func openRawFile(p place) (raw, error) {
	dir := filepath.Join(filepath.FromSlash(p.u.Path), p.id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, backend.Unavailable(err)
	}
	return &rawFile{dir: dir}, nil
}

// file opens a name's file anew: an open file, not a process, holds a flock.
func (r *rawFile) file(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(r.dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		r.open = append(r.open, f)
	}
	return f, err
}

func (r *rawFile) cycle(name string) (cycle, error) {
	f, err := r.file(name)
	if err != nil {
		return nil, err
	}
	fd := int(f.Fd())
	return func(_ context.Context, held func()) error {
		if err := flock(fd, unix.LOCK_EX); err != nil {
			return err
		}
		held()
		return flock(fd, unix.LOCK_UN)
	}, nil
}

func (r *rawFile) relay(_ context.Context, name string) (*relay, error) {
	one, err := r.file(name)
	if err != nil {
		return nil, err
	}
	two, err := r.file(name)
	if err != nil {
		return nil, err
	}
	call := func(f *os.File, how int) func(context.Context) error {
		fd := int(f.Fd())
		return func(context.Context) error { return flock(fd, how) }
	}
	return &relay{hold: call(one, unix.LOCK_EX), free: call(one, unix.LOCK_UN), wait: call(two, unix.LOCK_EX), after: call(two, unix.LOCK_UN)}, nil
}

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (r *rawFile) commands(context.Context) (int64, bool) { return 0, false }

func (r *rawFile) wipe(context.Context) error { return os.RemoveAll(r.dir) }

func (r *rawFile) close() error {
	var errs []error
	for _, f := range r.open {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
