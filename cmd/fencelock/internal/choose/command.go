package choose

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/config"
)

// question is a question of choose. A flag or the user on the terminal answers it.
type question struct {
	flag string
	ask  string
	form string // the allowed answers
	set  func(a *Answers, answer string) error
}

// questions returns all questions in their order.
func questions() []question {
	yesNo := func(flag, ask string, field func(*Answers) *bool) question {
		return question{flag, ask, "yes|no", func(a *Answers, answer string) error {
			yes := answer == "yes" || answer == "y"
			if !yes && answer != "no" && answer != "n" {
				return errors.New("want yes or no")
			}
			*field(a) = yes
			return nil
		}}
	}
	return []question{
		{
			"overlap", "What if two run at once: is it harmless, a nuisance that can be mended, " +
				"or must it never happen?", "harmless|nuisance|never",
			func(a *Answers, answer string) error {
				if !slices.Contains(Overlaps(), Overlap(answer)) {
					return errors.New("want harmless, nuisance or never")
				}
				a.Overlap = Overlap(answer)
				return nil
			},
		},
		yesNo("tokens", "Does the resource check fencing tokens, or can it be made to?",
			func(a *Answers) *bool { return &a.Tokens }),
		yesNo("node", "Must locking go on when a node of the store dies?",
			func(a *Answers) *bool { return &a.Node }),
		yesNo("postgres", "Is what the lock protects a write in Postgres?",
			func(a *Answers) *bool { return &a.Postgres }),
		{
			"rate", "How many locks a second, at the peak?", "NUMBER",
			func(a *Answers, answer string) error {
				n, err := strconv.Atoi(answer)
				if err != nil || n < 0 {
					return errors.New("want a whole number, 0 or more")
				}
				a.Rate = n
				return nil
			},
		},
	}
}

// answer is the value of one question's flag.
type answer struct {
	q     question
	to    *Answers
	value string
}

func (v *answer) String() string { return v.value }
func (v *answer) Type() string   { return v.q.form }

func (v *answer) Set(s string) error {
	if err := v.q.set(v.to, s); err != nil {
		return err
	}
	v.value = s
	return nil
}

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
	var answers Answers
	cmd := &cobra.Command{
		Use:   "choose",
		Short: "Find the scenario and the backend for what you lock",
		Long: `Ask what the locks are for, and answer with a scenario, a backend, the reasons and
a configuration to start from. Each question is a flag too; what no flag answers
is asked on the terminal. The numbers of locks a second are rough: measure yours.

With --json: scenario, backend, url, why, cautions, others, yaml.`,
		Example: `  fencelock choose
  fencelock choose --overlap never --tokens yes --node no --postgres no --rate 500 --json | jq -r .yaml`,
		Args: cli.Args(0, 0, "no arguments are taken"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var open []question
			for _, q := range questions() {
				if !cmd.Flags().Changed(q.flag) {
					open = append(open, q)
				}
			}
			switch {
			case len(open) == 0:
				show(a, answers)
				return nil
			case !cli.IsTerminal(a.In):
				var flags []string
				for _, q := range open {
					flags = append(flags, "--"+q.flag+" "+q.form)
				}
				return cli.Usagef("stdin is not a terminal, so flags must answer: %s",
					strings.Join(flags, ", "))
			}
			return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
				done := make(chan error, 1)
				go func() { done <- ask(a.In, a.Err, open, &answers) }()
				select {
				case err := <-done:
					if err == nil {
						show(a, answers)
					}
					return err
				case <-ctx.Done():
					fmt.Fprintln(a.Err)
					return ctx.Err() // the goroutine that reads ends with the process
				}
			})
		},
	}
	for _, q := range questions() {
		cmd.Flags().Var(&answer{q: q, to: &answers}, q.flag, q.ask)
	}
	a.JSONFlag(cmd, "print one JSON object")
	return cmd
}

// promptWidth leaves room for the space behind a question.
const promptWidth = 78

// ask asks one question after the other. It repeats a question after a bad answer.
func ask(in io.Reader, out io.Writer, open []question, to *Answers) error {
	r := bufio.NewReader(in)
	for _, q := range open {
		for {
			text := fmt.Sprintf("%s [%s]", q.ask, q.form)
			fmt.Fprint(out, strings.Join(cli.Folded(text, promptWidth), "\n")+" ")
			line, err := r.ReadString('\n')
			if line = strings.ToLower(strings.TrimSpace(line)); line == "" && err != nil {
				fmt.Fprintln(out)
				return cli.Usagef("the answers ended before --%s", q.flag)
			}
			bad := q.set(to, line)
			if bad == nil {
				break
			}
			fmt.Fprintf(out, "%v.\n", bad)
		}
	}
	return nil
}

// show prints the choice.
func show(a *cli.App, answers Answers) {
	c := Choose(answers)
	url := config.ExampleURL(c.Backend)
	if a.JSON {
		a.Print(struct {
			Scenario string   `json:"scenario"`
			Backend  string   `json:"backend"`
			URL      string   `json:"url"`
			Why      []string `json:"why"`
			Cautions []string `json:"cautions"`
			Others   []string `json:"others"`
			YAML     string   `json:"yaml"`
		}{
			c.Scenario.Name, c.Backend, url, c.Why, append([]string{}, c.Cautions...),
			append([]string{}, c.Others...), c.YAML,
		})
		return
	}
	from := ""
	for _, e := range backend.Catalog() {
		if e.Traits.Name == c.Backend {
			from = e.Import // what a program imports for it
		}
	}
	for _, part := range []struct {
		head   string
		points []string
	}{
		{"scenario", []string{c.Scenario.Name + ": " + c.Scenario.For}},
		{"backend", []string{c.Backend + ", " + url + ", from " + from}},
		{"because", c.Why},
		{"but", c.Cautions},
	} {
		cli.Points(a.Out, 13, part.head, part.points)
	}
	if len(c.Others) > 0 {
		cli.Points(a.Out, 13, "or else", []string{strings.Join(c.Others, ", ")})
	}
	fmt.Fprintf(a.Out, "\n# locks.yaml, for fencelock --config and package config\n%s", c.YAML)
}
