package file

import (
	"errors"
	"os"
)

// replace gives a file new contents so that who opens it then sees the old ones
// or the new ones, whole, whenever this process is killed. The caller is the only writer of
// both. What stands in spare does not matter.
//
// Where the system can, the two files change places, and the old contents are the
// next spare: then nothing is created, removed or cut to nothing, which on ext4 takes up to a
// millisecond each. So who has opened the file before may see it overwritten while it
// reads: the checksum tells.
func replace(path, spare string, raw []byte) error {
	f, err := os.OpenFile(spare, os.O_WRONLY|os.O_CREATE|nofollow, 0o600)
	if err != nil {
		return refused(err)
	}
	if err := errors.Join(overwrite(f, raw), f.Close()); err != nil {
		return err
	}
	if exchange(path, spare) {
		return nil
	}
	if err := os.Rename(spare, path); err != nil {
		return refused(err)
	}
	return nil
}

// overwrite makes raw all that stands in f.
func overwrite(f *os.File, raw []byte) error {
	if _, err := f.Write(raw); err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > int64(len(raw)) {
		err = f.Truncate(int64(len(raw)))
	}
	return err
}
