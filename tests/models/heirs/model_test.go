package heirs

import (
	"strings"
	"testing"
)

// most is where a search gives up.
const most = 6_000_000

// The promises: one trusts its hold at a time, and the store has it in front; each token is above all that were granted
// or raised to before; behind a closed gate nobody is an heir, and after the drain nobody holds. Every state within the
// bounds is visited.
func TestEveryState(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]Config{
		"2 raises":                           {Raises: 2},
		"an entry ends, a look":              {Ends: 1, Looks: 1},
		"a renewal, 2 raises, reserves":      {Renews: 1, Raises: 2, Reserved: true},
		"B takes its turn; a raise, an end":  {Turns: 2, Raises: 1, Ends: 1},
		"B takes its turn; 2 raises":         {Turns: 2, Raises: 2, Renews: 1, Reserved: true},
		"A takes its turn; a raise, a look":  {Turns: 1, Raises: 1, Looks: 1},
		"a floor, an entry ends":             {Floors: 1, Ends: 1},
		"B takes its turn; a floor, a raise": {Turns: 2, Floors: 1, Raises: 1},
		"the first gate, an entry ends":      {Gate: true, Ends: 1},
		"the first gate, a renewal":          {Gate: true, Renews: 1},
	} {
		if c.Gate && (raceDetector || testing.Short()) { // they are the largest
			continue
		}
		r := Search(c, most)
		t.Logf("%-36s %9d states, %2d steps deep, %6d with a holder, %v",
			what, r.States, r.Depth, r.Grants, r.Took.Round(1e6))
		if r.Broken != "" || !r.Whole {
			t.Errorf("%s: whole: %v; %v", what, r.Whole, r)
		}
		if r.Grants == 0 {
			t.Errorf("%s: nobody is ever granted the lock, so nothing was shown", what)
		}
	}
}

// Each safeguard, left out, breaks a promise: the search finds how.
func TestEverySafeguardIsNeeded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		safeguard string
		broken    string
		Config    // the least that shows it
	}{
		{"a grant in front since is doubted", "TOKEN", Config{Turns: 2, Raises: 1, Omitted: Omitted{NoDoubt: true}}},
		{
			"… unless its token is lower", "TOKEN",
			Config{Turns: 2, Raises: 1, Renews: 1, Omitted: Omitted{LastUnread: true}},
		},
		{"the base is what it was", "TOKEN", Config{Turns: 2, Raises: 1, Omitted: Omitted{BaseNotSame: true}}},
		{
			"… also if that is told before the list", "TOKEN",
			Config{Turns: 2, Raises: 1, Omitted: Omitted{EarlyTrusted: true}},
		},
		{
			"who is not listed any more is doubted", "TOKEN",
			Config{Turns: 2, Raises: 1, Looks: 1, Omitted: Omitted{GoneUnread: true}},
		},
		{"the own deletion is noticed", "GONE", Config{Ends: 1, Omitted: Omitted{OwnUnread: true}}},
		{"a floor takes the heirs out", "TOKEN", Config{Floors: 1, Omitted: Omitted{FloorAlone: true}}},
		{"only those behind others are taken out", "GONE", Config{Gate: true, Omitted: Omitted{SweepBlind: true}}},
		{"heirs are taken out before a gate", "GATE", Config{Gate: true, Omitted: Omitted{NoSweep: true}}},
		{"nobody becomes one meanwhile", "GATE", Config{Gate: true, Omitted: Omitted{NoEmptyList: true}}},
		{"a drain waits for heirs", "GATE", Config{Gate: true, Omitted: Omitted{HeirsOnly: true}}},
	} {
		r := Search(tt.Config, most)
		t.Logf("without %q: %d states, %d steps, %v\n%v", tt.safeguard, r.States, len(r.Trace), r.Took.Round(1e6), r)
		if !strings.HasPrefix(r.Broken, tt.broken) {
			t.Errorf("without %q: got %q, want %s", tt.safeguard, r.Broken, tt.broken)
		}
	}
}
