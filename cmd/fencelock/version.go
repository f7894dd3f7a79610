package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/backend"
)

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
	return fmt.Sprintf("fencelock %s (%s %s/%s)\nbackends: %s", v.Version, v.Go, v.OS, v.Arch, strings.Join(v.Backends, ", "))
}

// readVersion reads what the build recorded.
func readVersion() version {
	v := version{Version: "(unknown)", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Schemes: backend.Schemes()}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	built := false
	for _, e := range backend.Catalog() {
		if len(e.Schemes) > 0 { // else a further mode of the one before
			built = slices.ContainsFunc(e.Schemes, func(s string) bool { return slices.Contains(v.Schemes, s) })
		}
		if built {
			v.Backends = append(v.Backends, e.Traits.Name)
		}
	}
	slices.Sort(v.Backends)
	v.Backends = slices.Compact(v.Backends)
	return v
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version and the backends that are built in",
		Example: "  fencelock version --json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			if a.json {
				a.printJSON(a.out, v)
				return nil
			}
			fmt.Fprintln(a.out, v)
			return nil
		},
	}
	a.jsonFlag(cmd, "print one JSON object")
	return cmd
}
