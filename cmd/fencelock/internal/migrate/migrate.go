// Package migrate has the subcommand migrate: package backend/migrate for an operator.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/config"
)

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
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
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("no such command: want fencelock migrate plan, status, advance, finish or cancel")
		},
	}
	cmd.AddCommand(planCommand(a), statusCommand(a), advanceCommand(a),
		&cobra.Command{
			Use:   "finish [MIGRATION]",
			Short: "Check that the move is done, and seal it",
			Long:  seal,
			Args:  cli.Args(0, 1, "at most one MIGRATION is taken"),
			RunE: connected(a, answerMost, func(ctx context.Context, m migration) error {
				return m.end(ctx, a, migrate.Pair.Finish, "done", m.to)
			}),
		},
		&cobra.Command{
			Use:   "cancel [MIGRATION]",
			Short: "Give a migration up: everybody stays with the old store",
			Long:  stay,
			Args:  cli.Args(0, 1, "at most one MIGRATION is taken"),
			RunE: connected(a, answerMost, func(ctx context.Context, m migration) error {
				return m.end(ctx, a, migrate.Pair.Cancel, "cancelled", m.from)
			}),
		})
	return cmd
}

func planCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan [MIGRATION]",
		Short: "Say what moves, what changes with it, and the steps; asks no server",
		Args:  cli.Args(0, 1, "at most one MIGRATION is taken"),
		RunE: func(_ *cobra.Command, args []string) error {
			m, err := find(a, args)
			if err != nil {
				return err
			}
			p := planOf(m)
			if a.JSON {
				a.Print(p)
				return nil
			}
			p.print(a.Out)
			return nil
		},
	}
	a.JSONFlag(cmd, "print one JSON object")
	return cmd
}

func statusCommand(a *cli.App) *cobra.Command {
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
		Args: cli.Args(0, 1, "at most one MIGRATION is taken"),
		RunE: connected(a, answerMost, func(ctx context.Context, m migration) error {
			st, err := m.stores.Status(ctx)
			switch {
			case err != nil:
				return err
			case a.JSON:
				a.Print(statusJSON(m, st))
			default:
				printStatus(a.Out, m, st, time.Now())
			}
			return nil
		}),
	}
	a.JSONFlag(cmd, "print one JSON object")
	return cmd
}

func advanceCommand(a *cli.App) *cobra.Command {
	var (
		phase string
		wait  = cli.Duration{D: 30 * time.Second, Least: 1}
		force bool
	)
	cmd := &cobra.Command{
		Use:   "advance [MIGRATION]",
		Short: "Open one store to clients of its phase alone, and close the other",
		Long: `Do by hand what the first client of the next phase does when it starts: close the
one store to clients that lock there alone, wait until they hold nothing any
more, raise the other store's tokens above all that the first has given, and
open the other. Clients in phase both go on all the time. It may be broken off and
run again at any moment: what it had closed is opened again.

It is also what begins again after "migrate finish" (--phase from, the way back) and
after "migrate cancel".

Exit code: 0 when the store is open; 1 if a client that would be locked out has
reported within 30 seconds (--force does it all the same: the gate refuses that
client's next lock); 69 if a store does not answer, or locks are still held after --wait.`,
		Example: `  fencelock migrate advance --config locks.yaml --phase to
  fencelock migrate advance --config locks.yaml --phase from   # the way back`,
		Args: cli.Args(0, 1, "at most one MIGRATION is taken"),
		RunE: func(cmd *cobra.Command, args []string) error {
			next := backend.Phase(phase)
			if next != backend.PhaseFrom && next != backend.PhaseTo {
				return cli.Usagef("--phase is %q: want from or to", phase)
			}
			return connected(a, wait.D, func(ctx context.Context, m migration) error {
				if next == backend.PhaseFrom { // one that was cancelled begins again
					if err := m.stores.Prepare(ctx); err != nil {
						return err
					}
				}
				open, opened, closed := m.stores.Open, m.to, m.from
				if force {
					open = m.stores.OpenAgainst
				}
				if next == backend.PhaseFrom {
					opened, closed = m.from, m.to
				}
				if err := open(ctx, next); err != nil {
					return err
				}
				fmt.Fprintf(a.Out, "migration %s: %s is open to clients in phase %s, "+
					"%s to none but those in phase both\n",
					cli.Safe(m.name), cli.Safe(opened.Name), next, cli.Safe(closed.Name))
				return nil
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&phase, "phase", "to",
		"the phase whose store is opened: to, or from for the way back")
	cmd.Flags().Var(&wait, "wait", "how long to wait for locks that are still held")
	cmd.Flags().BoolVar(&force, "force", false, "lock out clients that are two phases away")
	return cmd
}

// seal is the help of finish.
const seal = `Check that the move is done: the old store is closed and nobody holds there alone,
the new one is open, which it is only once its tokens are above the old one's, and
every client reports phase to. Then seal both gates, and delete what clients have
reported in the old store.

The old store's gate stays. It refuses a program that comes back after months. One
that starts with the old configuration is refused too, and changes nothing: the way
back begins with "migrate advance --phase from", and only with that.

Exit code: 0 when it is done, 1 if not, with the reasons.`

// stay is the help of cancel.
const stay = `Give a migration up before its switch, or after "migrate advance --phase from": the
old store is open, nobody holds in the new one alone, and every client reports phase
from. Then the gates move no names any more: the old store is as it was before, and
the new one is free for other programs and other migrations.

A program that starts in phase from goes on with the old store; one in phase both or
to is refused, and changes nothing. "migrate advance --phase from" begins again.

Exit code: 0 when it is cancelled, 1 if something speaks against it, with the reasons.`

// end runs what ends a migration, and says which backend is left.
func (m migration) end(
	ctx context.Context, a *cli.App, end func(migrate.Pair, context.Context) error,
	how string, left *config.Backend,
) error {
	if err := end(m.stores, ctx); err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "migration %s is %s: the configuration may name %s alone now\n",
		cli.Safe(m.name), how, cli.Safe(left.Name))
	return nil
}

// storeError gives an error of package migrate its exit code: ExitNo if something speaks against the step.
func storeError(err error) error {
	switch {
	case errors.Is(err, backend.ErrInvalid):
		return cli.WithCode(cli.ExitNo, "%w", err)
	case err == nil, errors.Is(err, context.Canceled):
		return err
	}
	return cli.Unanswered(err)
}

// migration is a migration of the configuration.
type migration struct {
	name     string
	phase    backend.Phase
	scope    backend.Scope
	from, to *config.Backend
	stores   migrate.Pair // once they are connected
}

// find finds the migration that args name, or the only one.
func find(a *cli.App, args []string) (migration, error) {
	if !a.Configured() {
		return migration{}, cli.Usagef("no configuration: want --config FILE, " +
			"the file that the programs have")
	}
	c, err := a.ReadConfig(a.Config.Value.String())
	if err != nil {
		return migration{}, err
	}
	byName := map[string]*config.Backend{}
	var names []string
	var b *config.Backend
	for _, one := range c.Backends() {
		byName[one.Name] = one
		if one.Migrate == nil {
			continue
		}
		names = append(names, cli.Safe(one.Name))
		if len(args) == 0 || args[0] == one.Name {
			b = one
		}
	}
	switch {
	case len(names) == 0:
		return migration{}, backend.Invalid("the configuration has no migration: " +
			"want a backend such as moving: {migrate: {from: old, to: new, phase: from}}")
	case b == nil:
		return migration{}, backend.Invalid("no such migration: the configuration has %s",
			strings.Join(names, ", "))
	case len(args) == 0 && len(names) > 1:
		return migration{}, cli.Usagef("the configuration has several migrations: name one of %s",
			strings.Join(names, ", "))
	}
	m := migration{
		name: b.Name, phase: b.Migrate.Phase, scope: c.Scope(b),
		from: byName[b.Migrate.From], to: byName[b.Migrate.To],
	}
	if len(m.scope) == 0 {
		return migration{}, backend.Invalid(
			"no rule of the configuration sends names to migration %s", cli.Safe(m.name))
	}
	return m, nil
}

// answerMost bounds how long the two stores may take to answer. A list of all locks may take a while.
const answerMost = time.Minute

// connected returns a command's RunE. It calls do with both stores of a migration, and a ctx that ends after most.
func connected(
	a *cli.App, most time.Duration, do func(context.Context, migration) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
			m, err := find(a, args)
			if err != nil {
				return err
			}
			var sides [2]backend.Driver
			for i, b := range []*config.Backend{m.from, m.to} {
				limited, cancel := context.WithTimeout(ctx, cli.OpenMost)
				d, err := b.Driver(limited)
				cancel()
				if err != nil {
					return fmt.Errorf("backend %s: %w", cli.Safe(b.Name), cli.Unanswered(err))
				}
				defer d.Close()
				sides[i] = d
			}
			if m.stores, err = migrate.PairOf(m.name, m.scope, sides[0], sides[1]); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			return storeError(do(ctx, m))
		})
	}
}
