package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// Many goroutines of two clients lock a few names, by trying, by waiting and by waiting for too short a while, while their requests
// share statements. No name has two holders, its tokens rise, and nothing is left.
func TestCrowd(t *testing.T) {
	t.Parallel()
	for _, mode := range both {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := servers.Postgres(t, servers.PostgresOptions{})
			p := pool(t, s, "")
			long := fencelock.WithTTL(time.Minute)
			clients := []*fencelock.Locker{open(t, at(s.Addr(), mode), long), open(t, at(s.Addr(), mode), long)}
			const names = 12
			var holders [names]sync.Mutex
			var tokens rising
			var wg sync.WaitGroup
			rounds := 30
			if testing.Short() {
				rounds = 10
			}
			for worker := range 48 {
				wg.Go(func() {
					for round := range rounds {
						n := (worker*7 + round*5) % names
						m := clients[worker%2].Mutex(fmt.Sprint("x", n))
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						lock := m.Lock
						switch (worker + round) % 4 {
						case 0:
							lock = m.TryLock
						case 1:
							cancel()
							ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
						}
						le, err := lock(ctx)
						cancel()
						if err != nil {
							if !errors.Is(err, fencelock.ErrLocked) && !errors.Is(err, context.DeadlineExceeded) {
								t.Error(err)
							}
							continue
						}
						if !holders[n].TryLock() {
							t.Errorf("x%d has two holders", n)
							return
						}
						tokens.saw(t, "in the crowd", le.Name(), le.Token())
						holders[n].Unlock()
						if err := le.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			await(t, 10*time.Second, "nothing is left", func() bool { return leftovers(t, p) == 0 })
		})
	}
}
