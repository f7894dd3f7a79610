package main

import (
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// leakJSON is a leak as the command prints it. Its keys are stable.
type leakJSON struct {
	At      *time.Time `json:"at,omitempty"`    // with --watch
	Event   string     `json:"event,omitempty"` // with --watch: found or gone
	Leak    string     `json:"leak"`
	Name    string     `json:"name"`              // of the lock, or of the migration
	Backend string     `json:"backend,omitempty"` // in the configuration
	Why     string     `json:"why"`
	*infoJSON
	*gateJSON
}

// gateJSON is what a gate has besides.
type gateJSON struct {
	Scope string            `json:"scope"`
	State backend.GateState `json:"state"`
	Torn  bool              `json:"torn"`
	Epoch int64             `json:"epoch"`
}

func (l leak) json() leakJSON {
	j := leakJSON{Leak: l.kind, Name: l.name, Backend: l.site, Why: l.why}
	if l.info != nil {
		i := toJSON(*l.info)
		j.infoJSON = &i
	}
	if l.gate != nil {
		j.gateJSON = &gateJSON{l.gate.Scope.String(), l.gate.State, l.gate.Torn, l.gate.Epoch}
	}
	return j
}

// place is where a leak is and what it is called.
func (l leak) place() string {
	name := safe(l.name)
	if l.gate != nil {
		name += " (" + safe(l.gate.Scope.String()) + ")"
	}
	if l.site != "" {
		name = safe(l.site) + ": " + name
	}
	return name
}

// printLeaks prints the leaks of one look.
func (a *app) printLeaks(found []leak) {
	if a.json {
		for _, l := range found {
			a.printJSON(a.out, l.json())
		}
		return
	}
	if len(found) == 0 {
		fmt.Fprintln(a.out, "no leaks")
		return
	}
	t := tabwriter.NewWriter(a.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "LEAK\tNAME\tOWNER\tTOKEN\tWAITERS\tWHY")
	for _, l := range found {
		who, number, queue := "-", "-", "-"
		if l.info != nil {
			who, number, queue = owner(*l.info), token(*l.info), waiters(*l.info)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", l.kind, l.place(), who, number, queue, l.why)
	}
	_ = t.Flush() // to a terminal or pipe that is gone there is nothing to say
}

// printChanges prints what is found and what is gone since the last look.
func (a *app) printChanges(before, now []leak) {
	at := time.Now()
	print := func(event string, some, others []leak) {
		for _, l := range some {
			if slices.ContainsFunc(others, l.same) {
				continue
			}
			if a.json {
				j := l.json()
				j.At, j.Event = &at, event
				a.printJSON(a.out, j)
				continue
			}
			fmt.Fprintf(a.out, "%s  %-5s  %-5s  %s  %s\n", at.Format(time.RFC3339), event, l.kind, l.place(), l.why)
		}
	}
	print("found", now, before)
	print("gone", before, now)
}
