//go:build !unix

package conformance

import (
	"errors"
	"os/exec"
)

// canStop reports whether a process can be stopped here.
const canStop = false

func ownGroup(*exec.Cmd) {}

// Stop is not possible here.
func (p *Process) Stop() error { return errors.ErrUnsupported }

// Continue is not possible here.
func (p *Process) Continue() error { return errors.ErrUnsupported }
