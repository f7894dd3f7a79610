//go:build !unix

package doctor

import "os/exec"

// asUser does nothing: there is no pooler on such a system.
func asUser(*exec.Cmd, uint32) {}
