package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopping returns what waits until the stop that is about to be sent to the process group has been
// dealt with: the process was stopped and goes on, or the system did not stop it. A signal to the
// group waits until one of the threads runs, which on a busy machine takes a while.
func stopping() func() {
	return func() {
		for range 5000 {
			if !pending(syscall.SIGTSTP) {
				return
			}
			time.Sleep(time.Millisecond) // the pause of a bounded poll
		}
	}
}

// pending reports whether a signal was sent to the process that no thread has dealt with yet.
func pending(sig syscall.Signal) bool {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(raw), "\nShdPnd:\t")
	word, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(word, 16, 64)
	return err == nil && set&(1<<(uint(sig)-1)) != 0
}
