//go:build !unix

package watch

import "syscall"

// canDraw: a console may not understand the sequences of a screen.
const canDraw = false

const resized, continued = syscall.Signal(0), syscall.Signal(0) // there are none
