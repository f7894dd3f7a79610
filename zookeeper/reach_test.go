package zookeeper

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// The session is of 12 s, and reports come within 4 s.
func TestReach(t *testing.T) {
	const length = 12 * time.Second
	type answer struct {
		at    int // seconds
		write bool
	}
	for _, tt := range []struct {
		name    string
		answers []answer
		want    int // until when, in seconds
	}{
		{"opened", nil, 12},
		{"pings", []answer{{4, false}, {8, false}}, 20},
		{"just in time", []answer{{8, true}}, 20},
		{"too late to count", []answer{{9, true}}, 12},
		{"still too early", []answer{{9, true}, {12, true}}, 12},
		{"heard of, and alive after that", []answer{{9, true}, {13, true}}, 25},
		{"a ping proves nothing", []answer{{9, true}, {13, false}}, 12},
		{"a ping in between does not put it off", []answer{{9, false}, {11, false}, {13, true}}, 25},
		{"never back", []answer{{8, true}, {5, true}}, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := backend.Now()
			after := func(s int) backend.Instant { return start.Add(time.Duration(s) * time.Second) }
			var r reach
			r.greeted(start, length)
			for _, a := range tt.answers {
				r.answered(after(a.at), a.write, length)
			}
			if got, want := r.until.Sub(start), time.Duration(tt.want)*time.Second; got != want {
				t.Errorf("kept until %v, want %v", got, want)
			}
		})
	}
}
