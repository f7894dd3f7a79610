//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

func TestRelativeRuntimeDir(t *testing.T) {
	t.Parallel()
	got := invoke(t, map[string]string{"XDG_RUNTIME_DIR": "run"}, "ls")
	if got.code != cli.ExitUsage || !strings.Contains(got.err, "absolute") {
		t.Errorf("got %+v", got)
	}
}

func TestDefaultPlaceWorks(t *testing.T) {
	t.Parallel()
	env := map[string]string{"XDG_RUNTIME_DIR": t.TempDir()}
	if got := invoke(t, env, "run", "n", "--", "true"); got.code != 0 {
		t.Errorf("got %+v", got)
	}
}
