package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fencelock/fencelock/backend"
)

const (
	markName = "FORMAT"
	markKind = "fencelock file backend "
)

// markText is the whole FORMAT file of this version.
var markText = fmt.Sprintf("%s%d, %d buckets\n", markKind, version, buckets)

// prepare makes the directory if it is missing, and returns its absolute path.
func prepare(dir string) (string, error) {
	if dir == "" {
		return "", backend.Invalid("the directory for the locks is empty: want a path")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", backend.Invalid("directory %q has no absolute path: %w", dir, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return "", backend.Invalid("directory %q cannot be made: %w; want a directory that this user may write", abs, err)
	}
	if info, err := os.Stat(abs); err != nil {
		return "", backend.Invalid("directory %q cannot be read: %w", abs, err)
	} else if !info.IsDir() {
		return "", backend.Invalid("%q is not a directory: want a directory that this user may write", abs)
	}
	if err := usable(abs); err != nil {
		return "", err
	}
	return abs, nil
}

// mark checks the directory's FORMAT file, and writes it if there is none. The
// bucket, one and the same for all processes, lets only one of them write.
func (b *bucket) mark(ctx context.Context, dir string) error {
	path := filepath.Join(dir, markName)
	if found, err := checkMark(path); found || err != nil {
		return err
	}
	if err := b.enter(ctx); err != nil {
		return err
	}
	defer b.leave()
	if found, err := checkMark(path); found || err != nil {
		return err
	}
	return replace(path, path+".spare", []byte(markText))
}

func checkMark(path string) (found bool, err error) {
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return true, refused(err)
	case string(raw) == markText:
		return true, nil
	case strings.HasPrefix(string(raw), markKind):
		return true, backend.Invalid("%s is of another version (%.60q): this program knows %q; use one version, or another directory", path, raw, markText)
	}
	return true, backend.Invalid("%s is not of this library (%.60q, want %q): use another directory", path, raw, markText)
}

// refused makes ErrInvalid of those errors of the system that trying again does
// not mend; each names its file.
func refused(err error) error {
	for _, e := range []error{fs.ErrPermission, syscall.EROFS, syscall.EISDIR, syscall.ENOTDIR, syscall.ELOOP} {
		if errors.Is(err, e) {
			return backend.Invalid("%w: the directory of the locks and its files must be plain ones that this user may read and write", err)
		}
	}
	return err
}
