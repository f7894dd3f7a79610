package explore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/explore"
)

// counter is a machine of two counters below most, each of which is moved on alone.
type counter struct {
	most  uint8
	bad   [2]uint8
	tells bool
	out   []explore.Step[[2]uint8]
}

func (c *counter) Steps(s *[2]uint8) []explore.Step[[2]uint8] {
	c.out = c.out[:0]
	for i := range s {
		if s[i] == c.most {
			continue
		}
		next, action, broken := *s, "", ""
		next[i]++
		if c.tells {
			action = fmt.Sprintf("%c", 'a'+i)
		}
		if next == c.bad {
			broken = "never there"
		}
		c.out = append(c.out, explore.Step[[2]uint8]{Next: next, Action: action, Broken: broken})
	}
	return c.out
}

func (c *counter) Holds(s *[2]uint8) bool { return s[0] == s[1] }

func TestSearch(t *testing.T) {
	search := func(bad [2]uint8, most int) explore.Result {
		return explore.Search([2]uint8{}, func(tells bool) explore.Machine[[2]uint8] {
			return &counter{most: 9, bad: bad, tells: tells}
		}, most)
	}
	if r := search([2]uint8{99, 99}, 1000); !r.Whole || r.States != 100 || r.Depth != 18 ||
		r.Grants != 9 || r.Broken != "" {
		t.Errorf("got %+v, want all 100 states, 18 deep, 9 that hold besides the first", r)
	}
	if r := search([2]uint8{99, 99}, 50); r.Whole || r.Broken != "" {
		t.Errorf("got %+v, want a search that was given up", r)
	}
	r := search([2]uint8{2, 1}, 1000)
	if way := strings.Join(r.Trace, ""); r.Whole || r.Broken != "never there" || len(way) != 3 ||
		strings.Count(way, "a") != 2 {
		t.Errorf("got %+v, want a shortest way: a twice and b once", r)
	}
}
