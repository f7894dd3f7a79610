package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
)

// question is one that choose asks, by a flag or on the terminal.
type question struct {
	flag string
	ask  string
	form string // what is allowed
	set  func(a *config.Answers, answer string) error
}

// questions are all of them, in the order in which they are asked.
func questions() []question {
	yesNo := func(field func(*config.Answers) *bool) func(*config.Answers, string) error {
		return func(a *config.Answers, answer string) error {
			switch answer {
			case "yes", "y":
				*field(a) = true
			case "no", "n":
				*field(a) = false
			default:
				return errors.New("want yes or no")
			}
			return nil
		}
	}
	return []question{
		{
			"overlap", "What if two run at once: is it harmless, a nuisance that can be mended, or must it never happen?", "harmless|nuisance|never",
			func(a *config.Answers, answer string) error {
				for _, o := range config.Overlaps() {
					if answer == string(o) {
						a.Overlap = o
						return nil
					}
				}
				return errors.New("want harmless, nuisance or never")
			},
		},
		{"tokens", "Does the resource check fencing tokens, or can it be made to?", "yes|no", yesNo(func(a *config.Answers) *bool { return &a.Tokens })},
		{"node", "Must locking go on when a node of the store dies?", "yes|no", yesNo(func(a *config.Answers) *bool { return &a.Node })},
		{"postgres", "Is what the lock protects a write in Postgres?", "yes|no", yesNo(func(a *config.Answers) *bool { return &a.Postgres })},
		{
			"rate", "How many locks a second, at the peak?", "NUMBER",
			func(a *config.Answers, answer string) error {
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
	to    *config.Answers
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

func (a *app) chooseCommand() *cobra.Command {
	var answers config.Answers
	cmd := &cobra.Command{
		Use:   "choose",
		Short: "Find the scenario and the backend for what you lock",
		Long: `Ask what the locks are for, and answer with a scenario, a backend, the reasons and
a configuration to start from. Each question is a flag too; what no flag answers
is asked on the terminal. The numbers of locks a second are rough: measure yours.

With --json: scenario, backend, url, why, cautions, others, yaml.`,
		Example: `  fencelock choose
  fencelock choose --overlap never --tokens yes --node no --postgres no --rate 500 --json | jq -r .yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var open []question
			for _, q := range questions() {
				if !cmd.Flags().Changed(q.flag) {
					open = append(open, q)
				}
			}
			if len(open) > 0 {
				if !isTerminal(a.in) {
					return usagef("stdin is not a terminal, so flags must answer: %s", flagsOf(open))
				}
				if err := a.askOnTerminal(cmd.Context(), open, &answers); err != nil {
					return err
				}
			}
			return a.choose(answers)
		},
	}
	for _, q := range questions() {
		cmd.Flags().Var(&answer{q: q, to: &answers}, q.flag, q.ask)
	}
	a.jsonFlag(cmd, "print one JSON object")
	return cmd
}

func flagsOf(qs []question) string {
	var flags []string
	for _, q := range qs {
		flags = append(flags, "--"+q.flag+" "+q.form)
	}
	return strings.Join(flags, ", ")
}

// askOnTerminal is ask, until the user interrupts.
func (a *app) askOnTerminal(parent context.Context, open []question, to *config.Answers) error {
	sigs, quit := notify()
	defer quit()
	ctx, stop := untilSignal(parent, sigs)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- ask(a.in, a.err, open, to) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		fmt.Fprintln(a.err)
		return interrupted(ctx, ctx.Err()) // what still reads ends with the process
	}
}

// ask asks one question after the other; a bad answer is asked for again.
func ask(in io.Reader, out io.Writer, open []question, to *config.Answers) error {
	r := bufio.NewReader(in)
	for _, q := range open {
		for {
			fmt.Fprintf(out, "%s [%s] ", q.ask, q.form)
			line, err := r.ReadString('\n')
			if line = strings.ToLower(strings.TrimSpace(line)); line == "" && err != nil {
				fmt.Fprintln(out)
				return usagef("the answers ended before --%s", q.flag)
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

// choose prints the choice.
func (a *app) choose(answers config.Answers) error {
	c, err := config.Choose(answers)
	if err != nil {
		return err
	}
	url := config.ExampleURL(c.Backend)
	if a.json {
		a.printJSON(a.out, struct {
			Scenario string   `json:"scenario"`
			Backend  string   `json:"backend"`
			URL      string   `json:"url"`
			Why      []string `json:"why"`
			Cautions []string `json:"cautions"`
			Others   []string `json:"others"`
			YAML     string   `json:"yaml"`
		}{c.Scenario.Name, c.Backend, url, c.Why, orEmpty(c.Cautions), orEmpty(c.Others), c.YAML})
		return nil
	}
	printPoints(a.out, "scenario", []string{c.Scenario.Name + ": " + c.Scenario.For})
	printPoints(a.out, "backend", []string{c.Backend + ", " + url + ", from " + importOf(c.Backend)})
	printPoints(a.out, "because", c.Why)
	printPoints(a.out, "but", c.Cautions)
	if len(c.Others) > 0 {
		printPoints(a.out, "or else", []string{strings.Join(c.Others, ", ")})
	}
	fmt.Fprintf(a.out, "\n# locks.yaml, for fencelock --config and package config\n%s", c.YAML)
	return nil
}

// orEmpty makes an empty list of none, for JSON.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// importOf is the package that a program imports for a backend.
func importOf(name string) string {
	for _, e := range backend.Catalog() {
		if e.Traits.Name == name {
			return e.Import
		}
	}
	return ""
}
