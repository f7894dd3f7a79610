package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Look at a configuration: which names are locked where",
		Example: "  fencelock config check locks.yaml",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("no command: want fencelock config check FILE")
		},
	}
	cmd.AddCommand(a.configCheckCommand())
	return cmd
}

func (a *app) configCheckCommand() *cobra.Command {
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
		Example: "  fencelock config check locks.yaml\n  fencelock config check --connect --json locks.yaml | jq -r .backend",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := a.config
			switch {
			case len(args) == 1 && a.configSet:
				return usagef("the file is given twice: as --config and as an argument")
			case len(args) == 1:
				path = args[0]
			case !a.configSet:
				return usagef("no FILE: want fencelock config check locks.yaml")
			}
			c, err := a.readConfig(path)
			if err != nil {
				return err
			}
			a.printRules(c)
			a.printWarnings(c, path)
			if !connect {
				return nil
			}
			sigs, quit := notify()
			defer quit()
			ctx, stop := untilSignal(cmd.Context(), sigs)
			defer stop()
			return interrupted(ctx, a.connectAll(ctx, c))
		},
	}
	cmd.Flags().BoolVar(&connect, "connect", false, "open each backend, and say which ones answer")
	a.jsonFlag(cmd, "print one JSON object per line")
	return cmd
}

// ruleJSON is a rule as the command prints it. Its keys are stable.
type ruleJSON struct {
	Match     string   `json:"match"`
	Scenario  string   `json:"scenario"`
	Backend   string   `json:"backend"`
	Kind      string   `json:"kind"` // what the backend is; empty: known when connected
	TTL       int64    `json:"ttl_ms"`
	Reentrant bool     `json:"reentrant"`
	Gets      []string `json:"gets"`
	Not       []string `json:"not"`
	Yours     string   `json:"yours"` // what the program must do itself
	Line      int      `json:"line"`
}

func (a *app) printRules(c *config.Config) {
	for i, r := range c.Rules() {
		e := r.Explain()
		if a.json {
			a.printJSON(a.out, ruleJSON{
				r.Match, r.Scenario.Name, r.Backend.Name, r.Backend.Traits.Name,
				r.Backend.LeaseTTL().Milliseconds(), r.Scenario.Reentrant, e.Gets, e.Not, e.Yours, r.Line,
			})
			continue
		}
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		kind := r.Backend.Traits.Name
		if kind == "" {
			kind = r.Backend.Scheme
		}
		fmt.Fprintf(a.out, "%s  is locked in %s (%s), leases of %v\n", safe(r.Match), r.Backend.Name, kind, r.Backend.LeaseTTL())
		fmt.Fprintf(a.out, "  scenario      %s: %s\n", r.Scenario.Name, r.Scenario.For)
		printPoints(a.out, "promised", e.Gets)
		printPoints(a.out, "not promised", e.Not)
		printPoints(a.out, "yours to do", strings.Split(e.Yours, "\n"))
	}
}

// printPoints prints a list with its head next to the first entry.
func printPoints(w io.Writer, head string, points []string) {
	for _, p := range points {
		fmt.Fprintf(w, "  %-13s %s\n", head, p)
		head = ""
	}
}

func (a *app) printWarnings(c *config.Config, path string) {
	for _, w := range c.Warnings() {
		if a.json {
			a.printJSON(a.out, struct {
				Warning string `json:"warning"`
			}{path + ":" + w.String()})
			continue
		}
		fmt.Fprintf(a.err, "fencelock: warning: %s:%s\n", path, w)
	}
}

// answerMost is how long config check waits for one store.
const answerMost = 5 * time.Second

// connectAll opens every store of the file, reports each, and returns the first error.
func (a *app) connectAll(ctx context.Context, c *config.Config) error {
	if !a.json {
		fmt.Fprintln(a.out)
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
			msg = scrub(err.Error())
			if first == nil {
				first = exit(a.exitCode(err))
			}
		}
		switch {
		case a.json:
			a.printJSON(a.out, struct {
				Backend string `json:"backend"`
				Kind    string `json:"kind"`
				Answers bool   `json:"answers"`
				Error   string `json:"error,omitempty"`
			}{b.Name, kind, err == nil, msg})
		case err != nil:
			fmt.Fprintf(a.out, "%s: %s\n", b.Name, msg)
		default:
			fmt.Fprintf(a.out, "%s: %s answers\n", b.Name, kind)
		}
	}
	return first
}

// connectOne opens one store, asks it something, and holds its driver to the rules.
func connectOne(ctx context.Context, c *config.Config, b *config.Backend) (kind string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerMost)
	defer cancel()
	d, err := b.Driver(ctx)
	if err != nil {
		return b.Traits.Name, unanswered(err)
	}
	defer d.Close()
	kind = d.Traits().Name
	if _, err := d.Inspect(ctx, "fencelock config check"); err != nil {
		return kind, unanswered(err)
	}
	for _, r := range c.Rules() {
		if r.Backend == b {
			if err := r.Scenario.Need.Check(d.Traits()); err != nil {
				return kind, fmt.Errorf("rule %s: scenario %s: %w", safe(r.Match), r.Scenario.Name, err)
			}
		}
	}
	return kind, nil
}

// unanswered returns a driver's error as the exit code needs it.
func unanswered(err error) error {
	if backend.Final(err) {
		return err
	}
	return backend.Unavailable(err)
}

// exitCode is the exit code of an error.
func (a *app) exitCode(err error) int {
	code, _ := a.codeOf(err)
	return code
}
