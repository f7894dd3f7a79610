package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) leaksCommand() *cobra.Command {
	every := duration{least: 10 * time.Millisecond}
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
		Args: onePrefix,
		RunE: func(cmd *cobra.Command, args []string) error {
			sigs, quit := notify()
			defer quit()
			ctx, stop := untilSignal(cmd.Context(), sigs)
			defer stop()
			sites, err := a.openSites(ctx)
			if err != nil {
				return interrupted(ctx, err)
			}
			defer closeSites(sites)
			f := &leakFinder{sites: sites, prefix: prefixOf(args), finished: finished}
			if every.d > 0 {
				return (&leakWatch{a: a, finder: f, every: every.d}).watch(ctx)
			}
			found, err := f.look(ctx)
			if err != nil {
				return interrupted(ctx, err)
			}
			a.printLeaks(found)
			return exitIfAny(found)
		},
	}
	cmd.Flags().Var(&every, "watch", "look again and again, this long apart, and print changes")
	cmd.Flags().StringSliceVar(&finished, "finished", nil, "migrations that are done: their closed gates are no leaks")
	a.jsonFlag(cmd, "print one JSON object per line: leak, backend, why, and for locks and queues the keys of inspect")
	return cmd
}

func exitIfAny(found []leak) error {
	if len(found) > 0 {
		return exit(exitNo)
	}
	return nil
}

// leakWatch looks for leaks again and again.
type leakWatch struct {
	a      *app
	finder *leakFinder
	every  time.Duration

	seen   []leak // at the last look
	looked bool
	outage bool // the last look failed
}

func (w *leakWatch) watch(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		found, err := w.finder.look(ctx)
		switch {
		case ctx.Err() != nil: // interrupted: that is how it ends
			return exitIfAny(w.seen)
		case err != nil && !w.looked:
			return err
		case err != nil && !w.outage:
			w.a.report(nil, err)
			w.outage = true
		case err == nil:
			w.a.printChanges(w.seen, found)
			w.seen, w.looked, w.outage = found, true, false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return exitIfAny(w.seen)
		}
	}
}
