package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/bench"
)

func (a *app) benchCommand() *cobra.Command {
	var (
		o     bench.Options
		local bool
		page  string
	)
	cmd := &cobra.Command{
		Use:   "bench [URL…]",
		Short: "Compare how fast backends are, each beside its raw store",
		Long: `Measure backends side by side, and in the same run the raw store through its own
client: rounds alternate between the two, and the ratio of their rates is what
means something. With --config the arguments are names of backends of the file;
without any, all of them. --local starts the servers that this machine has as
programs, besides memory and file, and measures those.

It works under a prefix of its own and empties it at the end, also after Ctrl-C.
It loads the servers: not for the middle of a working day.

Rows: cycle (lock and unlock of free names), contended (goroutines that want one
name), handover (from Unlock to the other client's grant), held (leases that are
held and renewed). docs/performance.md says what each column is.

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
			sigs, quit := notify()
			defer quit()
			ctx, stop := untilSignal(cmd.Context(), sigs)
			defer stop()
			if cmd.Flags().Changed("duration") && o.Duration <= 0 || cmd.Flags().Changed("rounds") && o.Rounds <= 0 || cmd.Flags().Changed("held") && o.Held <= 0 {
				return usagef("--duration, --rounds and --held: want more than 0")
			}
			if !local {
				targets, err := a.rivals(args)
				if err != nil {
					return err
				}
				return a.bench(ctx, targets, o, page)
			}
			if len(args) > 0 || a.urlSet || a.configSet {
				return usagef("--local measures what it starts: leave out the URL and --config")
			}
			targets, end, err := a.localTargets(ctx)
			if err != nil {
				return interrupted(ctx, err)
			}
			return errors.Join(a.bench(ctx, targets, o, page), end())
		},
	}
	cmd.Flags().DurationVar(&o.Duration, "duration", 0, "how long each side of a row is measured in each round (default 1s)")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "how many rounds, each ours and then raw (default 5)")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "measure these rows only: cycle, contended, handover, held, or one such as cycle/goroutines=64")
	cmd.Flags().IntVar(&o.Held, "held", 0, "how many leases the row held holds (default 1000)")
	cmd.Flags().BoolVar(&local, "local", false, "start the servers that are installed here, and measure them")
	cmd.Flags().StringVar(&page, "html", "", "also write a page with charts to this file")
	a.jsonFlag(cmd, "print one JSON object per row")
	return cmd
}

// rivals are the backends that the command line means.
func (a *app) rivals(args []string) ([]bench.Target, error) {
	if !a.configured() {
		if a.urlSet && len(args) > 0 {
			return nil, usagef("URLs are given twice: as --url and as arguments")
		}
		if len(args) == 0 {
			raw, err := a.backendURL()
			return []bench.Target{{URL: raw}}, err
		}
		var all []bench.Target
		for _, raw := range args {
			all = append(all, bench.Target{URL: raw})
		}
		return all, nil
	}
	c, err := a.readConfig(a.config)
	if err != nil {
		return nil, err
	}
	var all []bench.Target
	var names []string
	for _, b := range c.Backends() {
		if b.Migrate == nil {
			names = append(names, b.Name)
			if len(args) == 0 || slices.Contains(args, b.Name) {
				all = append(all, bench.Target{Name: b.Name, URL: b.URL()})
			}
		}
	}
	for _, name := range args {
		if !slices.Contains(names, name) {
			return nil, usagef("with --config the arguments are names of backends with a URL: want some of %s", strings.Join(names, ", "))
		}
	}
	return all, nil
}

// bench measures, and prints what was measured also when that ends early.
func (a *app) bench(ctx context.Context, targets []bench.Target, o bench.Options, page string) error {
	file, err := newPageFile(page)
	if err != nil {
		return err
	}
	onLine := isTerminal(a.err)
	o.Progress = func(p bench.Progress) {
		switch {
		case onLine:
			fmt.Fprintf(a.err, "\r\x1b[K%s  %s  row %d of %d, round %d of %d", p.Backend, p.Case.Name(), p.Row, p.Rows, p.Round, p.Last)
		case p.Round == 1:
			fmt.Fprintf(a.err, "%s  %s  row %d of %d, %d rounds\n", p.Backend, p.Case.Name(), p.Row, p.Rows, p.Last)
		}
	}
	rows, err := bench.Run(ctx, targets, o)
	if onLine && len(rows) > 0 {
		fmt.Fprint(a.err, "\r\x1b[K")
	}
	switch {
	case a.json:
		for _, r := range rows {
			a.printJSON(a.out, r)
		}
	case len(rows) > 0:
		_ = bench.WriteTable(a.out, rows) // nobody is left to be told that the output is gone
	}
	if failed := file.finish(rows); failed != nil {
		return errors.Join(interrupted(ctx, err), failed)
	}
	return interrupted(ctx, err)
}
