// Package leaks fails the tests of a package that leave goroutines behind.
package leaks

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

// Main runs a package's tests, as many at once as parallel says unless the command line does, and exits. A goroutine
// that was not there before and has not ended within settle after the last test fails the package.
func Main(m *testing.M, parallel int, settle time.Duration) {
	flag.Parse()
	// Tests of stores wait more than they compute, so that more of them fit side by side than there are processors.
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = p.Value.Set(strconv.Itoa(parallel)) // a number is a valid value
	}
	before := Goroutines()
	code := m.Run()
	left := since(before, settle)
	if code == 0 && len(left) > 0 {
		fmt.Fprintf(os.Stderr, "%d goroutines are left:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// Goroutines returns the stacks of all goroutines, by what identifies each.
func Goroutines() map[string]string {
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

// since returns the goroutines that were not there before, once there are none or the time is over.
func since(before map[string]string, most time.Duration) []string {
	for end := time.Now().Add(most); ; time.Sleep(20 * time.Millisecond) {
		var left []string
		for id, g := range Goroutines() {
			if before[id] == "" && !strings.Contains(g, "os/signal.") {
				left = append(left, g)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}
