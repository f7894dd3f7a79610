package leaks

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// Whether there are leaks is not known before the first look has ended.
func TestWatchEndedBeforeItsFirstLook(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := &watch{a: cli.New(), finder: &finder{}, every: time.Second}
	if err := w.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was ended", err)
	}
}
