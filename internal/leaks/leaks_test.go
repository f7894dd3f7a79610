package leaks

import (
	"strings"
	"testing"
	"time"
)

func TestAGoroutineThatIsLeftIsSeen(t *testing.T) {
	before := Goroutines()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		<-stop
	}()
	left := since(before, 0)
	close(stop)
	<-stopped
	if len(left) != 1 || !strings.Contains(left[0], "TestAGoroutineThatIsLeftIsSeen") {
		t.Errorf("got %q, want the stack of the goroutine that is left", left)
	}
	if left := since(before, 5*time.Second); len(left) != 0 {
		t.Errorf("once it has ended: got %q, want none", left)
	}
}
