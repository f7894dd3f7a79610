package fence_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/fence"
)

func TestMemory(t *testing.T) {
	var g fence.Memory
	for _, tt := range []struct {
		what     string
		resource string
		token    fence.Token
		want     error
	}{
		{"first", "a", 5, nil},
		{"equal: the same holder again", "a", 5, nil},
		{"lower", "a", 4, fencelock.ErrStale},
		{"another resource", "b", 1, nil},
		{"higher", "a", 9, nil},
		{"what was the highest before", "a", 5, fencelock.ErrStale},
		{"no token", "a", 0, fencelock.ErrInvalid},
		{"negative", "a", -1, fencelock.ErrInvalid},
	} {
		if got := g.Check(t.Context(), tt.resource, tt.token); !errors.Is(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.what, got, tt.want)
		}
	}
	var stale *fencelock.StaleError
	if err := g.Check(t.Context(), "a", 1); !errors.As(err, &stale) || stale.Max != 9 {
		t.Errorf("got %v, want a StaleError with Max 9", err)
	}
}

func TestMemoryDoIsAtomic(t *testing.T) {
	var g fence.Memory
	written := fence.Token(0) // guarded by nothing but g
	var wg sync.WaitGroup
	for token := fence.Token(1); token <= 50; token++ {
		wg.Go(func() {
			err := g.Do(context.Background(), "r", token, func() error {
				if token < written {
					t.Errorf("token %d was let through after %d", token, written)
				}
				written = token
				return nil
			})
			if err != nil && !errors.Is(err, fencelock.ErrStale) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if written != 50 {
		t.Errorf("got %d as the last write, want 50", written)
	}
	refused := errors.New("refused by the resource")
	if err := g.Do(t.Context(), "r", 51, func() error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v, want the access's own error", err)
	}
	if err := g.Check(t.Context(), "r", 50); !errors.Is(err, fencelock.ErrStale) {
		t.Errorf("a lower token after an access that failed: got %v, want ErrStale", err)
	}
}

// A number that no store grants is refused, and does not shut out the holders that come.
func TestMemoryRefusesFarMarks(t *testing.T) {
	var g fence.Memory
	now := fence.Token(time.Now().UnixMicro())
	for _, far := range []fence.Token{1<<53 - 1, 1 << 60, now + backend.FloorAhead + 1e9} {
		if err := g.Check(t.Context(), "r", far); !errors.Is(err, fencelock.ErrInvalid) {
			t.Errorf("token %d: got %v, want ErrInvalid", far, err)
		}
	}
	// The last one is of a store whose clock was ahead, and was set back: its tokens go on from there.
	for _, token := range []fence.Token{now, now + backend.FloorAhead - 1e9, now + 2*backend.FloorAhead - 2e9} {
		if err := g.Check(t.Context(), "r", token); err != nil {
			t.Errorf("token %d: got %v, want nil", token, err)
		}
	}
}

func TestSlot(t *testing.T) {
	var g fence.Memory
	for slot, token := range []fence.Token{7, 9, 8} {
		if err := g.Check(t.Context(), fence.Slot("printer", slot), token); err != nil {
			t.Errorf("slot %d with token %d: %v", slot, token, err)
		}
	}
	if err := g.Check(t.Context(), fence.Slot("printer", 1), 8); !errors.Is(err, backend.ErrStale) {
		t.Errorf("an older holder of slot 1: got %v, want %v", err, backend.ErrStale)
	}
}
