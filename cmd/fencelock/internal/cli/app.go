// Package cli is what the subcommands share: the outside world that an invocation sees, the flags
// that several of them have, which store they mean, what they print, and the exit codes.
package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// App is one invocation of the command: the outside world that it sees, and what the flags common
// to several commands say.
type App struct {
	In       io.Reader
	Out, Err io.Writer
	Lookup   func(key string) (string, bool) // the environment
	TempDir  func() string

	JSON        bool        // --json
	URL, Config *pflag.Flag // --url and --config
	began       bool        // the flags and arguments were accepted and a command is running
}

// New returns the app of this process.
func New() *App {
	return &App{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Lookup: os.LookupEnv, TempDir: os.TempDir,
	}
}

// Flags adds to the root command the flags that every command has.
func (a *App) Flags(root *cobra.Command) {
	fl := root.PersistentFlags()
	fl.String("url", "", "the backend, such as redis://host:6379/0 or file:///var/lib/locks")
	fl.String("config", "", "a YAML `FILE` that says which names are locked where "+
		"(see config check); --url wins over it")
	a.URL, a.Config = fl.Lookup("url"), fl.Lookup("config")
	root.PersistentPreRun = func(*cobra.Command, []string) { a.began = true }
}

// JSONFlag adds --json to a command.
func (a *App) JSONFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().BoolVar(&a.JSON, "json", false, usage)
}

// Execute runs a command line and returns the exit code. The end of ctx is an interrupt.
func (a *App) Execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(append([]string{}, args...)) // nil would be the arguments of this process
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	a.JSON = a.JSON || !a.began && asksJSON(args)
	return a.report(cmd, err)
}

// asksJSON reports whether --json is among the arguments, of which a bad one may stand before it.
func asksJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

// Report prints an error that does not end the command.
func (a *App) Report(err error) { a.report(nil, err) }

// report prints err and returns its exit code. cmd says how it is used if err is about that.
func (a *App) report(cmd *cobra.Command, err error) int {
	f := a.failure(err)
	if f.err == nil {
		return f.code
	}
	msg := once(Message(err))
	if a.JSON {
		a.PrintErr(struct {
			Error string `json:"error"`
			Code  int    `json:"code"`
		}{msg, f.code})
		return f.code
	}
	fmt.Fprintf(a.Err, "fencelock: %s\n", msg)
	if f.usage && cmd != nil {
		line := cmd.UseLine()
		if cmd.HasAvailableSubCommands() {
			line = cmd.CommandPath() + " COMMAND"
		}
		fmt.Fprintf(a.Err, "usage: %s\nhelp:  %s --help\n", line, cmd.CommandPath())
	}
	return f.code
}

// Warn prints what does not change the exit code.
func (a *App) Warn(format string, args ...any) {
	msg := Scrub(strings.ReplaceAll(fmt.Sprintf(format, args...), "fencelock: ", ""))
	if a.JSON {
		a.PrintErr(struct {
			Warning string `json:"warning"`
		}{msg})
		return
	}
	fmt.Fprintln(a.Err, "fencelock: "+msg)
}

// Print prints v on the standard output as one line of JSON.
func (a *App) Print(v any) { printJSON(a.Out, v) }

// PrintErr prints v on the standard error as one line of JSON.
func (a *App) PrintErr(v any) { printJSON(a.Err, v) }

func printJSON(w io.Writer, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // nobody is left to be told that the output is gone
}

// Message is what an error says, as it may be shown.
func Message(err error) string { return Scrub(strings.TrimPrefix(err.Error(), "fencelock: ")) }

// once returns a message without the lines that stand in it twice: a client that tried an address
// with TLS and without says the same of both.
func once(msg string) string {
	var lines []string
	for line := range strings.SplitSeq(msg, "\n") {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// credentials are what stands between the scheme and the host of a URL, and of one that was typed as a name.
var (
	credentials = regexp.MustCompile(`:/+\S*@`)
	asName      = regexp.MustCompile(`^[a-z+]+:/+[^/\s]*@`)
)

// Name is a lock's name, safe to print. What looks like the credentials of a URL is hidden in it.
func Name(name string) string {
	if asName.MatchString(name) {
		return Scrub(Safe(name))
	}
	return Safe(name)
}

// Scrub hides the credentials of a URL that was typed where none belongs and so is quoted in a
// message. The library's own messages never show them.
func Scrub(s string) string {
	return credentials.ReplaceAllStringFunc(s, func(found string) string {
		if found == "://[user:password@" { // in the form that the library wants
			return found
		}
		return "://…@"
	})
}
