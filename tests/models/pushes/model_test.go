package pushes

import (
	"strings"
	"testing"
)

// most is where a search gives up.
const most = 6_000_000

// One trusts its hold at a time. Every state within the bounds is visited.
func TestEveryState(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]Config{
		"a crash, a copy":    {Crashes: 1, Copies: 1},
		"a crash, a look":    {Crashes: 1, Looks: 1},
		"a crash, a renewal": {Crashes: 1, Renews: 1},
		"two crashes":        {Crashes: 2},
	} {
		r := Search(c, most)
		t.Logf("%-24s %9d states, %2d steps deep, %6d with a holder, %v",
			what, r.States, r.Depth, r.Grants, r.Took.Round(1e6))
		if r.Broken != "" || !r.Whole {
			t.Errorf("%s: whole: %v; %v", what, r.Whole, r)
		}
		if r.Grants == 0 {
			t.Errorf("%s: nobody is ever granted the lock, so nothing was shown", what)
		}
	}
}

// Each safeguard, left out, breaks the promise: the search finds how.
func TestEverySafeguardIsNeeded(t *testing.T) {
	t.Parallel()
	for safeguard, c := range map[string]Config{
		"a release that pushes is flushed":      {Crashes: 1, Copies: 1, Omitted: Omitted{PushesLazily: true}},
		"a push is trusted from its request on": {Omitted: Omitted{AgeUnread: true}},
		"… and grants by no other":              {Looks: 1, Omitted: Omitted{NumberUnread: true}},
		"a renewal is flushed":                  {Crashes: 1, Renews: 1, Omitted: Omitted{RenewsLazily: true}},
	} {
		r := Search(c, most)
		t.Logf("without %q: %d states, %d steps, %v\n%v", safeguard, r.States, len(r.Trace), r.Took.Round(1e6), r)
		if !strings.HasPrefix(r.Broken, "EXCLUSION") {
			t.Errorf("without %q: got %q, want two holders", safeguard, r.Broken)
		}
	}
}
