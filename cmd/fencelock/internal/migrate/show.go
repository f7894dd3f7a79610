package migrate

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// phases are all phases in the order of the deploys.
var phases = []backend.Phase{backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo}

// Plan is the output of "migrate plan". Its keys are stable.
type Plan struct {
	Migration string                        `json:"migration"`
	From      string                        `json:"from"`
	To        string                        `json:"to"`
	Phase     backend.Phase                 `json:"phase"` // that the configuration has now
	Names     string                        `json:"names"`
	Promises  map[backend.Phase]planPromise `json:"promises"`
}

// planPromise has the promises to names in a phase.
type planPromise struct {
	Fencing      string `json:"fencing"`
	FIFO         bool   `json:"fifo"`
	ClockFree    bool   `json:"clock_free"`
	SurvivesNode bool   `json:"survives_node"`
	MinTTL       string `json:"min_ttl"`
}

func planOf(m migration) Plan {
	p := Plan{
		Migration: m.name, From: m.from.Name, To: m.to.Name, Phase: m.phase,
		Names: m.scope.String(), Promises: map[backend.Phase]planPromise{},
	}
	for phase, t := range map[backend.Phase]fencelock.Traits{
		backend.PhaseFrom: m.from.Traits,
		backend.PhaseBoth: migrate.TraitsOfBoth(m.from.Traits, m.to.Traits),
		backend.PhaseTo:   m.to.Traits,
	} {
		p.Promises[phase] = planPromise{
			t.Fencing.String(), t.FIFO, t.ClockFree, t.SurvivesNode, t.MinTTL.String(),
		}
	}
	return p
}

func (p Plan) print(w io.Writer) {
	fmt.Fprintf(w, "migration %s moves %s from %s to %s; the configuration is in phase %s.\n\n",
		cli.Safe(p.Migration), p.Names, cli.Safe(p.From), cli.Safe(p.To), p.Phase)
	yesNo := map[bool]string{true: "yes", false: "no"}
	rows := []string{"PHASE\tFENCING\tFIFO\tCLOCK-FREE\tSURVIVES A NODE\tSHORTEST TTL"}
	for _, phase := range phases {
		x := p.Promises[phase]
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", phase, x.Fencing,
			yesNo[x.FIFO], yesNo[x.ClockFree], yesNo[x.SurvivesNode], x.MinTTL))
	}
	cli.Table(w, rows...)
	fmt.Fprintf(w, `
1. Deploy phase from everywhere. Every lock is taken in %[1]s, as before. The stores get their gates.
2. Deploy phase both. Every lock is taken in %[1]s, then in %[2]s: three round trips, and both stores must answer.
3. Wait until "fencelock migrate status" says that nothing speaks against phase to. Deploy phase to.
   The first program that starts in it switches: %[1]s is closed, %[2]s opened. Locks are taken in %[2]s alone.
4. Run "fencelock migrate finish". Then the configuration may name %[2]s alone.

The way back is the same, backwards, and the same migration name: to, both, from. After "finish" it begins
with "fencelock migrate advance --phase from". To give it up before step 3: phase from, then "fencelock migrate cancel".
Do not skip a phase: a program that is two phases away from another is refused its locks.
`, cli.Safe(p.From), cli.Safe(p.To))
}

// Status is the output of "migrate status --json". Its keys are stable.
type Status struct {
	Migration string                     `json:"migration"`
	From      sideOut                    `json:"from"`
	To        sideOut                    `json:"to"`
	Clients   []clientOut                `json:"clients"`
	Against   map[backend.Phase][]string `json:"against"` // reasons against deploying a phase
	Done      bool                       `json:"done"`
	Finished  bool                       `json:"finished"`  // "migrate finish" has sealed it
	Cancelled bool                       `json:"cancelled"` // by "migrate cancel"
}

type sideOut struct {
	Backend   string          `json:"backend"`
	Gate      string          `json:"gate"` // none, open, both, torn, cancelled
	Epoch     int64           `json:"epoch"`
	Undrained []cli.Info      `json:"undrained"`
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

func statusJSON(m migration, st migrate.Status) Status {
	side := func(name string, s migrate.Side) sideOut {
		out := sideOut{name, gateWord(s), s.Gate.Epoch, []cli.Info{}, s.Source}
		for _, i := range s.Undrained {
			out.Undrained = append(out.Undrained, cli.InfoOf(i))
		}
		return out
	}
	out := Status{
		Migration: m.name, From: side(m.from.Name, st.From), To: side(m.to.Name, st.To),
		Clients: []clientOut{}, Against: map[backend.Phase][]string{},
		Done: len(st.Unfinished()) == 0, Finished: st.Finished(),
		Cancelled: st.From.Cancelled && st.To.Cancelled,
	}
	for _, c := range st.Clients {
		out.Clients = append(out.Clients, clientOut{
			clientName(c), c.Phase, c.Reported, c.Since, c.MaxTTL.Milliseconds(), c.InFrom, c.InTo,
		})
	}
	for _, phase := range phases {
		out.Against[phase] = append([]string{}, st.Blockers(phase)...)
	}
	return out
}

func clientName(c migrate.Client) string { return c.Host + ":" + strconv.Itoa(c.PID) }

// gateWord is the state of a gate in one word.
func gateWord(s migrate.Side) string {
	switch {
	case s.Gate.Epoch == 0:
		return "none"
	case s.Gate.Torn:
		return "torn"
	case s.Cancelled:
		return "cancelled"
	}
	return string(s.Gate.State)
}

// gateMeans describes the clients that a gate lets in.
func gateMeans(s migrate.Side, old bool) string {
	switch word := gateWord(s); {
	case word == "none" && old:
		return "none: lets everyone in"
	case word == "none":
		return "none: lets in who knows of no migration"
	case word == "torn":
		return "torn: a switch was broken off; the next one mends it"
	case word == "cancelled":
		return "cancelled: moves no names"
	case s.Open(old) && s.Finished:
		return "open, sealed"
	case s.Open(old):
		return "open"
	case s.Finished:
		return "closed, sealed"
	}
	return "closed to all but phase both"
}

func printStatus(w io.Writer, m migration, st migrate.Status, now time.Time) {
	from, to := cli.Safe(m.from.Name), cli.Safe(m.to.Name)
	fmt.Fprintf(w, "migration %s of %s, from %s to %s\n\nSure, for the stores say so:\n",
		cli.Safe(m.name), m.scope, from, to)
	side := func(name string, s migrate.Side, old bool) string {
		return fmt.Sprintf("  %s\t%s\t%d\t%d\t%d",
			name, gateMeans(s, old), s.Gate.Epoch, len(s.Undrained), s.Source)
	}
	cli.Table(w, "  STORE\tGATE\tEPOCH\tHELD THERE ALONE\tTOKENS UP TO",
		side(from, st.From, true), side(to, st.To, false))
	fmt.Fprintln(w, "\nOnly reported, by clients that are alive and reach a store:")
	rows := []string{"  PHASE\tCLIENT\tREPORTED\tLONGEST TTL\tIN"}
	if len(st.Clients) == 0 {
		rows[0] = "  none has reported lately"
	}
	for _, c := range st.Clients {
		var in []string
		if c.InFrom {
			in = append(in, from)
		}
		if c.InTo {
			in = append(in, to)
		}
		rows = append(rows, fmt.Sprintf("  %s\t%s\t%v ago\t%v\t%s", cli.Safe(string(c.Phase)),
			cli.Safe(clientName(c)), now.Sub(c.Reported).Round(time.Second), c.MaxTTL,
			strings.Join(in, ", ")))
	}
	cli.Table(w, rows...)
	fmt.Fprintln(w, "\nWhat speaks against deploying next:")
	for _, phase := range phases {
		head, why := string(phase), st.Blockers(phase)
		if len(why) == 0 {
			why = []string{"nothing that is known"}
		}
		for _, reason := range why {
			fmt.Fprintf(w, "  %-5s %s\n", head, safeText(reason))
			head = ""
		}
	}
	switch {
	case st.Finished():
		fmt.Fprintln(w, "\nThe migration is finished. "+
			`The way back begins with "fencelock migrate advance --phase from".`)
	case len(st.Unfinished()) == 0:
		fmt.Fprintln(w, "\nThe move is done: run \"fencelock migrate finish\".")
	}
}

// safeText returns a message with ? in place of characters that could steer a terminal. Another program
// may have written a part of it.
func safeText(s string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
