//go:build linux

package guarantees_test

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// isolatedEnv marks a process that has mounts of its own.
const isolatedEnv = "FENCELOCK_FAULTS_ISOLATED"

// isolated reports whether this process may mount disks and make networks, and leaves none behind however it ends.
func isolated() bool { return os.Getenv(isolatedEnv) != "" }

// isolate starts this program again in a mount namespace of its own, where it may: as root. The
// images of disks are kept in memory.
func isolate() {
	if isolated() || os.Getuid() != 0 || os.Getenv(workerEnv) != "" {
		return
	}
	exe, err := os.Executable()
	if err != nil {
		return
	}
	runtime.LockOSThread() // of which the namespace is, and that goes on
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return // the cells that take it are not run
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, "own mounts:", err)
		os.Exit(1)
	}
	err = syscall.Exec(exe, os.Args, append(os.Environ(), isolatedEnv+"=1"))
	fmt.Fprintln(os.Stderr, "start again with own mounts:", err)
	os.Exit(1)
}
