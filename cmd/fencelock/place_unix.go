//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// checkOwner returns nil if the folder is the user's and closed to all others.
func checkOwner(dir string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != os.Geteuid() {
		return invalid("%s belongs to another user: it must be a folder of your own", dir)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return invalid("%s has mode %04o: others must have no access (chmod 700)", dir, perm)
	}
	return nil
}
