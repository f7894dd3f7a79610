// Package check has the subcommand check.
package check

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/conformance/history"
)

// The verdicts.
const (
	kept      = "kept"
	broken    = "broken"
	undecided = "undecided"
)

// lock is the output about one lock. Its keys are stable.
type lock struct {
	Lock       string          `json:"lock"`
	Leases     int             `json:"leases"`
	Holders    int             `json:"holders"`
	First      fencelock.Token `json:"first_token"`
	Last       fencelock.Token `json:"last_token"`
	Operations int             `json:"operations"`
	Lease      string          `json:"lease_model"`
	Mutex      string          `json:"fenced_mutex"`
}

// sums is the output about the whole history. Its keys are stable.
type sums struct {
	Events     int      `json:"events"`
	Processes  int      `json:"processes"`
	Locks      int      `json:"locks"`
	Verdict    string   `json:"verdict"`
	Violations []string `json:"violations"`
	Undecided  []string `json:"undecided"`
}

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
	var (
		opts    history.Options
		edn     string
		timeout = cli.Duration{D: 30 * time.Second, Least: 1}
	)
	cmd := &cobra.Command{
		Use:   "check HISTORY",
		Short: "Judge a recorded history of locks",
		Long: `Judge a history that was recorded under faults: a file of events, one JSON object
a line, as the tests keep it when a promise breaks (their variable SAVE names the
folder). One that ends in .gz is read with gzip. No server is needed. What the
store did not promise under the fault, --plain or --brittle, is in such a file.

Each lock is judged three times. Sweeps compare the moments: was it held twice,
did a token come twice or go back, is an acknowledged increment missing, was a
lease granted late. The lease model wants an order of all operations in which one
fenced lock with leases would have answered as it did. The fenced mutex is a model
by others, Hazelcast's for its Jepsen tests, written again from its description:
it looks at acquisitions and releases alone. If the two models disagree, that is a
violation too.

--edn writes what the fenced mutex looks at as Jepsen histories, a file a lock, as
knossos reads them.

With --json: one object per lock (lock, leases, holders, first_token, last_token,
operations, lease_model, fenced_mutex), and one with the sums (events, processes,
locks, verdict, violations, undecided).

Exit code: 0 if all is kept; 1 if there are violations; 64 if the file is no
history, with file:line: for the mistake; 75 if a search took longer than
--timeout and nothing else is wrong.`,
		Example: "  fencelock check x.jsonl\n" +
			"  fencelock check --plain --edn jepsen x.jsonl.gz",
		Args: cli.Args(1, 1, "want one HISTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			events, asked, err := history.Load(args[0])
			if err != nil {
				return cli.WithCode(cli.ExitUsage, "%w", err)
			}
			opts.Timeout = timeout.D
			opts.Plain, opts.Brittle = opts.Plain || asked.Plain, opts.Brittle || asked.Brittle
			if edn != "" {
				if err := export(edn, events, opts); err != nil {
					return cli.WithCode(cli.ExitUsage, "--edn: %w", err)
				}
			}
			return cli.Exit(judge(a, events, opts))
		},
	}
	cmd.Flags().BoolVar(&opts.Plain, "plain", false,
		"two may have had the lock at once: judge tokens and what they guard")
	cmd.Flags().BoolVar(&opts.Brittle, "brittle", false,
		"leases could end before their deadline, with a connection or a server's memory")
	cmd.Flags().Var(&timeout, "timeout", "the longest search for one lock")
	cmd.Flags().StringVar(&edn, "edn", "", "write Jepsen histories into this `DIR`")
	a.JSONFlag(cmd, "print one JSON object per lock, and one with the sums")
	return cmd
}

// judge prints the verdict and returns the exit code.
func judge(a *cli.App, events []history.Event, opts history.Options) int {
	s := sums{Events: len(events), Verdict: kept, Violations: []string{}, Undecided: []string{}}
	found := history.Check(events)
	if opts.Plain {
		found = history.Sweep(events).Fenced()
	}
	s.add(found)
	locks := count(events, &s)
	for _, v := range history.Judge(events, opts) {
		l := locks[v.Name]
		if l == nil { // no process had a lease of it
			l = &lock{}
		}
		l.Lock, l.Operations, l.Lease, l.Mutex = v.Name, v.Calls, verdict(v.Lease), verdict(v.Mutex)
		s.Locks++
		s.add(v.Lease)
		s.add(v.Mutex)
		s.add(v.Disagree)
		if a.JSON {
			a.Print(l)
			continue
		}
		about := "no lease"
		if l.Leases > 0 {
			about = fmt.Sprintf("%d leases of %d holders, tokens %d to %d", l.Leases, l.Holders, l.First, l.Last)
		}
		fmt.Fprintf(a.Out, "%s: %s\n", cli.Safe(l.Lock), about)
		cli.Points(a.Out, 13, "lease model", []string{fmt.Sprintf("%s, by a search over %d operations",
			l.Lease, l.Operations)})
		cli.Points(a.Out, 13, "fenced mutex", []string{l.Mutex})
	}
	code := cli.ExitOK
	switch {
	case len(s.Violations) > 0:
		s.Verdict, code = broken, cli.ExitNo
	case len(s.Undecided) > 0:
		s.Verdict, code = undecided, cli.ExitNotObtained
	}
	if a.JSON {
		a.Print(s)
		return code
	}
	fmt.Fprintf(a.Out, "\n%s: %d events of %d processes, %d locks\n", s.Verdict, s.Events, s.Processes, s.Locks)
	cli.Points(a.Out, 13, "violations", s.Violations)
	cli.Points(a.Out, 13, "undecided", s.Undecided)
	return code
}

// add adds the lines of an error.
func (s *sums) add(err error) {
	switch {
	case err == nil:
	case errors.Is(err, history.ErrUnknown):
		s.Undecided = append(s.Undecided, err.Error())
	default:
		s.Violations = append(s.Violations, strings.Split(err.Error(), "\n")...)
	}
}

func verdict(err error) string {
	switch {
	case err == nil:
		return kept
	case errors.Is(err, history.ErrUnknown):
		return undecided
	}
	return broken
}

// count counts the leases of each lock, and the processes of all.
func count(events []history.Event, s *sums) map[string]*lock {
	locks, holders, processes := map[string]*lock{}, map[[2]string]bool{}, map[string]bool{}
	for _, e := range events {
		processes[e.Process] = true
	}
	delete(processes, "")
	s.Processes = len(processes)
	for _, g := range history.Grants(events) {
		l := locks[g.Name]
		if l == nil {
			l = &lock{First: g.Token}
			locks[g.Name] = l
		}
		l.Leases++
		l.First, l.Last = min(l.First, g.Token), max(l.Last, g.Token)
		if holder := [2]string{g.Name, g.Process}; !holders[holder] {
			holders[holder] = true
			l.Holders++
		}
	}
	return locks
}

// export writes the Jepsen histories, under names that no two locks share.
func export(dir string, events []history.Event, opts history.Options) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	for name, text := range history.EDN(events, opts) {
		if err := os.WriteFile(filepath.Join(dir, url.QueryEscape(name)+".edn"), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
