//go:build unix

package doctor

import (
	"os/exec"
	"syscall"
)

// asUser makes a program run as a user.
func asUser(cmd *exec.Cmd, uid uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}
