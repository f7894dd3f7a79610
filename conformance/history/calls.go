package history

import (
	"fmt"
	"strings"
	"time"
)

// sluggish is how long a busy machine may keep a program from writing down that it was granted a lease.
const sluggish = 250 * time.Millisecond

// late: no lease is handed to the program after its own deadline, unless the process was stopped meanwhile.
func late(events []Event) []error {
	stops := map[string][]Event{}
	for _, e := range events {
		if e.Kind == Stopped || e.Kind == Continued {
			stops[e.Process] = append(stops[e.Process], e)
		}
	}
	stopped := func(g Event) bool {
		for _, e := range stops[g.Process] {
			if max(e.At, e.Until) >= g.Called && e.At <= g.At {
				return true
			}
		}
		return false
	}
	var errs []error
	for _, e := range events {
		if e.Kind == Granted && e.At > e.Until.After(sluggish) && !stopped(e) {
			errs = append(errs, fmt.Errorf("%q: %s was granted token %d %v after its own deadline",
				e.Name, e.Process, e.Token, time.Duration(e.At-e.Until)))
		}
	}
	return errs
}

// down: a store that could not grant anything has not. A holder of before it went down may still pass
// the lock on within its process.
func down(events []Event) []error {
	var errs []error
	for _, d := range events {
		if d.Kind != Down {
			continue
		}
		type had struct{ process, name string }
		before := map[had]bool{}
		for _, g := range Grants(events) {
			if g.Called <= d.At && (g.To >= d.At || g.From >= d.At) {
				before[had{program(g.Process), g.Name}] = true
			}
		}
		for _, e := range events {
			if e.Kind == Granted && e.Called > d.At && e.At < d.Until && !before[had{program(e.Process), e.Name}] {
				errs = append(errs, fmt.Errorf("%q: %s was granted token %d by a store that was "+
					"down", e.Name, e.Process, e.Token))
			}
		}
	}
	return errs
}

// program is the process of a name such as "w2.1", which is its second goroutine.
func program(process string) string {
	name, _, _ := strings.Cut(process, ".")
	return name
}
