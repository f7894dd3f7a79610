package backend

import "testing"

// The clocks are read: a machine that has slept counts more since its boot than the monotonic clock.
func TestClocksRun(t *testing.T) {
	if mono, boot := clock(clockMonotonic), clock(clockBoottime); mono <= 0 || boot < mono {
		t.Errorf("got %v since the boot, %v without sleep", boot, mono)
	}
}
