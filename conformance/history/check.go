package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A Grant is one lease, by the events.
type Grant struct {
	Process, Phase, Name string
	Token                backend.Token
	Called               Moment // just before it was asked for
	// when it was trusted for sure; To is not after From for one whose time was over when it was
	// granted
	From, To Moment

	Mode        backend.Mode
	Slot, Limit int // of Permit
	Floor       backend.Token
}

// String says which process held the lock, and when.
func (g Grant) String() string {
	phase := ""
	if g.Phase != "" {
		phase = " in phase " + g.Phase
	}
	mode := ""
	if g.Mode != backend.Exclusive {
		mode = fmt.Sprintf(" (%v)", g.Mode)
	}
	return fmt.Sprintf("%s%s%s with token %d, asked for at %v, trusted from %v to %v", g.Process,
		phase, mode, g.Token, time.Duration(g.Called), time.Duration(g.From), time.Duration(g.To))
}

// lease tells one from others.
type lease struct {
	process, name string
	token         backend.Token
}

// Grants returns the leases of a history, by name, in the order in which they were granted. A lease
// without an end was trusted until its deadline, as it was when it was granted, or until its process died.
func Grants(events []Event) []Grant {
	died, ends := map[string]Moment{}, map[lease]Moment{}
	for _, e := range events {
		switch e.Kind {
		case Died:
			died[e.Process] = e.At
		case Ended:
			ends[lease{e.Process, e.Name, e.Token}] = min(e.At, e.Until)
		}
	}
	var grants []Grant
	for _, e := range events {
		if e.Kind != Granted {
			continue
		}
		g := Grant{
			Process: e.Process, Phase: e.Phase, Name: e.Name, Token: e.Token, Called: e.Called,
			From: e.At, To: e.Until,
			Mode: e.Mode, Slot: e.Slot, Limit: e.Limit, Floor: e.Floor,
		}
		if end, ok := ends[lease{e.Process, e.Name, e.Token}]; ok {
			g.To = end
		} else if at, ok := died[e.Process]; ok {
			g.To = min(g.To, at)
		}
		grants = append(grants, g)
	}
	slices.SortStableFunc(grants, func(a, b Grant) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.From, b.From))
	})
	return grants
}

// most is how many breaks Check tells of.
const most = 20

// Findings are the promises that a history breaks.
type Findings struct {
	Twice    []error // two trusted a lease of one name at once, or one was granted while another was on its way
	Tokens   []error // a token came twice, or a lower one after a greater one
	Counters []error // an acknowledged increment is missing, or was made by an overtaken holder
	Calls    []error // a lease was granted after its deadline, or by a store that was down
}

// Sweep looks for everything that can be seen from the moments alone. It takes n log n steps for n events.
func Sweep(events []Event) Findings {
	var f Findings
	for grants := Grants(events); len(grants) > 0; {
		n := slices.IndexFunc(grants, func(g Grant) bool { return g.Name != grants[0].Name })
		if n < 0 {
			n = len(grants)
		}
		if slices.ContainsFunc(grants[:n], func(g Grant) bool { return g.Mode != backend.Exclusive }) {
			tokens, twice := together(grants[:n])
			f.Tokens, f.Twice = append(f.Tokens, tokens...), append(f.Twice, twice...)
			grants = grants[n:]
			continue
		}
		tokens, between := rising(grants[:n])
		f.Tokens = append(f.Tokens, tokens...)
		f.Twice = append(append(f.Twice, exclusion(grants[:n])...), between...)
		grants = grants[n:]
	}
	f.Counters = counters(events)
	f.Calls = append(late(events), down(events)...)
	return f
}

// Fenced returns the breaks of all promises but exclusion: all but Twice, joined and cut off as by Check.
func (f Findings) Fenced() error { return brief(slices.Concat(f.Tokens, f.Counters, f.Calls)) }

// Check returns an error for every time that a history breaks a promise, joined; for the first
// twenty and how many more there are, if there are more.
func Check(events []Event) error {
	f := Sweep(events)
	return brief(slices.Concat(f.Twice, f.Tokens, f.Counters, f.Calls))
}

func brief(errs []error) error {
	if n := len(errs) - most; n > 0 {
		errs = append(errs[:most], fmt.Errorf("and %d more", n))
	}
	return errors.Join(errs...)
}

// exclusion: no two leases of one name are trusted at once.
func exclusion(grants []Grant) []error {
	var errs []error
	var last Grant // whose trust reaches furthest
	for _, g := range grants {
		if g.To <= g.From {
			continue
		}
		if last.To > g.From {
			errs = append(errs, fmt.Errorf("%q was held twice for %v: by %v; and by %v",
				g.Name, time.Duration(min(last.To, g.To)-g.From), last, g))
		}
		if g.To > last.To {
			last = g
		}
	}
	return errs
}

// rising: every token is greater than the token of every lease of the name that was trusted earlier, or was granted
// before this one was asked for. (A lease whose time was over when its program was told of it can be told late.) The
// second is a matter of tokens; the first alone means that another had the lock while this grant was on its way.
func rising(grants []Grant) (tokens, twice []error) {
	seen := map[backend.Token]Grant{}
	// As they came, each with a greater token than the one before: of all, and of those that were trusted.
	var told, tops []Grant
	for _, g := range grants {
		if twin, ok := seen[g.Token]; ok {
			tokens = append(tokens, fmt.Errorf("%q: one token twice: %v; and %v", g.Name, twin, g))
		}
		seen[g.Token] = g
		trusted := g.To > g.From
		// The greatest that was there before it was asked for.
		n, _ := slices.BinarySearchFunc(told, g.Called, func(top Grant, at Moment) int {
			return cmp.Compare(top.From, at) // moments that are alike overlap
		})
		switch {
		case n > 0 && g.Token < told[n-1].Token:
			tokens = append(tokens, fmt.Errorf("%q: a lower token after a greater one: %v; then %v",
				g.Name, told[n-1], g))
		case trusted && len(tops) > 0 && g.Token < tops[len(tops)-1].Token:
			twice = append(twice, fmt.Errorf("%q: a lower token after a greater one, "+
				"which came in between: %v; then %v", g.Name, tops[len(tops)-1], g))
		case trusted:
			tops = append(tops, g)
		}
		if len(told) == 0 || g.Token > told[len(told)-1].Token {
			told = append(told, g)
		}
	}
	return tokens, twice
}

// counters: every increment that was acknowledged is in its counter, none is there that nobody
// wanted, and none was made with a lower token than one before it.
func counters(events []Event) []error {
	wanted, counted := map[string]int64{}, map[string]int64{}
	added := map[string][]Event{}
	for _, e := range events {
		switch e.Kind {
		case Wanted:
			wanted[e.Name]++
		case Added:
			added[e.Name] = append(added[e.Name], e)
		case Counted:
			counted[e.Name] = e.Value
		}
	}
	var errs []error
	for name, es := range added {
		slices.SortFunc(es, func(a, b Event) int { return cmp.Compare(a.Value, b.Value) })
		for i := 1; i < len(es); i++ {
			switch a, b := es[i-1], es[i]; {
			case a.Value == b.Value:
				errs = append(errs, fmt.Errorf("counter %q: %s and %s both made it %d: an "+
					"acknowledged increment was lost", name, a.Process, b.Process, a.Value))
			case a.Token > b.Token:
				errs = append(errs, fmt.Errorf("counter %q: %s made it %d with token %d after %s "+
					"had made it %d with token %d",
					name, b.Process, b.Value, b.Token, a.Process, a.Value, a.Token))
			}
		}
	}
	for name := range wanted {
		n, ok := counted[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("counter %q: nobody has counted it", name))
		case n < int64(len(added[name])) || n > wanted[name]:
			errs = append(errs, fmt.Errorf("counter %q: it is %d; %d increments "+
				"were acknowledged, of %d", name, n, len(added[name]), wanted[name]))
		case len(added[name]) > 0:
			if last := added[name][len(added[name])-1]; last.Value > n {
				errs = append(errs, fmt.Errorf("counter %q: it is %d; %s was told that it had made it %d: an "+
					"acknowledged increment was lost", name, n, last.Process, last.Value))
			}
		}
	}
	return errs
}
