//go:build unix && !linux

package main

import "syscall"

// dieWithParent is left to the keeper here.
func dieWithParent(*syscall.SysProcAttr) {}
