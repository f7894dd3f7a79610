package fencelock_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// Nothing of a lease is kept after its end, however long its TTL is.
func TestCyclesLeaveNothing(t *testing.T) {
	const n = 200
	cycles := map[string]func(*testing.T, *fencelock.Locker, *fake){
		"lock and unlock": func(t *testing.T, l *fencelock.Locker, _ *fake) { unlock(t, lock(t, l.Mutex("n"))) },
		"broken": func(t *testing.T, l *fencelock.Locker, _ *fake) {
			lock(t, l.Mutex("n"))
			if err := l.Break(t.Context(), "n"); err != nil {
				t.Error(err)
			}
		},
		"max hold": func(t *testing.T, l *fencelock.Locker, _ *fake) {
			<-lock(t, l.Mutex("n", fencelock.WithMaxHold(time.Second))).Done()
		},
		"cancelled": func(t *testing.T, l *fencelock.Locker, _ *fake) {
			le := lock(t, l.Mutex("n"))
			ctx, cancel := context.WithCancel(t.Context())
			waits := background(ctx, l.Mutex("n"))
			cancel()
			wantErr(t, "the wait", (<-waits).err, context.Canceled)
			unlock(t, le)
		},
		"refused": func(t *testing.T, l *fencelock.Locker, d *fake) {
			d.on("acquire", first(1, loseReply))
			_, err := l.Mutex("n").TryLock(t.Context())
			wantErr(t, "trylock", err, fencelock.ErrUnavailable)
			synctest.Wait()
		},
	}
	for name, cycle := range cycles {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				l := open(t, d, fencelock.WithTTL(24*time.Hour))
				var mu sync.Mutex
				var reqs []weak.Pointer[backend.Request] // each is a part of its hold
				d.watch = func(r *backend.Request) {
					mu.Lock()
					defer mu.Unlock()
					reqs = append(reqs, weak.Make(r))
				}
				for range n {
					cycle(t, l, d)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				runtime.GC()
				runtime.GC()
				mu.Lock()
				defer mu.Unlock()
				left := 0
				for _, r := range reqs {
					if r.Value() != nil {
						left++
					}
				}
				if len(reqs) < n || left > n/2 {
					t.Errorf("%d of %d holds are still in memory after their end", left, len(reqs))
				}
			})
		})
	}
}
