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
	// roomLeast is how much room must be left: a write makes a whole new state file beside the old one.
	roomLeast = 1 << 20
	// filesLeast is how many files must still fit: three for each of the 64 buckets, and sockets.
	filesLeast = 256
)

func fileKinds() []Kind {
	return []Kind{
		{
			"file-network", Broken, "file system of the directory",
			"Several machines may share it. These locks hold on one machine only: clocks, boot ids and renames of two machines have nothing to do with each other. The driver refuses what it knows to be shared.",
			"a local directory, or a backend with a server",
		},
		{
			"file-fuse", Risk, "file system of the directory",
			"What is behind FUSE cannot be seen: sshfs and the like are shared with other machines, and some do not replace a file in one step.",
			"a directory on a disk of this machine",
		},
		{
			"file-rights", Broken, "permissions of the directory",
			"This user may not read, write and search it, so nothing can be locked.",
			"chown and chmod 0700 {value}; all processes run as one user",
		},
		{
			"file-read-only", Broken, "mount of the file system",
			"It is mounted read-only, so nothing can be locked.",
			"mount -o remount,rw, or another directory",
		},
		{
			"file-others", Risk, "mode of the directory",
			"Other users may write there: anyone of them can remove or replace the state files, and so take or free any lock.",
			"chmod 0700, owned by the user that locks",
		},
		{
			"file-missing", Note, "the directory",
			"It is not there yet. The first program that locks makes it, with mode 0700; what it will be made in was looked at instead.",
			"nothing, or mkdir -m 0700",
		},
		{
			"file-full", Risk, "free space of the file system",
			"Every change writes a new state file: where there is no room nothing can be locked or renewed, and leases run out.",
			"make room on that file system: df -h, df -i",
		},
		{
			"file-unseen", Unseen, "file system of the directory",
			"This system does not tell of what kind it is, whether it is full and who may write. Network file systems must not be used.",
			"look by hand: mount, df",
		},
	}
}

func memoryKinds() []Kind {
	return []Kind{{
		"memory-alone", Note, "memory://",
		"The store is the memory of one Open: no other process, and no other Open of this one, is excluded.",
		"any other backend as soon as there are two",
	}}
}

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
			return backend.Invalid("unknown key %q in the %q URL: known are prefix, sockets, ttl", k, x.u.Scheme)
		}
	}
	if (x.u.Host != "" && x.u.Host != "localhost") || x.u.User != nil || x.u.Path == "" || x.u.Path == "/" {
		return backend.Invalid("the file URL: want file:///absolute/path of a directory for the locks (three slashes)")
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
