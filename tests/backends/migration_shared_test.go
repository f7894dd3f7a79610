//go:build unix

package backends

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
)

// From one Redis to Redlock, of which it stays a node, under the prefix that both have: neither store takes the other's
// part of a lock for its own.
func TestMigrationToRedlockOnTheSameServer(t *testing.T) {
	t.Parallel()
	g := servers.Redises(t, 3, servers.RedisOptions{})
	var lockers []*fencelock.Locker
	for range 2 {
		var stores [2]backend.Driver
		for i, url := range []string{
			"redis://" + g.Addrs()[0], "redlock://" + strings.Join(g.Addrs(), ",") + "?fresh=1",
		} {
			d, err := backend.Open(t.Context(), url, nil)
			if err != nil {
				t.Fatal(err)
			}
			stores[i] = d
		}
		d, err := moveAll(t.Context(), backend.PhaseBoth, stores[0], stores[1])
		if err != nil {
			t.Fatal(err)
		}
		l, err := fencelock.New(d, fencelock.WithTTL(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		lockers = append(lockers, l)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	last := fencelock.Token(0)
	for _, l := range lockers {
		all.Go(func() {
			for range 30 {
				le, err := l.Mutex("x").Lock(t.Context())
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				mu.Lock()
				if le.Token() <= last {
					t.Errorf("token %d after %d", le.Token(), last)
				}
				last = le.Token()
				mu.Unlock()
				if err := le.Unlock(t.Context()); err != nil {
					t.Errorf("Unlock: %v (lost: %v)", err, errors.Is(err, fencelock.ErrLost))
				}
			}
		})
	}
	all.Wait()
}
