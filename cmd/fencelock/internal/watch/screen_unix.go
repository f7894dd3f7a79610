//go:build unix

package watch

import "syscall"

// canDraw: terminals here understand the sequences of a screen.
const canDraw = true

// The signals after which a screen is drawn again. SIGTSTP is not among them: a Go program that has once
// asked for it is never stopped by it again.
const resized, continued = syscall.SIGWINCH, syscall.SIGCONT
