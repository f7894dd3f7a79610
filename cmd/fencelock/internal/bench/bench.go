// Package bench has the subcommand bench: package bench, with the servers, the page and the charts.
package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/bench"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
	var (
		o     bench.Options
		local bool
		page  string
	)
	cmd := &cobra.Command{
		Use:   "bench [URL…]",
		Short: "Compare how fast backends are, each beside its raw store",
		Long: `Measure backends side by side, and in the same run the raw store through its own
client: rounds alternate between the two, and the ratio of their rates is the
figure to trust. With --config the arguments are names of backends of the file;
without any, all of them. --local starts the servers that this machine has as
programs, besides memory and file, and measures those.

It works under a prefix of its own and empties it at the end, also after Ctrl-C;
a second Ctrl-C ends it at once.
It loads the servers: not for the middle of a working day.

Rows: cycle (lock and unlock of free names), contended (goroutines that want one
name), handover (from Unlock to the other client's grant), held (leases that are
held and renewed), readers (goroutines that read one name), turns (handover
between a reader and a writer), permits (goroutines that want one of ten).
bench/README.md says what each column is.

--html FILE writes a page of its own, without network, with charts and what each
backend promises beside them.

With --json: one object per row: label, backend, op, row, goroutines, leases,
section_us, unit, rate, raw_rate, ratio, p50, p99, max (of which raw_… too;
microseconds), allocs_per_op, cpu_us_per_op, commands_per_op, fairness, rounds,
partial, notes, promises. A null is a figure that there is not; notes say why.

Exit code: 64 usage or configuration; 69 store unavailable; 128 + n after signal
n, with what was measured until then.`,
		Example: `  fencelock bench redis://localhost:6379/0 etcd://localhost:2379
  fencelock bench --only cycle,handover --duration 2s --rounds 9 "$URL"
  fencelock bench --config locks.yaml --json | jq -r '[.label, .row, .ratio] | @tsv'
  fencelock bench --local --html bench.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed
			if given("duration") && o.Duration <= 0 || given("rounds") && o.Rounds <= 0 ||
				given("held") && o.Held <= 0 {
				return cli.Usagef("--duration, --rounds and --held: want more than 0")
			}
			if local && (len(args) > 0 || a.URL.Changed || a.Config.Changed) {
				return cli.Usagef("--local measures what it starts: leave out the URL and --config")
			}
			return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
				if local {
					targets, end, err := localTargets(ctx, a)
					if err != nil {
						return err
					}
					return errors.Join(measure(ctx, a, targets, o, page), end())
				}
				stores, err := a.Stores(args)
				if err != nil {
					return err
				}
				var targets []bench.Target
				for _, s := range stores {
					targets = append(targets, bench.Target{Name: s.Name, URL: s.URL})
				}
				return measure(ctx, a, targets, o, page)
			})
		},
	}
	fl := cmd.Flags()
	fl.DurationVar(&o.Duration, "duration", 0,
		"how long each side of a row is measured in each round (default 1s)")
	fl.IntVar(&o.Rounds, "rounds", 0, "how many rounds, each ours and then raw (default 5)")
	fl.StringSliceVar(&o.Only, "only", nil, "measure these rows only: cycle, contended, handover, "+
		"held, readers, turns, permits, or one such as cycle/goroutines=64")
	fl.IntVar(&o.Held, "held", 0, "how many leases the row held holds (default 1000)")
	fl.BoolVar(&local, "local", false,
		"start the servers that are installed here, and measure them")
	fl.StringVar(&page, "html", "", "also write a page with charts to this file")
	a.JSONFlag(cmd, "print one JSON object per row")
	return cmd
}

// measure measures and prints. If the run ends early, it prints the rows that were measured before.
func measure(
	ctx context.Context, a *cli.App, targets []bench.Target, o bench.Options, page string,
) error {
	file, err := newPageFile(page)
	if err != nil {
		return err
	}
	const clear = "\r\x1b[K"
	onLine := cli.IsTerminal(a.Err)
	o.Progress = func(p bench.Progress) {
		what := fmt.Sprintf("%s  %s  row %d of %d", p.Backend, p.Case.Name(), p.Row, p.Rows)
		switch {
		case onLine:
			fmt.Fprintf(a.Err, "%s%s, round %d of %d", clear, what, p.Round, p.Last)
		case p.Round == 1 && !a.JSON:
			fmt.Fprintf(a.Err, "%s, %d rounds\n", what, p.Last)
		}
	}
	rows, err := bench.Run(ctx, targets, o)
	if onLine && len(rows) > 0 {
		fmt.Fprint(a.Err, clear)
	}
	switch {
	case a.JSON:
		for _, r := range rows {
			a.Print(r)
		}
	case len(rows) > 0:
		_ = bench.WriteTable(a.Out, rows) // there is no other place to report that the output is gone
	}
	if failed := file.finish(rows); failed != nil {
		return errors.Join(cli.Interrupted(ctx, err), failed)
	}
	return cli.Interrupted(ctx, err)
}
