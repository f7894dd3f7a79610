// Package leaks has the subcommand leaks.
package leaks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
	every := cli.Duration{Least: 10 * time.Millisecond}
	var finished []string
	cmd := &cobra.Command{
		Use:   "leaks [PREFIX]",
		Short: "List what nobody will ever clean up: locks, queues, gates",
		Long: `List what stays behind for ever unless an operator does something:

  lock   held without an expiry: if its holder is dead, only "fencelock break"
         frees it. This library never makes such locks; other programs may.
  queue  nobody holds the lock, and yet its waiters do not take it: places of dead
         processes, or put there by hand. Looking twice takes some seconds.
  gate   of a migration: torn, because who changed it was interrupted; or closed
         while nobody has reported for ten minutes, so that nobody gets on. A
         migration that is done leaves a closed gate in its old store for ever:
         say so with --finished. With --config it is known by the new store's gate.

PREFIX chooses among the names of locks; gates are always looked at.

With --watch every change is a line, found or gone, until a signal ends it; an
outage of the store is reported once, and outlived, after the first look.

Exit code: 0 if there is none, 1 if there are (with --watch: at the last look); 64
usage; 69 store unavailable.`,
		Example: `  fencelock leaks || echo 'something is left behind'
  */10 * * * *  fencelock leaks --json --finished moving >>/var/log/leaks || alert
  fencelock leaks --watch 30s --json | jq -r .name`,
		Args: cli.Args(0, 1, "at most one PREFIX is taken"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
				sites, err := openSites(ctx, a)
				if err != nil {
					return err
				}
				defer closeSites(sites)
				f := &finder{sites: sites, prefix: cli.Prefix(args), finished: finished}
				if every.D > 0 {
					return (&watch{a: a, finder: f, every: every.D}).run(ctx)
				}
				found, err := f.look(ctx)
				if err != nil {
					return err
				}
				printLeaks(a, found)
				return exitIfAny(found)
			})
		},
	}
	cmd.Flags().Var(&every, "watch", "look again and again, this long apart, and print changes")
	cmd.Flags().StringSliceVar(&finished, "finished", nil,
		"migrations that are done: their closed gates are no leaks")
	a.JSONFlag(cmd, "print one JSON object per line: leak, backend, why, "+
		"and for locks and queues the keys of inspect")
	return cmd
}

func exitIfAny(found []leak) error {
	if len(found) > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

// watch looks for leaks again and again.
type watch struct {
	a      *cli.App
	finder *finder
	every  time.Duration

	seen   []leak // at the last look
	looked bool
	outage bool // the last look failed
}

func (w *watch) run(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		found, err := w.finder.look(ctx)
		switch {
		case ctx.Err() != nil && !w.looked: // there is no result yet
			return ctx.Err()
		case ctx.Err() != nil: // a signal is the usual end
			return exitIfAny(w.seen)
		case err != nil && !w.looked:
			return err
		case err != nil && !w.outage:
			w.a.Report(err)
			w.outage = true
		case err == nil:
			printChanges(w.a, w.seen, found)
			w.seen, w.looked, w.outage = found, true, false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return exitIfAny(w.seen)
		}
	}
}

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
