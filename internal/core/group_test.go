package core_test

import (
	"sync"
	"testing"

	"github.com/fencelock/fencelock/internal/core"
)

// TestGroupFromNothing: calls come and go while others wait for them; the race detector reports a sync.WaitGroup that
// is used so. Who waits goes on once nothing is under way.
func TestGroupFromNothing(t *testing.T) {
	var g core.Group
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 1000 {
				g.Go(func() {})
			}
		})
		all.Go(func() {
			for range 1000 {
				g.Wait()
			}
		})
	}
	all.Wait()
	over := false
	g.Go(func() { over = true })
	if g.Wait(); !over {
		t.Error("got the end of Wait before that of what is under way")
	}
}
