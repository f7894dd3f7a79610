package redlock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
)

// Nodes restart one after the other, without their data, as the documents say: a quarantine and a
// TTL apart. A lease that is held all the time stays, for each node votes for it again.
func TestRollingRestartKeepsLeases(t *testing.T) {
	t.Parallel()
	const quarantine, ttl = 3 * time.Second, 3 * time.Second
	c := start(t, 3)
	l := open(t, c.url("quarantine=3s&fresh=1"), fencelock.WithTTL(ttl))
	held := []*fencelock.Lease{lock(t, l.Mutex("a")), lock(t, l.Mutex("b"))}
	for round := range 2 {
		for i, s := range c.Servers() {
			must(t, s.Restart(false))
			await(t, 10*time.Second+quarantine+ttl, "the node has votes for what is held", func() bool {
				return c.value(t, i, "a") != "" && c.value(t, i, "b") != ""
			})
			for _, le := range held {
				if err := le.Err(); err != nil {
					t.Fatalf("restart %d of node %d: the lease of %q: %v", round+1, i+1, le.Name(), err)
				}
			}
		}
	}
	for _, le := range held {
		if v := c.value(t, 0, le.Name()); !strings.Contains(v, fmt.Sprintf(":%d:", le.Token())) {
			t.Errorf("the vote that was given again is %q, want the token %d", v, le.Token())
		}
		_, err := open(t, c.url("quarantine=3s"), fencelock.WithTTL(ttl)).Mutex(le.Name()).TryLock(t.Context())
		want(t, "TryLock by another", err, fencelock.ErrLocked)
		unlock(t, le)
	}
	await(t, 5*time.Second, "nothing is left", func() bool {
		left := ""
		for i := range c.direct {
			left += c.value(t, i, "a") + c.value(t, i, "b")
		}
		return left == ""
	})
}
