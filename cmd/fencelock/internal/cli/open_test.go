//go:build unix

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDefaultPlace(t *testing.T) {
	t.Parallel()
	name := fmt.Sprintf("fencelock-%d", os.Getuid())
	for _, c := range []struct {
		what    string
		xdg     bool
		prepare func(t *testing.T, dir string) // dir is where the folder will be
		err     string
	}{
		{"runtime dir", true, func(*testing.T, string) {}, ""},
		{"temporary dir", false, func(*testing.T, string) {}, ""},
		{"there already", false, func(t *testing.T, dir string) { must(t, os.Mkdir(dir, 0o700)) }, ""},
		{"open to others", false, func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Chmod(dir, 0o755))
		}, "0755"},
		{"a link", false, func(t *testing.T, dir string) { must(t, os.Symlink(t.TempDir(), dir)) }, "symbolic link"},
		{"a dead link", true, func(t *testing.T, dir string) { must(t, os.Symlink("/no/such", dir)) }, "symbolic link"},
		{"a file", false, func(t *testing.T, dir string) { must(t, os.WriteFile(dir, nil, 0o600)) }, "not a folder"},
		{"another user's", false, func(t *testing.T, dir string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can make a folder of another user")
			}
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Chown(dir, 54321, -1))
		}, "another user"},
		{"no parent", true, func(t *testing.T, dir string) { must(t, os.Remove(filepath.Dir(dir))) }, "no such file"},
	} {
		t.Run(c.what, func(t *testing.T) {
			base := filepath.Join(t.TempDir(), "base")
			must(t, os.Mkdir(base, 0o700))
			env := map[bool]map[string]string{true: {"XDG_RUNTIME_DIR": base}}[c.xdg]
			a := &App{
				Lookup:  func(k string) (string, bool) { v, ok := env[k]; return v, ok },
				TempDir: func() string { return base },
			}
			a.Flags(&cobra.Command{})
			dir := filepath.Join(base, map[bool]string{true: "fencelock", false: name}[c.xdg])
			c.prepare(t, dir)
			url, err := a.backendURL()
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) ||
					!strings.Contains(err.Error(), "FENCELOCK_URL") {
					t.Errorf("got %q, %v; want an error with %q", url, err, c.err)
				}
				a.began = true
				if code := a.Code(err); code != ExitUsage {
					t.Errorf("code %d, want %d", code, ExitUsage)
				}
				return
			}
			if want := "file://" + dir; err != nil || url != want {
				t.Errorf("got %q, %v; want %q", url, err, want)
			}
			if info, err := os.Lstat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
				t.Errorf("the folder: %v, %v; want mode 0700", info.Mode(), err)
			}
		})
	}
}
