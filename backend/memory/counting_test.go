package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
)

func TestCountingTokens(t *testing.T) {
	d := call(memory.NewCounting())
	for i, name := range []string{"a", "a", "b", "a"} {
		h := acquire(t, d, try(name, func(r *backend.Request) { r.Reserve = 100 }))
		if h.Token != backend.Token(i+1) || h.Reserved != 0 {
			t.Errorf("got token %d and %d reserved, want %d and none", h.Token, h.Reserved, i+1)
		}
		want(t, "release", d.Release(t.Context(), h), nil)
	}
	h := acquire(t, d, try("c", func(r *backend.Request) { r.Floor = 41 }))
	if h.Token != 42 {
		t.Errorf("got token %d, want 42, after the floor", h.Token)
	}
}

// The holder is told before the next one has the lock.
func TestExpire(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		if d.Expire("n") {
			t.Error("got true for a free lock")
		}
		var told error
		h := acquire(t, d, try("n", func(r *backend.Request) {
			r.Lost = func(err error) {
				told = err
				info, _ := d.Inspect(t.Context(), "n")
				if !info.Held || info.Waiters != 1 {
					t.Errorf("got %+v when the holder is told, want its hold and the waiter", info)
				}
			}
		}))
		next := queue(t.Context(), d, try("n", waits))
		if !d.Expire("n") {
			t.Error("got false for a lock that is held")
		}
		var lost *backend.LostError
		if !errors.As(told, &lost) || lost.Reason != backend.Expired {
			t.Errorf("got %v, want a loss that is Expired", told)
		}
		synctest.Wait()
		select {
		case err := <-next:
			want(t, "the next", err, nil)
		default:
			t.Error("the next waits on")
		}
		want(t, "release of the expired", d.Release(t.Context(), h), backend.ErrLost)
	})
}
