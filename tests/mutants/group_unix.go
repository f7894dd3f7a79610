//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// ownGroup puts a process in a group that ends with it, the servers that it runs among them.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
