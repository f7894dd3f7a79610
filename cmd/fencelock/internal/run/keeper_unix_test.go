//go:build unix

package run

import (
	"testing"
	"time"
)

func TestKeeperReads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		chunks []string
		group  int
		until  time.Duration
	}{
		{nil, 0, 0},
		{[]string{"until 5\ngroup 7\n"}, 7, 5},
		{[]string{"group 7\nuntil 5\nuntil 9\n"}, 7, 9},
		{[]string{"gro", "up 71", "2\nunt", "il 5\n"}, 712, 5},
		{[]string{"group 7\n", "until 12"}, 7, 0},
		{[]string{"nonsense\n\ngroup x\nuntil 5\n"}, 0, 5},
	} {
		var w watch
		for _, chunk := range c.chunks {
			w.read([]byte(chunk))
		}
		if w.group != c.group || w.until != c.until {
			t.Errorf("%q: got group %d until %d, want %d, %d", c.chunks, w.group, w.until, c.group, c.until)
		}
	}
}
