package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	failOn := string(doctor.Unseen)
	list := false
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
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			least := doctor.Severity(failOn)
			if !slices.Contains(doctor.Severities(), least) {
				return usagef("--fail-on %q: want broken, risk, unseen or note", failOn)
			}
			if list {
				a.printKinds()
				return nil
			}
			stores, err := a.patients(args)
			if err != nil {
				return err
			}
			sigs, quit := notify()
			defer quit()
			ctx, stop := untilSignal(cmd.Context(), sigs)
			defer stop()
			return interrupted(ctx, a.examine(ctx, stores, least))
		},
	}
	cmd.Flags().StringVar(&failOn, "fail-on", failOn, "the least severity that makes the exit code 1: broken, risk, unseen or note")
	cmd.Flags().BoolVar(&list, "list", false, "print everything that the doctor can find, and ask no server")
	a.jsonFlag(cmd, "print one JSON object per finding, and one per backend")
	return cmd
}

// patient is a store to examine.
type patient struct {
	name string // in the configuration; empty for a URL
	url  string
}

// patients are the stores that the command line means.
func (a *app) patients(args []string) ([]patient, error) {
	if !a.configured() || len(args) > 0 {
		raw, err := a.oneURL(args)
		if err != nil {
			return nil, err
		}
		p := patient{url: raw}
		if a.configured() {
			p.name = args[0]
		}
		return []patient{p}, nil
	}
	c, err := a.readConfig(a.config)
	if err != nil {
		return nil, err
	}
	var all []patient
	for _, b := range c.Backends() {
		if b.Migrate == nil {
			all = append(all, patient{b.Name, b.URL()})
		}
	}
	return all, nil
}

// examine examines stores one after the other. One that cannot be looked at keeps no other from it; its error decides the exit code.
func (a *app) examine(ctx context.Context, stores []patient, least doctor.Severity) error {
	var failed error
	found := false
	for i, p := range stores {
		r, err := doctor.Examine(ctx, p.url)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && len(stores) == 1 {
			return err
		}
		if i > 0 && !a.json {
			fmt.Fprintln(a.out)
		}
		if err != nil {
			err = fmt.Errorf("backend %s: %w", p.name, err)
			a.report(nil, err)
			if failed == nil {
				failed = exit(a.exitCode(err))
			}
			continue
		}
		a.printReport(p, r)
		found = found || !r.Sound(least)
	}
	switch {
	case failed != nil:
		return failed
	case found:
		return exit(exitNo)
	}
	return nil
}

func (a *app) printReport(p patient, r *doctor.Report) {
	count := map[doctor.Severity]int{}
	for _, s := range doctor.Severities() {
		count[s] = r.Count(s)
	}
	if a.json {
		for _, f := range r.Findings {
			a.printJSON(a.out, struct {
				Backend string `json:"backend"`
				Name    string `json:"name,omitempty"` // in the configuration
				doctor.Finding
			}{r.Backend, p.name, f})
		}
		a.printJSON(a.out, struct {
			Backend string   `json:"backend"`
			Name    string   `json:"name,omitempty"`
			Servers []string `json:"servers"`
			Broken  int      `json:"broken"`
			Risk    int      `json:"risk"`
			Unseen  int      `json:"unseen"`
			Note    int      `json:"note"`
			Sound   bool     `json:"sound"`
		}{r.Backend, p.name, slices.Concat([]string{}, r.Servers), count[doctor.Broken], count[doctor.Risk], count[doctor.Unseen], count[doctor.Note], r.Sound(doctor.Unseen)})
		return
	}
	what := r.Backend
	if p.name != "" {
		what = p.name + ": " + what
	}
	if len(r.Servers) > 0 {
		what += " at " + strings.Join(r.Servers, ", ")
	}
	fmt.Fprintln(a.out, what)
	for _, f := range r.Findings {
		fmt.Fprintln(a.out)
		a.printFinding(f)
	}
	fmt.Fprintf(a.out, "\n%s\n", verdict(count))
}

func (a *app) printFinding(f doctor.Finding) {
	head := fmt.Sprintf("%-7s %s", strings.ToUpper(string(f.Severity)), f.ID)
	if f.Where != "" {
		head += " at " + safe(f.Where)
	}
	fmt.Fprintln(a.out, head)
	fmt.Fprintf(a.out, "  found  %s: %s\n", f.Setting, safe(f.Value))
	printFolded(a.out, "why", f.Why)
	printFolded(a.out, "mend", f.Mend)
}

// verdict sums up.
func verdict(count map[doctor.Severity]int) string {
	var parts []string
	for _, s := range []struct {
		of        doctor.Severity
		one, many string
	}{
		{doctor.Broken, "broken promise", "broken promises"},
		{doctor.Risk, "risk", "risks"},
		{doctor.Unseen, "not looked at", "not looked at"},
		{doctor.Note, "note", "notes"},
	} {
		switch n := count[s.of]; n {
		case 0:
		case 1:
			parts = append(parts, "1 "+s.one)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", n, s.many))
		}
	}
	sums := strings.Join(parts, ", ")
	switch {
	case count[doctor.Broken]+count[doctor.Risk]+count[doctor.Unseen] > 0:
		return "not sound: " + sums
	case sums != "":
		return "sound (" + sums + ")"
	}
	return "sound"
}

// printKinds prints everything that there is to find.
func (a *app) printKinds() {
	for _, c := range doctor.Chapters() {
		for _, k := range c.Kinds {
			if a.json {
				a.printJSON(a.out, doctor.Finding{ID: k.ID, Severity: k.Severity, Setting: k.Setting, Why: k.Why, Mend: k.Mend})
				continue
			}
			fmt.Fprintf(a.out, "%-7s %s: %s\n", strings.ToUpper(string(k.Severity)), k.ID, k.Setting)
			printFolded(a.out, "why", k.Why)
			printFolded(a.out, "mend", k.Mend)
			fmt.Fprintln(a.out)
		}
	}
}

// printFolded prints a text under its head, in lines that fit on a terminal.
func printFolded(w io.Writer, head, text string) {
	const width = 88
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			fmt.Fprintf(w, "  %-6s %s\n", head, line)
			head, line = "", ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	fmt.Fprintf(w, "  %-6s %s\n", head, line)
}
