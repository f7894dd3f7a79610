package migrate

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"

	_ "github.com/fencelock/fencelock/backend/file"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// A store that hangs once it is open keeps no command for ever.
func TestStoresThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "locks.yaml")
	text := fmt.Sprintf(`backends:
  old: {url: "file://%[1]s/old"}
  new: {url: "file://%[1]s/new"}
  moving: {migrate: {from: old, to: new, phase: from}}
locks: [{match: "*", scenario: general, backend: moving}]
`, filepath.ToSlash(dir))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &cli.App{Out: io.Discard, Err: io.Discard, Lookup: os.LookupEnv, TempDir: os.TempDir}
	root := &cobra.Command{Use: "fencelock"}
	a.Flags(root)
	hangs := func(ctx context.Context, _ migration) error {
		<-ctx.Done()
		return ctx.Err()
	}
	root.AddCommand(&cobra.Command{Use: "hang", RunE: connected(a, 10*time.Millisecond, hangs)})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code := a.Execute(ctx, root, []string{"hang", "--config", path})
	if code != cli.ExitUnavailable || ctx.Err() != nil {
		t.Errorf("got code %d, want %d in time", code, cli.ExitUnavailable)
	}
}
