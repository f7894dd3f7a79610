package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopping returns a function that waits until the stop signal to the process group has had its effect:
// the process was stopped and goes on, or the system did not stop it. The signal takes effect when a
// thread of the process runs, which takes a while on a busy machine.
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

// pending reports whether a signal that was sent to the process has had no effect yet.
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
