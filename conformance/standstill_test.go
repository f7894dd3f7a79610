//go:build unix

package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// If the machine stands still, a rule waits so much longer.
func TestStandstillIsNoDelay(t *testing.T) {
	pid := os.Getpid()
	sh := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf("kill -STOP %d; sleep 1; kill -CONT %d", pid, pid))
	if err := sh.Start(); err != nil {
		t.Skip(err)
	}
	ch := make(chan result, 1)
	time.AfterFunc(100*time.Millisecond, func() { // two steps, of which each may be late
		time.AfterFunc(50*time.Millisecond, func() { ch <- result{} })
	})
	began := time.Now()
	if _, err := granted(t.Context(), ch, 300*time.Millisecond, "what comes after 150 ms"); err != nil {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if err := sh.Wait(); err != nil {
		t.Error(err)
	}
}
