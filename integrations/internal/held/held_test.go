package held_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/integrations/internal/held"
)

// counting counts what the store is asked.
type counting struct {
	*memory.Driver
	asks atomic.Int64
}

func (c *counting) Ask(ctx context.Context, cs []*backend.Claim) {
	c.asks.Add(1)
	c.Driver.Ask(ctx, cs)
}

// A lease under which a job went well is passed on inside the process, without a word to the store.
func TestPassedOnAfterAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		d := &counting{Driver: store}
		l, err := fencelock.New(d)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		lock := func() <-chan *fencelock.Lease {
			granted := make(chan *fencelock.Lease, 1)
			go func() {
				lease, err := l.Mutex("n").Lock(t.Context())
				if err != nil {
					t.Error(err)
				}
				granted <- lease
			}()
			synctest.Wait()
			return granted
		}
		unlock := func(lease *fencelock.Lease) {
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		first, second := <-lock(), lock()
		unlock(first)
		lease, third := <-second, lock()
		before := d.asks.Load()
		if err := held.Run(t.Context(), lease, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		unlock(lease)
		unlock(<-third)
		if n := d.asks.Load() - before; n != 0 {
			t.Errorf("the store was asked %d times, want none", n)
		}
	})
}
