package leaks

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
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

// silent is a store that answers all but what it is asked about gates.
type silent struct{ backend.Mover }

func (silent) Load(ctx context.Context, _ string) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		<-ctx.Done()
		yield(backend.Record{}, ctx.Err())
	}
}

func TestGatesThatAreNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		store := silent{d}
		locks, err := fencelock.New(store)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		f := &finder{sites: []site{{locks: locks, driver: store}}}
		if _, err := f.look(ctx); !errors.Is(err, fencelock.ErrUnavailable) || ctx.Err() != nil {
			t.Errorf("got %v, and %v of the caller's context, want that the store is unavailable", err, ctx.Err())
		}
	})
}
