package redlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/conformance/faultproxy"
)

// lines is how many nodes have a line of a client: a connection that speaks RESP 2.
func (c *cluster) lines(t *testing.T) (n int) {
	t.Helper()
	for _, r := range c.direct {
		list, err := r.ClientList(t.Context()).Result()
		must(t, err)
		if strings.Contains(list, " resp=2") {
			n++
		}
	}
	return n
}

// A caller who comes alone has lines of its own. Whatever happens to them, it locks and unlocks as before, tokens rise, and nothing is
// left behind.
func TestLoneCaller(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l := open(t, through)
	last := fencelock.Token(0)
	some := func(t *testing.T, n int) {
		t.Helper()
		for range n {
			le := lock(t, l.Mutex("a"))
			if le.Token() <= last {
				t.Fatalf("token: got %d after %d", le.Token(), last)
			}
			last = le.Token()
			unlock(t, le)
		}
	}
	all := func(mode faultproxy.Mode) {
		for _, p := range proxies {
			p.Set(mode)
		}
	}
	for _, tt := range []struct {
		what    string
		disturb func(t *testing.T)
	}{
		{"nothing", func(*testing.T) {}},
		{"the functions are gone", func(t *testing.T) {
			for _, r := range c.direct {
				must(t, r.Do(t.Context(), "FUNCTION", "FLUSH").Err())
			}
		}},
		{"the connections are cut", func(*testing.T) {
			for _, p := range proxies {
				p.Cut()
			}
		}},
		{"a node is silent", func(t *testing.T) {
			proxies[0].Set(blackHole)
			some(t, 20)
			proxies[0].Set(faultproxy.Mode{})
		}},
		{"a node is down", func(t *testing.T) {
			refuse(proxies[1])
			some(t, 20)
			proxies[1].Set(faultproxy.Mode{})
		}},
		{"replies are lost", func(t *testing.T) {
			for _, p := range proxies {
				p.LoseReplies(1)
			}
		}},
		{"replies are slow", func(t *testing.T) {
			all(faultproxy.Mode{Delay: 3 * time.Millisecond})
			some(t, 10)
			all(faultproxy.Mode{})
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			await(t, 30*time.Second, "lines are open", func() bool { some(t, 10); return c.lines(t) == 3 })
			tt.disturb(t)
			some(t, 20)
			await(t, 10*time.Second, "nothing is held", func() bool {
				return c.value(t, 0, "a")+c.value(t, 1, "a")+c.value(t, 2, "a") == ""
			})
		})
	}
	must(t, l.Close())
	await(t, 5*time.Second, "the lines are closed", func() bool { return c.lines(t) == 0 })
}

// A request that is surely after the vote needs no tombstone: a lone caller leaves none.
func TestLoneCallerLeavesNoTombstones(t *testing.T) {
	// Not beside other tests: a node that does not answer within 2 ms is asked by others than the lone caller.
	c := start(t, 5)
	m := open(t, c.url("fresh=1")).Mutex("a")
	count := func() (n int) {
		for _, r := range c.direct {
			keys, err := r.Keys(t.Context(), "fl\x00rl:x*").Result()
			must(t, err)
			n += len(keys)
		}
		return n
	}
	await(t, 30*time.Second, "lines are open", func() bool {
		for range 50 { // looking at the nodes in between takes its time
			unlock(t, lock(t, m))
		}
		return c.lines(t) == 5
	})
	const cycles = 200
	before := count()
	for range cycles {
		unlock(t, lock(t, m))
	}
	if n := count() - before; n > cycles/2 {
		t.Errorf("%d tombstones of %d cycles", n, cycles)
	}
}
