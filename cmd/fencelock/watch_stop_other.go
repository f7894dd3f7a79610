//go:build unix && !linux

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// stopped returns when the stop that was sent to the process group is over, or probably does not come.
func stopped() {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	select {
	case <-goesOn:
	case <-time.After(100 * time.Millisecond):
	}
}
