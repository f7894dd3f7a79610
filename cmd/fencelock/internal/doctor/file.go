package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/fencelock/fencelock/backend"
)

const (
	// roomLeast is how much room must be left: a write makes a whole new state file beside the old file.
	roomLeast = 1 << 20
	// filesLeast is how many files must still fit: three for each of the 64 buckets, and sockets.
	filesLeast = 256
)

func (x *exam) memory(context.Context) error {
	x.add("memory-alone", "", "memory://")
	return nil
}

// volume describes a file system.
type volume struct {
	known    bool
	network  string // its kind if machines share it
	readOnly bool
	free     uint64 // bytes
	files    uint64 // more files that fit
	counted  bool   // it has a limit of files
}

// fileFormat is the FORMAT file of the driver's version.
const fileFormat = "fencelock file backend 1, 64 buckets\n"

// readFile lets the driver check a file URL without its path: with the path the driver would make the directory.
// The driver refuses a URL without a path, but checks all else before.
func (x *exam) readFile(ctx context.Context) error {
	bare := *x.u
	bare.Path, bare.RawPath = "/", ""
	_, err := backend.Open(ctx, bare.String(), func(q *backend.Query) { x.ttl = q.Duration("ttl", x.ttl) })
	_, pathless := backend.Open(ctx, "file:///", nil)
	if x.u.Path == "" || x.u.Path == "/" || err.Error() != pathless.Error() {
		return err
	}
	return nil
}

// file examines the directory, or if it is missing its nearest parent.
func (x *exam) file(context.Context) error {
	dir := x.u.Path
	if runtime.GOOS == "windows" && len(dir) > 2 && dir[2] == ':' {
		dir = dir[1:] // file:///C:/locks
	}
	dir = filepath.FromSlash(dir)
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		x.add("file-missing", "", dir)
		for ; errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir; _, err = os.Stat(dir) {
			dir = filepath.Dir(dir)
		}
	}
	switch {
	case err != nil:
		return backend.Invalid("directory %q cannot be read: %v", dir, err)
	case info != nil && !info.IsDir():
		return backend.Invalid("%q is not a directory", dir)
	case info != nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0:
		x.add("file-others", "", fmt.Sprintf("%v %s", info.Mode(), dir))
	}
	if info != nil {
		x.fileFormat(dir)
	}
	v, err := volumeOf(dir)
	if err != nil {
		return backend.Invalid("directory %q: its file system cannot be told: %v", dir, err)
	}
	x.saw(dir)
	x.volume(dir, v)
	return nil
}

// fileFormat checks that the directory has the driver's format, or none yet.
func (x *exam) fileFormat(dir string) {
	raw, err := os.ReadFile(filepath.Join(dir, "FORMAT"))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(raw) == 0:
	case err != nil:
		x.add("file-format", "", err.Error())
	case string(raw) != fileFormat:
		x.add("file-format", "", fmt.Sprintf("%.60q in %s", raw, dir))
	}
}

// volume checks a directory and its file system.
func (x *exam) volume(dir string, v volume) {
	switch {
	case !v.known:
		x.add("file-unseen", "", dir)
		return
	case v.network == "FUSE":
		x.add("file-fuse", "", dir)
	case v.network != "":
		x.add("file-network", "", v.network+" "+dir)
	}
	switch {
	case v.readOnly:
		x.add("file-read-only", "", dir)
	case mayWrite(dir) != nil:
		x.add("file-rights", "", dir)
	case v.free < roomLeast:
		x.add("file-full", "", fmt.Sprintf("%s, %d KiB free", dir, v.free>>10))
	case v.counted && v.files < filesLeast:
		x.add("file-full", "", fmt.Sprintf("%s, room for %d files", dir, v.files))
	}
}
