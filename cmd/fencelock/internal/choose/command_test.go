package choose

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/config"
)

// result is what an invocation came to.
type result struct {
	code     int
	out, err string
}

// invoke runs the subcommand, with nothing on the standard input.
func invoke(t *testing.T, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	a := &cli.App{In: strings.NewReader(""), Out: &out, Err: &err}
	root := &cobra.Command{Use: "fencelock", SilenceErrors: true, SilenceUsage: true}
	a.Flags(root)
	root.AddCommand(Command(a))
	code := a.Execute(t.Context(), root, args)
	return result{code, out.String(), err.String()}
}

// spoken are answers as a user types them, one for each question.
func spoken(a Answers) []string {
	yesNo := map[bool]string{true: "yes", false: "no"}
	return []string{string(a.Overlap), yesNo[a.Tokens], yesNo[a.Node], yesNo[a.Postgres], fmt.Sprint(a.Rate)}
}

// Over the whole product of answers: flags and questions come to the same.
func TestFlagsAndQuestionsAgree(t *testing.T) {
	t.Parallel()
	product(func(want Answers) {
		words := spoken(want)
		args := []string{"choose", "--json"}
		for i, q := range questions() {
			args = append(args, "--"+q.flag, words[i])
		}
		byFlags := invoke(t, args...)
		if byFlags.code != 0 || byFlags.err != "" {
			t.Fatalf("%v: got %+v", args, byFlags)
		}
		var asked Answers
		var prompts bytes.Buffer
		typed := strings.NewReader(strings.Join(words, "\n") + "\n")
		if err := ask(typed, &prompts, questions(), &asked); err != nil || asked != want {
			t.Fatalf("%v: asked: got %+v, %v", words, asked, err)
		}
		var out bytes.Buffer
		if show(&cli.App{Out: &out, JSON: true}, asked); out.String() != byFlags.out {
			t.Errorf("%v: by questions %s; by flags %s", words, out.String(), byFlags.out)
		}
	})
}

func TestChooseSaysWhy(t *testing.T) {
	t.Parallel()
	got := invoke(t, "choose", "--overlap", "never", "--tokens", "no", "--node", "no", "--postgres",
		"no", "--rate", "50000")
	for _, says := range []string{
		"  scenario      consensus: ", "  backend       etcd, etcd://", "fencelock/etcd\n",
		"  because       ", "  but           50000 locks a second",
	} {
		if got.code != 0 || !strings.Contains(got.out, says) {
			t.Errorf("got code %d and\n%s\nwant it to say %q", got.code, got.out, says)
		}
	}
	_, yaml, ok := strings.Cut(got.out, "\n\n")
	if _, err := config.Load(strings.NewReader(yaml)); !ok || err != nil {
		t.Errorf("what stands at the end: got %v, want a file that loads:\n%s", err, yaml)
	}
}

// Without a terminal, what no flag answers is an error that lists the flags.
func TestChooseWithoutATerminal(t *testing.T) {
	t.Parallel()
	got := invoke(t, "choose", "--node", "yes")
	if got.code != cli.ExitUsage || got.out != "" || strings.Contains(got.err, "--node yes|no") {
		t.Errorf("got %+v, want code 64", got)
	}
	for _, flag := range []string{
		"--overlap harmless|nuisance|never", "--tokens yes|no", "--postgres yes|no",
		"--rate NUMBER",
	} {
		if !strings.Contains(got.err, flag) {
			t.Errorf("got %q, want it to list %s", got.err, flag)
		}
	}
	for _, args := range [][]string{
		{"--overlap", "maybe"},
		{"--tokens", "perhaps"},
		{"--rate", "-1"},
		{"--rate", "many"},
		{"now"},
	} {
		if got := invoke(t, append([]string{"choose"}, args...)...); got.code != cli.ExitUsage {
			t.Errorf("%v: got %+v, want code 64", args, got)
		}
	}
}

// A bad answer is asked for again, and the end of the answers is an error.
func TestAskAgain(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var a Answers
	err := ask(strings.NewReader("Never\nwhat\n\nY\nn\nno\n-5\n12"), &out, questions(), &a)
	if want := (Answers{Overlap: Never, Tokens: true, Rate: 12}); err != nil || a != want {
		t.Errorf("got %+v, %v, want %+v", a, err, want)
	}
	if got := strings.Count(out.String(), "want yes or no.\n"); got != 2 {
		t.Errorf("got %d times that an answer was bad, want 2:\n%s", got, out.String())
	}
	if err := ask(strings.NewReader("never\n"), &out, questions(), &a); err == nil ||
		!strings.Contains(err.Error(), "--tokens") {
		t.Errorf("answers that end: got %v, want an error that names --tokens", err)
	}
}

// What is printed on a terminal of 80 columns is broken between words.
func TestQuestionsFitATerminal(t *testing.T) {
	for _, q := range questions() {
		for _, line := range cli.Folded(q.ask+" ["+q.form+"]", promptWidth) {
			if n := len(line); n > 78 { // a space follows
				t.Errorf("%q has %d columns", line, n)
			}
		}
	}
}
