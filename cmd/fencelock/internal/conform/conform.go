// Package conform has the subcommand conform.
package conform

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/conformance"
)

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
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

It takes a minute or two. After Ctrl-C it cleans up, and a second one ends it at
once. Exit code: 0 if every rule that was checked is kept,
1 if not.`,
		Example: `  fencelock conform redis://localhost:6379/0
  fencelock conform --only B,D3 --short file:///var/lib/locks`,
		Args: cli.Args(0, 1, "at most one URL is taken"),
		RunE: func(cmd *cobra.Command, args []string) error {
			stores, err := a.Stores(args)
			if err != nil {
				return err
			}
			if len(stores) > 1 {
				var names []string
				for _, s := range stores {
					names = append(names, s.Name)
				}
				return cli.Usagef("the configuration has several backends: name one of %s",
					strings.Join(names, ", "))
			}
			if parallel < 1 {
				return cli.Usagef("--parallel %d: want 1 or more", parallel)
			}
			for _, o := range only {
				if !known(o) {
					return cli.Usagef("--only %q: want rules or groups such as B2 or B, "+
						"separated by commas", o)
				}
			}
			raw := stores[0].URL
			if stores[0].Name != "" {
				raw = untimed(raw)
			}
			h, err := conformance.FromURL(raw)
			if err != nil {
				return err
			}
			h.Short, h.Parallel = short, parallel
			return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
				return check(ctx, a, h, only)
			})
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "check these rules or groups only")
	cmd.Flags().BoolVar(&short, "short", false, "use smaller numbers")
	cmd.Flags().IntVar(&parallel, "parallel", 8, "rules checked at once")
	a.JSONFlag(cmd, "print one JSON object per rule, and one with the sums")
	return cmd
}

// untimed returns the URL of a backend of a configuration without its TTL: the rules choose theirs.
func untimed(raw string) string {
	base, query, _ := strings.Cut(raw, "?")
	keys := slices.DeleteFunc(strings.Split(query, "&"), func(k string) bool { return strings.HasPrefix(k, "ttl=") })
	return base + "?" + strings.Join(keys, "&")
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

// check checks the rules, prints each result as it comes, and then the sums.
func check(ctx context.Context, a *cli.App, h conformance.Harness, only []string) error {
	limited, cancel := context.WithTimeout(ctx, cli.OpenMost) // Report waits for a silent store until ctx ends
	d, err := h.Driver(limited, conformance.Client{Prefix: "conform:"})
	cancel()
	if err != nil {
		return cli.Unanswered(err)
	}
	if err := d.Close(); err != nil {
		return cli.Unanswered(err)
	}
	var sums struct {
		Kept     int `json:"kept"`
		Broken   int `json:"broken"`
		Excluded int `json:"excluded"`
	}
	began := time.Now()
	for res := range conformance.Report(ctx, h, only...) {
		if ctx.Err() != nil {
			return ctx.Err()
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
		if a.JSON {
			a.Print(res)
			continue
		}
		fmt.Fprintf(a.Out, "%-4s %-8s %6.1fs  %s\n", res.Rule, word, res.Took.Seconds(), res.What)
		notes := res.Notes
		if res.Excluded != "" {
			notes = append([]string{"because " + res.Excluded}, notes...)
		}
		if res.Err != nil {
			notes = append(notes, res.Err.Error())
		}
		for _, n := range notes {
			fmt.Fprintf(a.Out, "               %s\n", n)
		}
	}
	if a.JSON {
		a.Print(sums)
	} else {
		fmt.Fprintf(a.Out, "\n%s: %d rules kept, %d broken, %d excluded, in %v\n", h.Name,
			sums.Kept, sums.Broken, sums.Excluded, time.Since(began).Round(time.Second))
	}
	if sums.Broken > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}
