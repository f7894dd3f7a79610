package run

import "syscall"

// dieWithParent makes the system kill the command when the thread that started
// it dies.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
