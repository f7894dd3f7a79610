package history

import (
	"cmp"
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

// together judges a name with several holders, as exclusion and rising judge others. A writer is alone, all holders
// have one mode, there are no more permits than the least limit among them, and no slot twice. Readers at once have one
// token, unless the greater one was drawn for a floor that the other does not exceed. A token is greater than every
// token that was told before it was asked for; a reader's after a reader's is not lower.
func together(grants []Grant) (tokens, twice []error) {
	floor := map[backend.Token]backend.Token{} // the greatest of those that asked for a token
	for _, g := range grants {
		floor[g.Token] = max(floor[g.Token], g.Floor)
	}
	// Of the grants up to each, the one with the greatest token, and the one of those that are no readers'.
	tops, alone := make([]Grant, len(grants)), make([]Grant, len(grants))
	var top, last Grant
	for i, g := range grants {
		if g.Token > top.Token {
			top = g
		}
		if g.Mode != backend.Reader && g.Token > last.Token {
			last = g
		}
		tops[i], alone[i] = top, last
	}
	var at []Grant // the leases that are trusted at g.From
	for _, g := range grants {
		n, _ := slices.BinarySearchFunc(grants, g.Called, func(o Grant, at Moment) int {
			return cmp.Compare(o.From, at)
		})
		if n > 0 { // so many were granted before it was asked for
			before := tops[n-1]
			if g.Mode == backend.Reader && g.Token == before.Token {
				before = alone[n-1]
			}
			if g.Token <= before.Token {
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
