// Package cli has the parts that the subcommands share: the outside world of an invocation, common
// flags, the choice of the store, output, and exit codes.
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

// App is one invocation of the command: its outside world, and the values of common flags.
type App struct {
	In       io.Reader
	Out, Err io.Writer
	Lookup   func(key string) (string, bool) // the environment
	TempDir  func() string

	JSON        bool        // --json
	URL, Config *pflag.Flag // --url and --config
	Moving      bool        // the name that Open connected for is one of a migration
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

// asksJSON reports whether --json is among the arguments. A bad argument may stand before it.
func asksJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

// Report prints an error that does not end the command.
func (a *App) Report(err error) { a.report(nil, err) }

// report prints err and returns its exit code. If err is about the usage of cmd, the usage is printed too.
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

// Warn prints a message that does not change the exit code.
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
	_ = enc.Encode(v) // there is no other place to report that the output is gone
}

// Message returns the text of an error without credentials.
func Message(err error) string { return Scrub(strings.TrimPrefix(err.Error(), "fencelock: ")) }

// once returns a message without repeated lines: a client that tried an address with TLS and without
// reports the same error twice.
func once(msg string) string {
	var lines []string
	for line := range strings.SplitSeq(msg, "\n") {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// credentials match the part between the scheme and the host of a URL; asName matches a URL that was typed as a name.
var (
	credentials = regexp.MustCompile(`:/+\S*@`)
	asName      = regexp.MustCompile(`^[a-z+]+:/+[^/\s]*@`)
)

// Name returns a lock's name, safe to print, and hides credentials in it if it looks like a URL.
func Name(name string) string {
	if asName.MatchString(name) {
		return Scrub(Safe(name))
	}
	return Safe(name)
}

// Scrub hides the credentials of a URL in a message. A user may type a URL where none belongs, and the
// message quotes it. The library's own messages never show credentials.
func Scrub(s string) string {
	return credentials.ReplaceAllStringFunc(s, func(found string) string {
		if found == "://[user:password@" { // in the form that the library wants
			return found
		}
		return "://…@"
	})
}
