package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/config"
)

func (a *app) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Move names from one backend to another without two holders",
		Long: `Move names from one backend to another while programs go on locking them.

The migration stands in the configuration file (--config) that the programs have:

  backends:
    old:    {url: "redis://10.0.0.5:6379/0"}
    new:    {url: "etcd://e1:2379,e2:2379,e3:2379"}
    moving: {migrate: {from: old, to: new, phase: from}}   # from | both | to

Every step is a deploy of the next phase: from, then both, then to. Between two
steps "fencelock migrate status" says what is sure and what is only reported.

Exit codes: 1 if something speaks against what was asked.`,
		Example: `  fencelock migrate plan --config locks.yaml
  fencelock migrate status --config locks.yaml`,
	}
	cmd.AddCommand(a.migratePlanCommand(), a.migrateStatusCommand(), a.migrateAdvanceCommand(), a.migrateFinishCommand())
	return cmd
}

func (a *app) migratePlanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan [MIGRATION]",
		Short: "Say what moves, what changes with it, and the steps; asks no server",
		Args:  oneMigration,
		RunE: func(_ *cobra.Command, args []string) error {
			m, err := a.migration(args)
			if err != nil {
				return err
			}
			p := planOf(m)
			if a.json {
				a.printJSON(a.out, p)
				return nil
			}
			p.print(a.out)
			return nil
		},
	}
	a.jsonFlag(cmd, "print one JSON object")
	return cmd
}

func (a *app) migrateStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [MIGRATION]",
		Short: "Show the gates of both stores, and the phases that clients report",
		Long: `Show the gates of both stores, what they still wait for, their tokens, and the
phases that clients report. What the stores say is sure. What clients report is
not: one that is stopped or cut off does not report, and is refused by the gates
if it comes back in a phase that is over.

A client that reported another phase counts until its longest lease is surely
over, also after it went silent: 30 seconds and its longest TTL.

Exit code: 0.`,
		Args: oneMigration,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withPair(cmd.Context(), args, func(ctx context.Context, m migration, p migrate.Pair) error {
				st, err := p.Status(ctx)
				if err != nil {
					return storeError(err)
				}
				if a.json {
					a.printJSON(a.out, statusJSON(m, st))
					return nil
				}
				printStatus(a.out, m, st, time.Now())
				return nil
			})
		},
	}
	a.jsonFlag(cmd, "print one JSON object")
	return cmd
}

func (a *app) migrateAdvanceCommand() *cobra.Command {
	var (
		phase string
		wait  = duration{d: 30 * time.Second}
		force bool
	)
	cmd := &cobra.Command{
		Use:   "advance [MIGRATION]",
		Short: "Open one store to clients of its phase alone, and close the other",
		Long: `Do by hand what the first client of the next phase does when it starts: close the
one store to clients that lock there alone, wait until they hold nothing any
more, raise the other store's tokens above all that the first has given, and
open the other. Clients in phase both go on all the time. It may be broken off and
run again at any moment.

Exit code: 0 when the store is open; 1 if a client that would be locked out has
reported within 30 seconds (--force does it all the same: the gate refuses that
client's next lock); 69 if a store does not answer, or locks are still held after --wait.`,
		Example: `  fencelock migrate advance --config locks.yaml --phase to
  fencelock migrate advance --config locks.yaml --phase from   # the way back`,
		Args: oneMigration,
		RunE: func(cmd *cobra.Command, args []string) error {
			next := backend.Phase(phase)
			if next != backend.PhaseFrom && next != backend.PhaseTo {
				return usagef("--phase is %q: want from or to", phase)
			}
			return a.withPair(cmd.Context(), args, func(ctx context.Context, m migration, p migrate.Pair) error {
				ctx, cancel := context.WithTimeout(ctx, wait.d)
				defer cancel()
				if err := p.Prepare(ctx); err != nil {
					return storeError(err)
				}
				open := p.Open
				if force {
					open = p.OpenAgainst
				}
				if err := open(ctx, next); err != nil {
					return storeError(err)
				}
				fmt.Fprintf(a.out, "migration %s: %s is open to clients in phase %s, %s to none but those in phase both\n",
					safe(m.name), safe(m.opened(next)), next, safe(m.opened(other(next))))
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&phase, "phase", "to", "the phase whose store is opened: to, or from for the way back")
	cmd.Flags().Var(&wait, "wait", "how long to wait for locks that are still held")
	cmd.Flags().BoolVar(&force, "force", false, "lock out clients that are two phases away")
	return cmd
}

func (a *app) migrateFinishCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "finish [MIGRATION]",
		Short: "Check that the move is done, and delete what clients have reported in the old store",
		Long: `Check that the move is done: the old store is closed and nobody holds there alone,
the new one is open, which it is only once its tokens are above the old one's, and
every client reports phase to. Then delete what clients have reported in the old store.

The old store's gate stays. It refuses a program that comes back after months.

Exit code: 0 when it is done, 1 if not, with the reasons.`,
		Args: oneMigration,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withPair(cmd.Context(), args, func(ctx context.Context, m migration, p migrate.Pair) error {
				if err := p.Finish(ctx); err != nil {
					return storeError(err)
				}
				fmt.Fprintf(a.out, "migration %s is done: the configuration may name %s alone now\n", safe(m.name), safe(m.to.Name))
				return nil
			})
		},
	}
}

// other is the phase at the other end.
func other(p backend.Phase) backend.Phase {
	if p == backend.PhaseTo {
		return backend.PhaseFrom
	}
	return backend.PhaseTo
}

// storeError gives an error of package migrate its exit code: "no" for what speaks against the step.
func storeError(err error) error {
	switch {
	case errors.Is(err, backend.ErrInvalid):
		return &exitError{exitNo, err}
	case errors.Is(err, context.Canceled), backend.Final(err):
		return err
	}
	return backend.Unavailable(err)
}

func oneMigration(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("at most one MIGRATION is taken, %d given", len(args))
	}
	return nil
}

// migration is one of the configuration.
type migration struct {
	name     string
	phase    backend.Phase
	scope    backend.Scope
	from, to *config.Backend
}

// opened is the backend that is open in a phase.
func (m migration) opened(p backend.Phase) string {
	if p == backend.PhaseFrom {
		return m.from.Name
	}
	return m.to.Name
}

// migration finds the one that args name, or the only one.
func (a *app) migration(args []string) (migration, error) {
	if !a.configured() {
		return migration{}, usagef("no configuration: want --config FILE, the file that the programs have")
	}
	c, err := a.readConfig(a.config)
	if err != nil {
		return migration{}, err
	}
	byName := map[string]*config.Backend{}
	var found []migration
	var names []string
	for _, b := range c.Backends() {
		byName[b.Name] = b
		if b.Migrate == nil {
			continue
		}
		names = append(names, safe(b.Name))
		if len(args) == 0 || args[0] == b.Name {
			found = append(found, migration{name: b.Name, phase: b.Migrate.Phase, scope: c.Scope(b)})
		}
	}
	switch {
	case len(names) == 0:
		return migration{}, invalid("the configuration has no migration: want a backend such as moving: {migrate: {from: old, to: new, phase: from}}")
	case len(found) == 0:
		return migration{}, invalid("no such migration: the configuration has %s", strings.Join(names, ", "))
	case len(found) > 1:
		return migration{}, usagef("the configuration has several migrations: name one of %s", strings.Join(names, ", "))
	}
	m := found[0]
	for _, b := range c.Backends() {
		if b.Name == m.name {
			m.from, m.to = byName[b.Migrate.From], byName[b.Migrate.To]
		}
	}
	if len(m.scope) == 0 {
		return migration{}, invalid("no rule of the configuration sends names to migration %s", safe(m.name))
	}
	return m, nil
}

// withPair connects to both stores of a migration.
func (a *app) withPair(parent context.Context, args []string, do func(context.Context, migration, migrate.Pair) error) error {
	sigs, quit := notify()
	defer quit()
	ctx, stop := untilSignal(parent, sigs)
	defer stop()
	m, err := a.migration(args)
	if err != nil {
		return err
	}
	p := migrate.Pair{Move: m.name, Scope: m.scope}
	for _, side := range []struct {
		b    *config.Backend
		into *backend.Gater
	}{{m.from, &p.From}, {m.to, &p.To}} {
		limited, cancel := context.WithTimeout(ctx, pairMost)
		d, err := side.b.Driver(limited)
		cancel()
		if err != nil {
			return interrupted(ctx, fmt.Errorf("backend %s: %w", safe(side.b.Name), storeError(err)))
		}
		defer d.Close()
		g, ok := d.(backend.Gater)
		if !ok {
			return fmt.Errorf("%w: backend %s cannot take part in a migration", fencelock.ErrUnsupported, safe(side.b.Name))
		}
		*side.into = g
	}
	return interrupted(ctx, do(ctx, m, p))
}

// pairMost bounds how long a store may take to answer first.
const pairMost = 5 * time.Second
