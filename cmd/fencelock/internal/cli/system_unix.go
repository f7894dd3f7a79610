//go:build unix

package cli

import (
	"io/fs"
	"os"
	"syscall"

	"github.com/fencelock/fencelock/backend"
)

// Forwarded returns the signals that end a command, and that run forwards to its COMMAND.
func Forwarded() []os.Signal {
	return []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT,
		syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	}
}

// checkOwner returns nil if the folder is the user's and closed to all others.
func checkOwner(dir string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != os.Geteuid() {
		return backend.Invalid("%s belongs to another user: it must be a folder of your own", dir)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return backend.Invalid("%s has mode %04o: others must have no access (chmod 700)",
			dir, perm)
	}
	return nil
}

// Suspend stops the process group, as a terminal does on Ctrl-Z, until it is continued. If no process
// could continue it, the system does not stop it, and Suspend returns.
func Suspend() {
	over := stopping()
	_ = syscall.Kill(0, syscall.SIGTSTP)
	over()
}
