package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
)

func TestTokens(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		floor := time.Now().UnixMicro() + backend.FloorAhead - 1000
		var last backend.Token
		tests := []func(*backend.Request){
			nil, nil, func(r *backend.Request) { r.Floor = floor }, nil,
			func(r *backend.Request) { r.Floor = 5 },
		}
		for i, change := range tests {
			for _, name := range []string{"a", "b"} {
				r := try(name, change)
				h := acquire(t, d, r)
				if h.Token <= last || h.Token <= r.Floor || h.Token < time.Now().UnixMicro() || h.Token >= 1<<53 {
					t.Errorf("%d: got %d after %d, want more, more than the floor %d "+
						"and the clock, below 2^53", i, h.Token, last, r.Floor)
				}
				last = h.Token
				want(t, "release", d.Release(t.Context(), h), nil)
			}
		}
		far := try("far", func(r *backend.Request) { r.Floor = floor + 2000 })
		_, err := d.Acquire(t.Context(), far)
		want(t, "a floor further ahead of the clock", err, backend.ErrInvalid)
		if err := d.Raise(t.Context(), last+backend.FloorAhead); err != nil {
			t.Error(err)
		}
		far.Floor = last + backend.FloorAhead // behind the counter: it spends nothing
		acquire(t, d, far)
		last += backend.FloorAhead
		if err := d.Raise(t.Context(), last+1000); err != nil {
			t.Error(err)
		}
		if err := d.Raise(t.Context(), 7); err != nil { // never lowers it
			t.Error(err)
		}
		if h := acquire(t, d, try("c", nil)); h.Token <= last+1000 {
			t.Errorf("got %d, want more than was raised to, %d", h.Token, last+1000)
		}
	})
}

// Tokens rise with every grant, not in the order in which the waiters came, and
// a waiter's floor counts when it is granted.
func TestTokensOfWaiters(t *testing.T) {
	bubble(t, func(t *testing.T, d caller) {
		h := acquire(t, d, try("n", nil))
		got := make(chan backend.Token, 1)
		go func() {
			g, err := d.Acquire(t.Context(), try("n", waits))
			want(t, "the waiter", err, nil)
			got <- g.Token
		}()
		synctest.Wait()
		between := acquire(t, d, try("other", nil))
		if err := d.Raise(t.Context(), between.Token+50); err != nil {
			t.Error(err)
		}
		want(t, "release", d.Release(t.Context(), h), nil)
		if token := <-got; token <= between.Token+50 {
			t.Errorf("got %d, want more than %d, which was raised to while it waited", token, between.Token+50)
		}
	})
}
