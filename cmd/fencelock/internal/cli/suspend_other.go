//go:build unix && !linux

package cli

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// stopping returns a function that waits until the stop of the process group is over, or probably does
// not come.
func stopping() func() {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	return func() {
		defer signal.Stop(goesOn)
		select {
		case <-goesOn:
		case <-time.After(200 * time.Millisecond):
		}
	}
}
