package migrate

import (
	"strings"
	"testing"
)

// The promise of a queue that numbers its entries: tokens rise from grant to grant.
func TestEveryStateOfAQueue(t *testing.T) {
	t.Parallel()
	for _, c := range []Queue{
		{Clients: 2, Entries: 6, Ahead: 3},
		{Clients: 3, Entries: 5, Ahead: 2},
	} {
		if raceDetector && c.Clients > 2 {
			continue
		}
		r := SearchQueue(c, most)
		t.Logf("%d clients, %d entries: %d states, %d steps deep, %d with a holder, %v",
			c.Clients, c.Entries, r.States, r.Depth, r.Grants, r.Took.Round(1e6))
		if r.Broken != "" || !r.Whole || r.Grants == 0 {
			t.Errorf("%+v: whole: %v; %v", c, r.Whole, r)
		}
	}
}

// C12: what breaks it.
func TestEverySafeguardOfAQueueIsNeeded(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]Queue{
		"the base is read at the grant, not at the entry": {BaseAtEntry: true},
		"the base is not read earlier still":              {BaseCached: true},
		"the raise counts from one's own number":          {FromNow: true},
		"the raise never lowers the base":                 {Blind: true},
		"the raise comes before the grant":                {RaiseAfter: true},
	} {
		c.Clients, c.Entries, c.Ahead = 2, 4, 2
		r := SearchQueue(c, most)
		t.Logf("without C12: %s: %d states, %v\n%v", what, r.States, r.Took.Round(1e6), r)
		if !strings.HasPrefix(r.Broken, "ORDER") {
			t.Errorf("without C12: %s: got %q, want ORDER", what, r.Broken)
		}
	}
}
