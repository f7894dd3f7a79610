package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/conformance"
)

func (a *app) conformCommand() *cobra.Command {
	var (
		only     []string
		short    bool
		parallel int
	)
	cmd := &cobra.Command{
		Use:   "conform [URL]",
		Short: "Check a live backend against the conformance rules",
		Long: `Check a live backend against the rules that every backend of this library is
held to. It works under a prefix of its own and touches no other key, injects
faults through a proxy where the URL has one host without TLS, and uses second
processes. It does not stop the server: rules that need that are excluded, and
so are those that the backend's traits exempt. Every exclusion is reported.

It takes a minute or two. Exit code: 0 if every rule that was checked is kept,
1 if not.`,
		Example: `  fencelock conform redis://localhost:6379/0
  fencelock conform --only B,D3 --short file:///var/lib/locks`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := a.oneURL(args)
			if err != nil {
				return err
			}
			for _, o := range only {
				if !known(o) {
					return usagef("--only %q: want rules or groups such as B2 or B, separated by commas", o)
				}
			}
			h, err := conformance.FromURL(raw)
			if err != nil {
				return err
			}
			h.Short, h.Parallel = short, parallel
			sigs, quit := notify()
			defer quit()
			ctx, stop := untilSignal(cmd.Context(), sigs)
			defer stop()
			return a.conform(ctx, h, only)
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "check these rules or groups only")
	cmd.Flags().BoolVar(&short, "short", false, "use smaller numbers")
	cmd.Flags().IntVar(&parallel, "parallel", 8, "rules checked at once")
	a.jsonFlag(cmd, "print one JSON object per rule, and one with the sums")
	return cmd
}

// known reports whether o names a rule or a group.
func known(o string) bool {
	for _, r := range conformance.Rules() {
		if strings.EqualFold(o, r.Name) || strings.EqualFold(o, r.Name[:1]) {
			return true
		}
	}
	return false
}

// conform checks the rules, prints each result as it comes, and then the sums.
func (a *app) conform(ctx context.Context, h conformance.Harness, only []string) error {
	var sums struct {
		Kept     int `json:"kept"`
		Broken   int `json:"broken"`
		Excluded int `json:"excluded"`
	}
	began := time.Now()
	for res := range conformance.Report(ctx, h, only...) {
		if ctx.Err() != nil {
			return interrupted(ctx, ctx.Err())
		}
		if res.Rule == conformance.NoHarness {
			return res.Err
		}
		word := "kept"
		switch {
		case res.Excluded != "":
			sums.Excluded++
			word = "excluded"
		case res.Err != nil:
			sums.Broken++
			word = "BROKEN"
		default:
			sums.Kept++
		}
		if a.json {
			a.printJSON(a.out, res)
			continue
		}
		fmt.Fprintf(a.out, "%-4s %-8s %6.1fs  %s\n", res.Rule, word, res.Took.Seconds(), res.What)
		if res.Excluded != "" {
			fmt.Fprintf(a.out, "               because %s\n", res.Excluded)
		}
		for _, n := range res.Notes {
			fmt.Fprintf(a.out, "               %s\n", n)
		}
		if res.Err != nil {
			fmt.Fprintf(a.out, "               %v\n", res.Err)
		}
	}
	if a.json {
		a.printJSON(a.out, sums)
	} else {
		fmt.Fprintf(a.out, "\n%s: %d rules kept, %d broken, %d excluded, in %v\n", h.Name, sums.Kept, sums.Broken, sums.Excluded, time.Since(began).Round(time.Second))
	}
	if sums.Broken > 0 {
		return exit(exitNo)
	}
	return nil
}
