package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/fencelock/fencelock/backend"
)

const (
	// roomLeast is how much room must be left: a write makes a whole new state file beside the old
	// one.
	roomLeast = 1 << 20
	// filesLeast is how many files must still fit: three for each of the 64 buckets, and sockets.
	filesLeast = 256
)

func (x *exam) memory(context.Context) error {
	x.add("memory-alone", "", "memory://")
	return nil
}

// volume is what a system tells of a file system.
type volume struct {
	known    bool
	network  string // its kind if machines share it
	readOnly bool
	free     uint64 // bytes
	files    uint64 // that still fit
	counted  bool   // it has a limit of files
}

// readFile checks the keys of a file URL as the driver does.
func (x *exam) readFile() error {
	for k := range x.keys {
		if !slices.Contains([]string{"prefix", "sockets", "ttl"}, k) {
			return backend.Invalid("unknown key %q in the %q URL: known are prefix, sockets, ttl",
				k, x.u.Scheme)
		}
	}
	here := x.u.Host == "" || x.u.Host == "localhost"
	if !here || x.u.User != nil || x.u.Path == "" || x.u.Path == "/" {
		return backend.Invalid("the file URL: want file:///absolute/path of a directory for the " +
			"locks (three slashes)")
	}
	return nil
}

// file examines the directory, or what it would be made in.
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
	v, err := volumeOf(dir)
	if err != nil {
		return backend.Invalid("directory %q: its file system cannot be told: %v", dir, err)
	}
	x.saw(dir)
	x.volume(dir, v)
	return nil
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
