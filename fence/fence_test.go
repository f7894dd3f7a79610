package fence_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/fencelock/fencelock"
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
}
