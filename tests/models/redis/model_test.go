package redis

import "testing"

// most is where a search gives up.
const most = 20_000_000

func TestEveryState(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Ticks: 4},
		{Ticks: 2, GiveUp: 1},
		{Ticks: 3, GiveUp: 1},
		{Ticks: 2, Gate: true},
	} {
		if testing.Short() && c.Ticks+c.GiveUp > 3 {
			continue
		}
		r := Search(c, most)
		t.Logf("%+v: %d states, %d steps deep, %d with a holder, %v", c, r.States, r.Depth, r.Grants, r.Took.Round(1e6))
		if r.Broken != "" || !r.Whole || r.Grants == 0 {
			t.Errorf("%+v: whole: %v, %d with a holder; %v", c, r.Whole, r.Grants, r)
		}
	}
}

// Each safeguard is needed: without it there is a run that goes wrong.
func TestSafeguards(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]Config{
		"the ask is compared":                       {Ticks: 5, AnyAsk: true},
		"the deadline counts from an answered ask":  {Ticks: 5, FromPush: true},
		"the deadline counts from the one answered": {Ticks: 5, GiveUp: 1, FromSent: true},
		"the grant by release compares the gates":   {Ticks: 2, Gate: true, NoGates: true},
	} {
		r := Search(c, most)
		if r.Broken == "" {
			t.Errorf("%s: nothing goes wrong without it in %d states", what, r.States)
		}
		t.Logf("%s: %v", what, r)
	}
}
