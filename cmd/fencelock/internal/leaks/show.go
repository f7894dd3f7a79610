package leaks

import (
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// leakJSON is a leak as the command prints it. Its keys are stable.
type leakJSON struct {
	At      *time.Time `json:"at,omitempty"`    // with --watch
	Event   string     `json:"event,omitempty"` // with --watch: found or gone
	Leak    string     `json:"leak"`
	Name    string     `json:"name"`              // of the lock, or of the migration
	Backend string     `json:"backend,omitempty"` // in the configuration
	Why     string     `json:"why"`
	*cli.Info
	*gateJSON
}

// gateJSON has the keys of a gate.
type gateJSON struct {
	Scope string            `json:"scope"`
	State backend.GateState `json:"state"`
	Torn  bool              `json:"torn"`
	Epoch int64             `json:"epoch"`
}

func (l leak) json() leakJSON {
	j := leakJSON{Leak: l.kind, Name: l.name, Backend: l.site, Why: l.why}
	if l.info != nil {
		i := cli.InfoOf(*l.info)
		j.Info = &i
	}
	if l.gate != nil {
		j.gateJSON = &gateJSON{l.gate.Scope.String(), l.gate.State, l.gate.Torn, l.gate.Epoch}
	}
	return j
}

// place returns the backend and the name of a leak.
func (l leak) place() string {
	name := cli.Safe(l.name)
	if l.gate != nil {
		name += " (" + cli.Safe(l.gate.Scope.String()) + ")"
	}
	if l.site != "" {
		name = cli.Safe(l.site) + ": " + name
	}
	return name
}

// printLeaks prints the leaks of one look.
func printLeaks(a *cli.App, found []leak) {
	if a.JSON {
		for _, l := range found {
			a.Print(l.json())
		}
		return
	}
	if len(found) == 0 {
		fmt.Fprintln(a.Out, "no leaks")
		return
	}
	rows := []string{"LEAK\tNAME\tOWNER\tTOKEN\tWAITERS\tWHY"}
	for _, l := range found {
		about := "-\t-\t-"
		if i := l.info; i != nil {
			about = cli.Owner(*i) + "\t" + cli.Token(*i) + "\t" + cli.Waiters(*i)
		}
		rows = append(rows, l.kind+"\t"+l.place()+"\t"+about+"\t"+l.why)
	}
	cli.Table(a.Out, rows...)
}

// printChanges prints the leaks that were found or have gone since the last look.
func printChanges(a *cli.App, before, now []leak) {
	at := time.Now()
	print := func(event string, some, others []leak) {
		for _, l := range some {
			if slices.ContainsFunc(others, l.same) {
				continue
			}
			if a.JSON {
				j := l.json()
				j.At, j.Event = &at, event
				a.Print(j)
				continue
			}
			fmt.Fprintf(a.Out, "%s  %-5s  %-5s  %s  %s\n",
				at.Format(time.RFC3339), event, l.kind, l.place(), l.why)
		}
	}
	print("found", now, before)
	print("gone", before, now)
}
