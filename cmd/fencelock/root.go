package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/bench"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/check"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/choose"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/conform"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/doctor"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/leaks"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/locks"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/migrate"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/run"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/serve"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/watch"
)

// root makes the command tree of an invocation.
func root(a *cli.App) *cobra.Command {
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
	}
	root.SetVersionTemplate("{{.Version}}\n")
	a.Flags(root)
	root.AddCommand(
		run.Command(a),
		locks.Inspect(a),
		locks.Ls(a),
		watch.Command(a),
		serve.Command(a),
		locks.Break(a),
		leaks.Command(a),
		conform.Command(a),
		doctor.Command(a),
		bench.Command(a),
		config.Command(a),
		check.Command(a),
		choose.Command(a),
		migrate.Command(a),
		versionCommand(a),
	)
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Example = "  fencelock help run"
		help.RunE = func(_ *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return cli.Usagef("there is no command %q: fencelock help shows all", strings.Join(args, " "))
			}
			return about.Help()
		}
	}
	root.InitDefaultCompletionCmd("")
	if shells, _, err := root.Find([]string{"completion"}); err == nil {
		shells.Example = "  fencelock completion bash"
		shells.RunE = func(*cobra.Command, []string) error {
			return cli.Usagef("completion for which shell: want bash, fish, powershell or zsh")
		}
	}
	return root
}

// version is what `fencelock version` shows.
type version struct {
	Version  string   `json:"version"`
	Go       string   `json:"go"`
	OS       string   `json:"os"`
	Arch     string   `json:"arch"`
	Backends []string `json:"backends"`
	Schemes  []string `json:"schemes"`
}

// String returns it in two lines.
func (v version) String() string {
	return fmt.Sprintf("fencelock %s (%s %s/%s)\nbackends: %s",
		v.Version, v.Go, v.OS, v.Arch, strings.Join(v.Backends, ", "))
}

// readVersion reads what the build recorded.
func readVersion() version {
	v := version{
		Version: "(unknown)", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Schemes: backend.Schemes(),
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, e := range backend.Catalog() { // this program imports them all
		v.Backends = append(v.Backends, e.Traits.Name)
	}
	slices.Sort(v.Backends)
	return v
}

func versionCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version and the backends that are built in",
		Example: "  fencelock version --json",
		Args:    cli.Args(0, 0, "no arguments are taken"),
		Run: func(*cobra.Command, []string) {
			if v := readVersion(); a.JSON {
				a.Print(v)
			} else {
				fmt.Fprintln(a.Out, v)
			}
		},
	}
	a.JSONFlag(cmd, "print one JSON object")
	return cmd
}
