package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// sharedNames are the names that were held by readers or permits. [Sweep] judges them; the two judges of [Judge] are
// models of a lock with one holder, and leave these names out.
func sharedNames(events []Event) map[string]bool {
	names := map[string]bool{}
	for _, e := range events {
		if e.Kind == Granted && e.Mode != backend.Exclusive {
			names[e.Name] = true
		}
	}
	return names
}

// exclusiveOnly returns the events of all other names.
func exclusiveOnly(events []Event) []Event {
	names := sharedNames(events)
	if len(names) == 0 {
		return events
	}
	return slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return names[e.Name] })
}

// together does for a name with several holders what exclusion and rising do for others. A writer is alone, all holders
// have one mode, there are no more permits than the least limit among them, and no slot twice. Readers at once have one
// token, unless the greater one was drawn for a floor that the other does not exceed. A token is greater than every
// token that was told before it was asked for; a reader's after a reader's is not lower.
func together(grants []Grant) (tokens, twice []error) {
	floor := map[backend.Token]backend.Token{} // the greatest of those that asked for a token
	for _, g := range grants {
		floor[g.Token] = max(floor[g.Token], g.Floor)
	}
	var at []Grant // who trusts a lease at g.From
	for i, g := range grants {
		for _, before := range grants[:i] {
			between := g.Mode != backend.Reader || before.Mode != backend.Reader
			if before.From < g.Called && (g.Token < before.Token || between && g.Token == before.Token) {
				tokens = append(tokens, fmt.Errorf("%q: a token that is not greater than one before it: %v; then %v",
					g.Name, before, g))
			}
		}
		if g.To <= g.From {
			continue
		}
		at = slices.DeleteFunc(at, func(o Grant) bool { return o.To <= g.From })
		least := g.Limit
		for _, o := range at {
			least = min(least, o.Limit)
			switch {
			case o.Mode != g.Mode || g.Mode == backend.Exclusive:
				twice = append(twice, fmt.Errorf("%q was held twice for %v: by %v; and by %v",
					g.Name, time.Duration(min(o.To, g.To)-g.From), o, g))
			case g.Mode == backend.Permit && o.Slot == g.Slot:
				twice = append(twice, fmt.Errorf("%q: slot %d was out twice: %v; and %v", g.Name, g.Slot, o, g))
			case g.Mode == backend.Reader && o.Token != g.Token &&
				floor[max(o.Token, g.Token)] < min(o.Token, g.Token):
				twice = append(twice, fmt.Errorf("%q: two readers at once with different tokens: %v; and %v",
					g.Name, o, g))
			}
		}
		if at = append(at, g); g.Mode == backend.Permit && len(at) > least {
			twice = append(twice, fmt.Errorf("%q: %d permits were out, of %d, with that of %v",
				g.Name, len(at), least, g))
		}
	}
	return tokens, twice
}
