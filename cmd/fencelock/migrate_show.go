package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
)

// phases are all, in the order of the deploys.
var phases = []backend.Phase{backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo}

// plan is what "migrate plan" says. Its keys are stable.
type plan struct {
	Migration string                        `json:"migration"`
	From      string                        `json:"from"`
	To        string                        `json:"to"`
	Phase     backend.Phase                 `json:"phase"` // that the configuration has now
	Names     string                        `json:"names"`
	Promises  map[backend.Phase]planPromise `json:"promises"`
}

// planPromise is what names are promised in a phase.
type planPromise struct {
	Fencing      string `json:"fencing"`
	FIFO         bool   `json:"fifo"`
	ClockFree    bool   `json:"clock_free"`
	SurvivesNode bool   `json:"survives_node"`
	MinTTL       string `json:"min_ttl"`
}

func planOf(m migration) plan {
	p := plan{Migration: m.name, From: m.from.Name, To: m.to.Name, Phase: m.phase, Names: m.scope.String(), Promises: map[backend.Phase]planPromise{}}
	for phase, t := range map[backend.Phase]fencelock.Traits{
		backend.PhaseFrom: m.from.Traits,
		backend.PhaseBoth: migrate.TraitsOfBoth(m.from.Traits, m.to.Traits),
		backend.PhaseTo:   m.to.Traits,
	} {
		p.Promises[phase] = planPromise{t.Fencing.String(), t.FIFO, t.ClockFree, t.SurvivesNode, t.MinTTL.String()}
	}
	return p
}

func (p plan) print(w io.Writer) {
	fmt.Fprintf(w, "migration %s moves %s from %s to %s; the configuration is in phase %s.\n\n", safe(p.Migration), p.Names, safe(p.From), safe(p.To), p.Phase)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PHASE\tFENCING\tFIFO\tCLOCK-FREE\tSURVIVES A NODE\tSHORTEST TTL")
	for _, phase := range phases {
		x := p.Promises[phase]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", phase, x.Fencing, yesNo(x.FIFO), yesNo(x.ClockFree), yesNo(x.SurvivesNode), x.MinTTL)
	}
	_ = t.Flush() // to a terminal or pipe that is gone there is nothing to say
	fmt.Fprintf(w, `
1. Deploy phase from everywhere. Every lock is taken in %[1]s, as before. The stores get their gates.
2. Deploy phase both. Every lock is taken in %[1]s, then in %[2]s: three round trips, and both stores must answer.
3. Wait until "fencelock migrate status" says that nothing speaks against phase to. Deploy phase to.
   The first program that starts in it switches: %[1]s is closed, %[2]s opened. Locks are taken in %[2]s alone.
4. Run "fencelock migrate finish". Then the configuration may name %[2]s alone.

The way back is the same, backwards, and the same migration name: to, both, from.
Do not skip a phase: a program that is two phases away from another is refused its locks.
`, safe(p.From), safe(p.To))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// statusOut is what "migrate status --json" prints. Its keys are stable.
type statusOut struct {
	Migration string                     `json:"migration"`
	From      sideOut                    `json:"from"`
	To        sideOut                    `json:"to"`
	Clients   []clientOut                `json:"clients"`
	Against   map[backend.Phase][]string `json:"against"` // what speaks against deploying a phase
	Done      bool                       `json:"done"`
}

type sideOut struct {
	Backend   string          `json:"backend"`
	Gate      string          `json:"gate"` // none, open, both, torn
	Epoch     int64           `json:"epoch"`
	Undrained []infoJSON      `json:"undrained"`
	Source    fencelock.Token `json:"source"`
}

type clientOut struct {
	Client   string        `json:"client"` // host:pid
	Phase    backend.Phase `json:"phase"`
	Reported time.Time     `json:"reported"`
	Since    time.Time     `json:"since"`
	MaxTTL   int64         `json:"max_ttl_ms"`
	InFrom   bool          `json:"in_from"`
	InTo     bool          `json:"in_to"`
}

func statusJSON(m migration, st migrate.Status) statusOut {
	side := func(name string, s migrate.Side) sideOut {
		out := sideOut{Backend: name, Gate: gateWord(s.Gate), Epoch: s.Gate.Epoch, Undrained: []infoJSON{}, Source: s.Source}
		for _, i := range s.Undrained {
			out.Undrained = append(out.Undrained, toJSON(i))
		}
		return out
	}
	out := statusOut{
		Migration: m.name, From: side(m.from.Name, st.From), To: side(m.to.Name, st.To),
		Clients: []clientOut{}, Against: map[backend.Phase][]string{}, Done: len(st.Unfinished()) == 0,
	}
	for _, c := range st.Clients {
		out.Clients = append(out.Clients, clientOut{clientName(c), c.Phase, c.Reported, c.Since, c.MaxTTL.Milliseconds(), c.InFrom, c.InTo})
	}
	for _, phase := range phases {
		out.Against[phase] = append([]string{}, st.Blockers(phase)...)
	}
	return out
}

func clientName(c migrate.Client) string { return c.Host + ":" + strconv.Itoa(c.PID) }

// gateWord is the state of a gate in one word.
func gateWord(g backend.Gate) string {
	switch {
	case g.Epoch == 0:
		return "none"
	case g.Torn:
		return "torn"
	}
	return string(g.State)
}

// gateMeans says whom a gate lets in.
func gateMeans(s migrate.Side, old bool) string {
	switch word := gateWord(s.Gate); {
	case word == "none" && old:
		return "none: lets everyone in"
	case word == "none":
		return "none: lets in who knows of no migration"
	case word == "torn":
		return "torn: a switch was broken off; the next one mends it"
	case s.Open(old):
		return "open"
	}
	return "closed to all but phase both"
}

func printStatus(w io.Writer, m migration, st migrate.Status, now time.Time) {
	fmt.Fprintf(w, "migration %s of %s, from %s to %s\n\nSure, for the stores say so:\n", safe(m.name), m.scope, safe(m.from.Name), safe(m.to.Name))
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  STORE\tGATE\tEPOCH\tHELD THERE ALONE\tTOKENS UP TO")
	for _, s := range []struct {
		name string
		side migrate.Side
		old  bool
	}{{m.from.Name, st.From, true}, {m.to.Name, st.To, false}} {
		fmt.Fprintf(t, "  %s\t%s\t%d\t%d\t%d\n", safe(s.name), gateMeans(s.side, s.old), s.side.Gate.Epoch, len(s.side.Undrained), s.side.Source)
	}
	_ = t.Flush()
	fmt.Fprintln(w, "\nOnly reported, by clients that are alive and reach a store:")
	if len(st.Clients) == 0 {
		fmt.Fprintln(w, "  none has reported lately")
	} else {
		fmt.Fprintln(t, "  PHASE\tCLIENT\tREPORTED\tLONGEST TTL\tIN")
		for _, c := range st.Clients {
			fmt.Fprintf(t, "  %s\t%s\t%v ago\t%v\t%s\n", safe(string(c.Phase)), safe(clientName(c)), now.Sub(c.Reported).Round(time.Second), c.MaxTTL, inWhich(m, c))
		}
		_ = t.Flush()
	}
	fmt.Fprintln(w, "\nWhat speaks against deploying next:")
	for _, phase := range phases {
		why := st.Blockers(phase)
		if len(why) == 0 {
			fmt.Fprintf(w, "  %-5s nothing that is known\n", phase)
			continue
		}
		fmt.Fprintf(w, "  %-5s %s\n", phase, safeText(why[0]))
		for _, more := range why[1:] {
			fmt.Fprintf(w, "        %s\n", safeText(more))
		}
	}
	if len(st.Unfinished()) == 0 {
		fmt.Fprintf(w, "\nThe move is done: run \"fencelock migrate finish\".\n")
	}
}

func inWhich(m migration, c migrate.Client) string {
	var in []string
	if c.InFrom {
		in = append(in, safe(m.from.Name))
	}
	if c.InTo {
		in = append(in, safe(m.to.Name))
	}
	return strings.Join(in, ", ")
}

// safeText is a message that may hold what others wrote: what could steer a terminal is left out.
func safeText(s string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
