//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// canDraw: terminals here understand the sequences of a screen.
const canDraw = true

// screenSignals returns the signals that a screen deals with. SIGTSTP is none of them: a Go program that has once asked for it
// is never stopped by it again.
func screenSignals() chan os.Signal {
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, syscall.SIGWINCH, syscall.SIGCONT)
	return sigs
}

func endSignals(sigs chan os.Signal) { signal.Stop(sigs) }

// signal deals with one. After any of them the screen is drawn again.
func (s *screen) signal(sig os.Signal) error {
	if sig != syscall.SIGCONT {
		return nil
	}
	s.leave() // it was stopped without asking us, perhaps with a shell on the terminal meanwhile
	return s.enter()
}

// suspend stops the process group, as the terminal would have on Ctrl-Z, until it is continued. Where nobody could continue
// it the system does not stop it.
func suspend() {
	_ = syscall.Kill(0, syscall.SIGTSTP)
	stopped()
}
