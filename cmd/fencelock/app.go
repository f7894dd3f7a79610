package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
)

// app is one invocation of the command: the outside world that it sees, and
// what the flags common to several commands say.
type app struct {
	in       io.Reader
	out, err io.Writer
	lookup   func(key string) (string, bool) // the environment
	tempDir  func() string

	url       string // --url
	urlSet    bool   // it was given, perhaps as ""
	config    string // --config
	configSet bool   // it was given, perhaps as ""
	json      bool   // --json
	began     bool   // the flags and arguments were accepted and a command is running
}

// newApp returns the app of this process.
func newApp() *app {
	return &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, lookup: os.LookupEnv, tempDir: os.TempDir}
}

// execute runs the command line and returns the exit code. The end of ctx is an interrupt.
func (a *app) execute(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // nil would be the arguments of this process
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	a.json = a.json || !a.began && asksJSON(args)
	return a.report(cmd, err)
}

// asksJSON reports whether --json is among the arguments, of which a bad one may stand before it.
func asksJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

// root makes the command tree: one constructor and one file for each command.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fencelock",
		Short: "Distributed locks with leases and fencing tokens",
		Long: `fencelock holds a lock while a command runs, and shows who holds what.

The backend is --url, else the one that the file --config gives the name, else
the environment variable FENCELOCK_URL (a better place for a password than
--url: arguments show in ps), else the file backend in
$XDG_RUNTIME_DIR/fencelock, else in a folder of your own in the temporary
directory. Processes exclude each other only if they use the same backend: a
cron job often has no XDG_RUNTIME_DIR, so give both sides the same URL.

Exit codes: 0 done; 64 usage or configuration; 69 store unavailable; where a
command has others, they are in its help.`,
		Example: `  fencelock run backup -- ./backup.sh
  fencelock --url redis://localhost:6379/0 ls jobs/`,
		Version:       readVersion().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			a.began = true
			a.urlSet = cmd.Flags().Changed("url")
			a.configSet = cmd.Flags().Changed("config")
		},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().StringVar(&a.url, "url", "", "the backend, such as redis://host:6379/0 or file:///var/lib/locks")
	root.PersistentFlags().StringVar(&a.config, "config", "", "a YAML `FILE` that says which names are locked where (see config check); --url wins over it")
	root.AddCommand(
		a.runCommand(),
		a.inspectCommand(),
		a.lsCommand(),
		a.watchCommand(),
		a.serveCommand(),
		a.breakCommand(),
		a.leaksCommand(),
		a.conformCommand(),
		a.doctorCommand(),
		a.benchCommand(),
		a.configCommand(),
		a.chooseCommand(),
		a.migrateCommand(),
		a.versionCommand(),
	)
	return root
}

// jsonFlag adds --json to a command.
func (a *app) jsonFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().BoolVar(&a.json, "json", false, usage)
}

// open connects to the backend, or with --config to that of the one name, or to all that the file uses if
// name is empty. With look it only looks at migrations, so that no operator's command switches one.
func (a *app) open(ctx context.Context, name string, look bool, opts ...fencelock.Option) (*fencelock.Locker, error) {
	if !a.configured() {
		raw, err := a.backendURL()
		if err != nil {
			return nil, err
		}
		return fencelock.Open(ctx, raw, opts...)
	}
	c, err := a.readConfig(a.config)
	if err == nil && name != "" {
		c, err = c.For(name)
	}
	if err != nil {
		return nil, err
	}
	if look {
		c = c.Look()
	}
	return c.Open(ctx, opts...)
}

// operate connects for one of the operators' commands, and ends it when the
// user interrupts.
func (a *app) operate(parent context.Context, do func(context.Context, *fencelock.Locker) error) error {
	return a.operateOn(parent, "", do)
}

// operateOn is operate for a command about one name.
func (a *app) operateOn(parent context.Context, name string, do func(context.Context, *fencelock.Locker) error) error {
	sigs, quit := notify()
	defer quit()
	ctx, stop := untilSignal(parent, sigs)
	defer stop()
	locks, err := a.open(ctx, name, true)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer closeWithin(locks, closeTime)
	return interrupted(ctx, do(ctx, locks))
}

// closeTime bounds what the command waits at its end for the store to clean up.
const closeTime = 2 * time.Second

// closeWithin closes locks, and leaves it to the end of the process where that
// takes longer than d: the store frees what is left by itself.
func closeWithin(locks *fencelock.Locker, d time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = locks.Close() // what matters was unlocked, and reported, before
	}()
	select {
	case <-done:
	case <-time.After(d):
	}
}

// report prints err and returns its exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	code, usage := a.codeOf(err)
	if isQuiet(err) {
		return code
	}
	msg := scrub(strings.TrimPrefix(err.Error(), "fencelock: "))
	if a.json {
		a.printJSON(a.err, struct {
			Error string `json:"error"`
			Code  int    `json:"code"`
		}{msg, code})
		return code
	}
	fmt.Fprintf(a.err, "fencelock: %s\n", msg)
	if usage {
		line := cmd.UseLine()
		if cmd.HasAvailableSubCommands() {
			line = cmd.CommandPath() + " COMMAND"
		}
		fmt.Fprintf(a.err, "usage: %s\nhelp:  %s --help\n", line, cmd.CommandPath())
	}
	return code
}

// credentials are what stands between the scheme and the host of a URL.
var credentials = regexp.MustCompile(`://\S*@`)

// scrub hides the credentials of a URL that was typed where none belongs and
// so is quoted in a message. The library's own messages never show them.
func scrub(s string) string { return credentials.ReplaceAllString(s, "://…@") }

// printJSON prints v as one line.
func (a *app) printJSON(w io.Writer, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // nobody is left to be told that the output is gone
}
