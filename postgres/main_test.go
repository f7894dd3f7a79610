package postgres_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMain fails the package if a goroutine is left when every test has ended.
func TestMain(m *testing.M) {
	flag.Parse()
	// The tests wait more than they compute, so that more of them fit side by side than there are processors.
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = p.Value.Set("6") // a number is a valid value
	}
	before := goroutines()
	code := m.Run()
	left := leaked(before, 20*time.Second)
	if code == 0 && len(left) > 0 {
		fmt.Fprintf(os.Stderr, "%d goroutines are left:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// goroutines returns the stacks of all goroutines, by what identifies each.
func goroutines() map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	all := map[string]string{}
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		id, _, _ := strings.Cut(g, " [")
		all[id] = g
	}
	return all
}

// leaked returns the goroutines that were not there before, once there are none or the time is over: pgx cancels what
// was under way on a closed connection in the background, for 15 s at the most.
func leaked(before map[string]string, most time.Duration) []string {
	for end := time.Now().Add(most); ; {
		var left []string
		for id, g := range goroutines() {
			if before[id] == "" && !strings.Contains(g, "os/signal.") {
				left = append(left, g)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
		<-time.After(20 * time.Millisecond)
	}
}
