package file

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/fencelock/fencelock/backend"
)

// format is the whole FORMAT file of this version.
var format = fmt.Sprintf("fencelock file backend %d, %d buckets\n", formatVersion, buckets)

func init() { backend.Register("file", openURL) }

func openURL(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	o := Options{Prefix: q.Prefix(), NoSockets: !q.Bool("sockets", true)}
	if err := q.Err(); err != nil {
		return nil, err
	}
	if (u.Host != "" && u.Host != "localhost") || u.User != nil {
		return nil, backend.Invalid("the file URL names a host or user: the locks are of this " +
			"machine, want file:///absolute/path (three slashes)")
	}
	path := u.Path
	if runtime.GOOS == "windows" && len(path) > 2 && path[2] == ':' {
		path = path[1:] // file:///C:/locks
	}
	if path == "" || path == "/" {
		return nil, backend.Invalid("the file URL has no path: " +
			"want file:///absolute/path of a directory for the locks")
	}
	d, err := open(ctx, filepath.FromSlash(path), o)
	if err != nil {
		return nil, err // and not a nil *Driver in a Driver
	}
	return d, nil
}

// prepare makes the directory and its FORMAT file if they are missing, and returns its absolute
// path.
func prepare(dir string) (string, error) {
	if dir == "" {
		return "", backend.Invalid("the directory for the locks is empty: want a path")
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", backend.Invalid("directory %q cannot be made: %w; "+
			"want a directory that this user may write", dir, err)
	}
	if err := usable(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "FORMAT")
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(raw) == 0: // as a loss of power can leave it
		// Others may write it too, and the same.
		spare := path + "." + rand.Text()
		if err = os.WriteFile(spare, []byte(format), 0o600); err == nil { // whole: nobody may meet a part of it
			err = os.Rename(spare, path)
		}
		if err != nil {
			_ = os.Remove(spare) // the first error is the one to report
		}
	case err == nil && string(raw) != format:
		return "", backend.Invalid("%s is of another version, or not of this library (%.60q, want "+
			"%q): use the version that made it, or another directory", path, raw, format)
	}
	return dir, refused(err)
}

// home is the directory, and the boot id under which this driver is in it.
type home struct {
	dir, boot string
	file      atomic.Pointer[os.File] // BOOT, with a shared flock
}

// enter takes the flock of the BOOT that is in the directory now. Somebody may have removed the directory and made it
// again since the last time.
func (h *home) enter(ctx context.Context) error {
	if named, _ := hasItsName(h.file.Load()); named {
		return nil
	}
	f, err := inhabit(ctx, h.dir, h.boot)
	if err == nil {
		_ = h.file.Swap(f).Close() // there is none at first
	}
	return err
}

// hasItsName reports whether f is the file that others find under its name.
func hasItsName(f *os.File) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, named), err
}

// refused makes ErrInvalid of those errors of the system that trying again does
// not mend; each names its file.
func refused(err error) error {
	for _, e := range []error{
		fs.ErrPermission, syscall.EROFS, syscall.EISDIR, syscall.ENOTDIR, syscall.ELOOP,
	} {
		if errors.Is(err, e) {
			return backend.Invalid("%w: the directory of the locks and its files must be plain "+
				"ones that this user may read and write", err)
		}
	}
	return err
}
