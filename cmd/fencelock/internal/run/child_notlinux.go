//go:build unix && !linux

package run

import "syscall"

// dieWithParent is left to the keeper here.
func dieWithParent(*syscall.SysProcAttr) {}
