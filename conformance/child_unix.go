//go:build unix

package conformance

import "syscall"

// canStop reports whether a process can be stopped here.
const canStop = true

// Stop stops the process until Continue.
func (p *Process) Stop() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Continue lets it go on.
func (p *Process) Continue() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
