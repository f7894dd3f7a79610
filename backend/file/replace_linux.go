package file

import "golang.org/x/sys/unix"

// exchange swaps two files in one step. It changes nothing and returns false
// where the file system cannot do that or one of the files does not exist.
func exchange(a, b string) bool {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) == nil
}
