package run

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// A wait is told once, and not before half a second has passed.
func TestWaitIsTold(t *testing.T) {
	const told = "fencelock: waiting for n, which is held by db-7:4711 (for 29.5s unless it renews)\n"
	for wait, want := range map[time.Duration]string{
		quietFor - 1: "", quietFor + 1: told, time.Hour: told,
	} {
		synctest.Test(t, func(t *testing.T) {
			d, err := memory.New()
			if err != nil {
				t.Fatal(err)
			}
			locks, err := fencelock.New(d, fencelock.WithOwner("db-7:4711"))
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Close()
			if _, err := locks.Mutex("n").TryLock(t.Context()); err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			_, _ = waitLock(ctx, &cli.App{Err: &said}, locks, "n", locks.Mutex("n").Lock, true) // it is held
			if got := said.String(); got != want {
				t.Errorf("in %v: got %q, want %q", wait, strings.TrimSpace(got), want)
			}
		})
	}
}
