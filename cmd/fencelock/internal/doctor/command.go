package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
	failOn, list := string(Unseen), false
	cmd := &cobra.Command{
		Use:   "doctor [URL]",
		Short: "Tell which settings of the real server break the promises",
		Long: `Look at the server behind URL and say which of its settings break what the
backend promises: the setting, its value, why it matters, and how to mend it.
With --config the argument is the name of a backend of the file; without one all
of them are looked at. Nothing is changed on the server, and no secret is shown.
The URL may have ttl= for the leases that are meant (default 30s).

A finding is a broken promise (broken), one that holds until something happens
(risk), something that could not be looked at (unseen), or good to know (note).

With --json: per finding backend, name (in the configuration), id, severity,
where, setting, value, why, mend; and per backend one object with the sums:
backend, name, servers, broken, risk, unseen, note, sound.

Exit code: 0 if all is sound; 1 if there is a finding that is as bad as --fail-on
or worse; 64 usage, or a user that is refused; 69 store unavailable.`,
		Example: `  fencelock doctor redis://localhost:6379/0
  fencelock doctor --fail-on broken --json "$URL" | jq -r 'select(.mend) | .mend'
  fencelock doctor --list`,
		Args: cli.Args(0, 1, "at most one URL is taken"),
		RunE: func(cmd *cobra.Command, args []string) error {
			least := Severity(failOn)
			if least.rank() < 0 {
				return cli.Usagef("--fail-on %q: want broken, risk, unseen or note", failOn)
			}
			if list {
				printKinds(a)
				return nil
			}
			stores, err := a.Stores(args)
			if err != nil {
				return err
			}
			return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
				return examineAll(ctx, a, stores, least)
			})
		},
	}
	cmd.Flags().StringVar(&failOn, "fail-on", failOn,
		"the least severity that makes the exit code 1: broken, risk, unseen or note")
	cmd.Flags().BoolVar(&list, "list", false,
		"print everything that the doctor can find, and ask no server")
	a.JSONFlag(cmd, "print one JSON object per finding, and one per backend")
	return cmd
}

// examineAll examines stores one after the other. If one cannot be looked at, the others still are, and
// its error decides the exit code.
func examineAll(ctx context.Context, a *cli.App, stores []cli.Store, least Severity) error {
	code := cli.ExitOK
	for i, store := range stores {
		r, err := Examine(ctx, store.URL)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && len(stores) == 1 {
			return err
		}
		if i > 0 && !a.JSON {
			fmt.Fprintln(a.Out)
		}
		switch {
		case err != nil:
			err = fmt.Errorf("backend %s: %w", store.Name, err)
			a.Report(err)
			if code <= cli.ExitNo {
				code = a.Code(err)
			}
			continue
		case !r.Sound(least) && code == cli.ExitOK:
			code = cli.ExitNo
		}
		printReport(a, store.Name, r, least)
	}
	return cli.Exit(code)
}

// printReport prints the report of a store. name is its name in the configuration. The store is sound if
// nothing as bad as least was found.
func printReport(a *cli.App, name string, r *Report, least Severity) {
	if a.JSON {
		for _, f := range r.Findings {
			a.Print(struct {
				Backend string `json:"backend"`
				Name    string `json:"name,omitempty"`
				Finding
			}{r.Backend, name, f})
		}
		a.Print(struct {
			Backend string   `json:"backend"`
			Name    string   `json:"name,omitempty"`
			Servers []string `json:"servers"`
			Broken  int      `json:"broken"`
			Risk    int      `json:"risk"`
			Unseen  int      `json:"unseen"`
			Note    int      `json:"note"`
			Sound   bool     `json:"sound"`
		}{
			r.Backend, name, append([]string{}, r.Servers...), r.Count(Broken), r.Count(Risk),
			r.Count(Unseen), r.Count(Note), r.Sound(least),
		})
		return
	}
	what := r.Backend
	if name != "" {
		what = name + ": " + what
	}
	if len(r.Servers) > 0 {
		what += " at " + strings.Join(r.Servers, ", ")
	}
	fmt.Fprintln(a.Out, what)
	for _, f := range r.Findings {
		head := fmt.Sprintf("\n%-7s %s", strings.ToUpper(string(f.Severity)), f.ID)
		if f.Where != "" {
			head += " at " + cli.Safe(f.Where)
		}
		fmt.Fprintf(a.Out, "%s\n  found  %s: %s\n", head, f.Setting, cli.Safe(f.Value))
		f.advise(a)
	}
	fmt.Fprintf(a.Out, "\n%s\n", r.verdict(least))
}

// advise prints why a finding matters and its remedy, in lines that fit on a terminal.
func (f Finding) advise(a *cli.App) {
	const width = 88
	cli.Points(a.Out, 6, "why", cli.Folded(f.Why, width))
	cli.Points(a.Out, 6, "mend", cli.Folded(f.Mend, width))
}

// printKinds prints all findings that the doctor knows.
func printKinds(a *cli.App) {
	for _, k := range Kinds() {
		if a.JSON {
			a.Print(k)
			continue
		}
		fmt.Fprintf(a.Out, "%-7s %s: %s\n", strings.ToUpper(string(k.Severity)), k.ID, k.Setting)
		k.advise(a)
		fmt.Fprintln(a.Out)
	}
}

// verdict sums up.
func (r *Report) verdict(least Severity) string {
	words := map[Severity][2]string{
		Broken: {"broken promise", "broken promises"},
		Risk:   {"risk", "risks"},
		Unseen: {"not looked at", "not looked at"},
		Note:   {"note", "notes"},
	}
	var parts []string
	for _, s := range Severities() {
		if n := r.Count(s); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, words[s][min(n, 2)-1]))
		}
	}
	sums := strings.Join(parts, ", ")
	switch {
	case !r.Sound(least):
		return "not sound: " + sums
	case sums != "":
		return "sound (" + sums + ")"
	}
	return "sound"
}
