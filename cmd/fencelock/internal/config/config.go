// Package config has the subcommand config.
package config

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/config"
)

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Look at a configuration: which names are locked where",
		Example: "  fencelock config check locks.yaml",
		Args:    cli.Args(0, 0, "no arguments are taken"),
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("no command: want fencelock config check FILE")
		},
	}
	cmd.AddCommand(checkCommand(a))
	return cmd
}

func checkCommand(a *cli.App) *cobra.Command {
	connect := false
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Say what each rule of a configuration promises, and what it does not",
		Long: `Load the configuration FILE (or --config FILE; - is the standard input) and say for
each rule which backend its names get, what that promises, and what it does not.
No server is needed. ${VAR} in a value is taken from the environment, so give the
variables that the program will have.

With --connect each backend that has a URL is opened as well, and what answers is
reported. A migration's gates are not touched.

With --json: one object per rule (match, scenario, backend, kind, ttl_ms,
reentrant, gets, not, yours, line), per warning (warning), and with --connect per
backend (backend, kind, answers, error).

Exit code: 0 if the file is good; 64 if it is not, with file:line:column: for each
mistake; with --connect 69 if a store does not answer.`,
		Example: "  fencelock config check locks.yaml\n" +
			"  fencelock config check --connect --json locks.yaml | jq -r .backend",
		Args: cli.Args(0, 1, "at most one FILE is taken"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := a.Config.Value.String()
			switch {
			case len(args) == 1 && a.Config.Changed:
				return cli.Usagef("the file is given twice: as --config and as an argument")
			case len(args) == 1:
				path = args[0]
			case !a.Config.Changed:
				return cli.Usagef("no FILE: want fencelock config check locks.yaml")
			}
			c, err := a.ReadConfig(path)
			if err != nil {
				return err
			}
			printRules(a, c)
			printWarnings(a, c, path)
			if !connect {
				return nil
			}
			return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
				return connectAll(ctx, a, c)
			})
		},
	}
	cmd.Flags().BoolVar(&connect, "connect", false, "open each backend, and say which ones answer")
	a.JSONFlag(cmd, "print one JSON object per line")
	return cmd
}

// RuleJSON is a rule as the command prints it. Its keys are stable.
type RuleJSON struct {
	Match     string   `json:"match"`
	Scenario  string   `json:"scenario"`
	Readers   bool     `json:"readers,omitempty"`
	Permits   int      `json:"permits,omitempty"`
	Backend   string   `json:"backend"`
	Kind      string   `json:"kind"` // the name in the backend's Traits; empty: known when connected
	TTL       int64    `json:"ttl_ms"`
	Reentrant bool     `json:"reentrant"`
	Gets      []string `json:"gets"`
	Not       []string `json:"not"`
	Yours     string   `json:"yours"` // the program's own part
	Line      int      `json:"line"`
}

func printRules(a *cli.App, c *config.Config) {
	for i, r := range c.Rules() {
		e := r.Explain()
		if a.JSON {
			a.Print(RuleJSON{
				r.Match, r.Scenario.Name, r.Need.Readers, r.Need.Permits, r.Backend.Name, r.Backend.Traits.Name,
				r.Backend.LeaseTTL().Milliseconds(), r.Scenario.Reentrant,
				e.Gets, e.Not, e.Yours, r.Line,
			})
			continue
		}
		if i > 0 {
			fmt.Fprintln(a.Out)
		}
		kind := r.Backend.Traits.Name
		if kind == "" {
			kind = r.Backend.Scheme
		}
		fmt.Fprintf(a.Out, "%s  is locked in %s (%s), leases of %v\n",
			cli.Safe(r.Match), r.Backend.Name, kind, r.Backend.LeaseTTL())
		fmt.Fprintf(a.Out, "  scenario      %s: %s\n", r.Scenario.Name, r.Scenario.For)
		cli.Points(a.Out, 13, "promised", e.Gets)
		cli.Points(a.Out, 13, "not promised", e.Not)
		cli.Points(a.Out, 13, "yours to do", strings.Split(e.Yours, "\n"))
	}
}

func printWarnings(a *cli.App, c *config.Config, path string) {
	for _, w := range c.Warnings() {
		if a.JSON {
			a.Print(struct {
				Warning string `json:"warning"`
			}{path + ":" + w.String()})
			continue
		}
		fmt.Fprintf(a.Err, "fencelock: warning: %s:%s\n", path, w)
	}
}

// connectAll opens every store of the file, reports each, and returns the first error.
func connectAll(ctx context.Context, a *cli.App, c *config.Config) error {
	if !a.JSON {
		fmt.Fprintln(a.Out)
	}
	var first error
	for _, b := range c.Backends() {
		if b.Migrate != nil {
			continue
		}
		kind, err := connectOne(ctx, c, b)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		msg := ""
		if err != nil {
			msg = cli.Scrub(err.Error())
			if first == nil {
				first = cli.Exit(a.Code(err))
			}
		}
		switch {
		case a.JSON:
			a.Print(struct {
				Backend string `json:"backend"`
				Kind    string `json:"kind"`
				Answers bool   `json:"answers"`
				Error   string `json:"error,omitempty"`
			}{b.Name, kind, err == nil, msg})
		case err != nil:
			fmt.Fprintf(a.Out, "%s: %s\n", b.Name, msg)
		default:
			fmt.Fprintf(a.Out, "%s: %s answers\n", b.Name, kind)
		}
	}
	return first
}

// connectOne opens one store, asks it something, and holds its driver to the rules.
func connectOne(ctx context.Context, c *config.Config, b *config.Backend) (kind string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cli.OpenMost)
	defer cancel()
	d, err := b.Driver(ctx)
	if err != nil {
		return b.Traits.Name, cli.Unanswered(err)
	}
	defer d.Close()
	kind = d.Traits().Name
	for _, err := range d.Look(ctx, backend.Range{Name: "fencelock config check"}) {
		if err != nil {
			return kind, cli.Unanswered(err)
		}
	}
	for _, r := range c.Rules() {
		if r.Backend == b {
			if err := r.Need.Check(d.Traits()); err != nil {
				return kind, fmt.Errorf("rule %s: scenario %s: %w",
					cli.Safe(r.Match), r.Scenario.Name, err)
			}
		}
	}
	return kind, nil
}
