//go:build !unix

package conformance

import "errors"

// canStop reports whether a process can be stopped here.
const canStop = false

// Stop is not possible here.
func (p *Process) Stop() error { return errors.ErrUnsupported }

// Continue is not possible here.
func (p *Process) Continue() error { return errors.ErrUnsupported }
