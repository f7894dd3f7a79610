package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/zookeeper"
)

// reserving is a request for a name with as many tokens after its own as the engine asks for.
func reserving(name string) *backend.Request {
	r := request(name)
	r.Reserve = 63
	return r
}

// acquired is a request that was granted, with tokens in reserve.
func acquired(t *testing.T, d caller, r *backend.Request) *core.Hold {
	t.Helper()
	var g backend.Grant
	await(t, 20*time.Second, "the lock is granted", func() bool {
		var err error
		g, err = d.Acquire(within(t, 20*time.Second), r)
		if err != nil && !errors.Is(err, backend.ErrLocked) {
			t.Fatal(err)
		}
		return err == nil
	})
	if g.Reserved < 0 || g.Reserved > r.Reserve {
		t.Errorf("%s: %d tokens are reserved, want 0 to %d", r.Name, g.Reserved, r.Reserve)
	}
	return &core.Hold{Request: r, Grant: g}
}

// However the next grant comes about, its token is greater than those that were reserved with the one before.
func TestReservedTokensAreNobodyElses(t *testing.T) {
	t.Parallel()
	z := single(t)
	p, url := proxied(t, z.Servers()[0])
	other := driver(t, z.URL())
	for _, way := range []struct {
		name string
		end  func(t *testing.T, d caller, h *core.Hold)
	}{
		{"release", func(t *testing.T, d caller, h *core.Hold) { must(t, d.Release(t.Context(), h)) }},
		{"release, and the same process", func(t *testing.T, d caller, h *core.Hold) {
			must(t, d.Release(t.Context(), h))
			next := acquired(t, d, reserving(h.Name))
			if next.Token <= h.Token+backend.Token(h.Reserved) {
				t.Errorf("token: got %d after %d and %d in reserve", next.Token, h.Token, h.Reserved)
			}
			must(t, d.Release(t.Context(), next))
		}},
		{
			"abandon",
			func(t *testing.T, d caller, h *core.Hold) {
				must(t, d.Abandon(t.Context(), h.Request))
			},
		},
		{
			"break",
			func(t *testing.T, _ caller, h *core.Hold) {
				must(t, other.Break(t.Context(), h.Name))
			},
		},
		{"raise", func(t *testing.T, d caller, h *core.Hold) {
			must(t, other.RaiseHeld(t.Context(), acquired(t, other, reserving("other")), h.Token))
			must(t, d.RaiseHeld(t.Context(), h, h.Token+1))
			must(t, d.Release(t.Context(), h))
		}},
		{"raise of all", func(t *testing.T, d caller, h *core.Hold) {
			must(t, other.Raise(t.Context(), h.Token+2))
			must(t, d.Release(t.Context(), h))
		}},
		{"end of the session", func(t *testing.T, d caller, _ *core.Hold) { must(t, d.Close()) }},
		{"expiry of the session", func(*testing.T, caller, *core.Hold) { p.Set(faultproxy.BlackHole) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			defer p.Set(faultproxy.Mode{})
			opened, err := backend.Open(t.Context(), url, nil)
			must(t, err)
			d := call(opened.(*zookeeper.Driver))
			defer d.Close()
			r := reserving(way.name)
			if strings.HasPrefix(way.name, "expiry") {
				r.TTL = 2 * time.Second // which is waited for
			}
			h := acquired(t, d, r)
			if h.Reserved == 0 {
				t.Error("no token is reserved")
			}
			way.end(t, d, h)
			next := acquired(t, other, reserving(way.name))
			if next.Token <= h.Token+backend.Token(h.Reserved) {
				t.Errorf("token: got %d after %d and %d in reserve", next.Token, h.Token, h.Reserved)
			}
			must(t, other.Release(t.Context(), next))
		})
	}
}

// Who waited has tokens in reserve too, above those of the holder before.
func TestReservedTokensOfAWaiter(t *testing.T) {
	t.Parallel()
	z := single(t)
	ds := []caller{driver(t, z.URL()), driver(t, z.URL())}
	c := foreign(t, z.Addrs()...)
	last := acquired(t, ds[0], reserving("x"))
	for i := range 6 {
		r := reserving("x")
		r.Wait = true
		granted := make(chan *core.Hold, 1)
		go func() {
			g, err := ds[(i+1)%2].Acquire(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			granted <- &core.Hold{Request: r, Grant: g}
		}()
		await(t, 10*time.Second, "it waits", func() bool { return len(nodes(t, c, "x", "wait-")) == 1 })
		must(t, ds[i%2].Release(t.Context(), last))
		next := <-granted
		if next.Token <= last.Token+backend.Token(last.Reserved) {
			t.Errorf("token: got %d after %d and %d in reserve", next.Token, last.Token, last.Reserved)
		}
		last = next
	}
}

// A request that is sent again, because its answer was lost or for no reason, finds its token.
func TestReservedTokensOfARepeatedRequest(t *testing.T) {
	t.Parallel()
	z := single(t)
	p, url := proxied(t, z.Servers()[0])
	d, other := driver(t, url), driver(t, z.URL())
	must(t, d.Release(t.Context(), acquired(t, d, reserving("warm"))))
	for i := range 3 {
		if i > 0 {
			p.LoseReplyTo(1, about(at("x")+"/held-", "/tokens/"))
		}
		before := p.Counts().LostReplies
		h := acquired(t, d, reserving("x"))
		if lost := p.Counts().LostReplies - before; i > 0 && lost != 1 {
			t.Errorf("%d replies were lost, want 1", lost)
		}
		again := acquired(t, d, h.Request)
		if again.Token != h.Token || again.Reserved > h.Reserved {
			t.Errorf("sent again: got %d and %d in reserve, want %d and at most %d",
				again.Token, again.Reserved, h.Token, h.Reserved)
		}
		if info, err := other.Inspect(t.Context(), "x"); err != nil || info.Token != h.Token {
			t.Errorf("Inspect: got %+v, %v, want token %d", info, err, h.Token)
		}
		must(t, d.Release(t.Context(), h))
		next := acquired(t, other, reserving("x"))
		if next.Token <= h.Token+63 { // whatever was told: it was drawn
			t.Errorf("token: got %d after %d", next.Token, h.Token)
		}
		must(t, other.Release(t.Context(), next))
	}
}

// Processes and sessions that are granted many names at once have, for each, numbers that nobody had before.
func TestReservedTokensOfManyNames(t *testing.T) {
	t.Parallel()
	z := single(t)
	ds := []caller{driver(t, z.URL()), driver(t, z.URL())}
	var mu sync.Mutex
	reserved, last := 0, map[string]backend.Token{}
	var wg sync.WaitGroup
	for i, d := range ds {
		for j := range 12 {
			wg.Go(func() {
				name := fmt.Sprint("name-", j)
				for k := range 12 {
					r := reserving(name)
					r.Reserve, r.Wait = (k+j)%3*31, true
					r.TTL = []time.Duration{10 * time.Second, 20 * time.Second}[(i+j+k)%2] // sessions of two lengths
					ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
					g, err := d.Acquire(ctx, r)
					cancel()
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if g.Token <= last[name] {
						t.Errorf("%s: got token %d after %d", name, g.Token, last[name])
					}
					last[name] = g.Token + backend.Token(g.Reserved)
					reserved += g.Reserved
					mu.Unlock()
					if err := d.Release(t.Context(), &core.Hold{Request: r, Grant: g}); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if reserved == 0 {
		t.Error("no token was reserved")
	}
}

// What other processes are granted costs nothing, and what they raise two reads and a request that is refused.
func TestRequestsBesideOthers(t *testing.T) {
	t.Parallel()
	z := single(t)
	opened, g := gatedDriver(t, z)
	d, other := call(opened), driver(t, z.URL())
	t.Cleanup(func() { must(t, d.Close()) })
	must(t, d.Release(t.Context(), hold(t, d, reserving("a"))))
	asked := g.count(asks)
	last, err := other.Source(t.Context())
	must(t, err)
	for _, one := range []struct {
		what     string
		do       func()
		above    backend.Token
		requests int64
	}{
		{"a grant", func() { must(t, other.Release(t.Context(), hold(t, other, reserving("b")))) }, last, 1},
		{"a raise", func() { must(t, other.Raise(t.Context(), last+1e6)) }, last + 1e6, 4},
	} {
		one.do()
		before := asked.Load()
		h := hold(t, d, reserving("c"))
		if n := asked.Load() - before; n != one.requests {
			t.Errorf("after %s: %d requests, want %d", one.what, n, one.requests)
		}
		if h.Token <= one.above {
			t.Errorf("after %s: got token %d, want more than %d", one.what, h.Token, one.above)
		}
		must(t, d.Release(t.Context(), h))
	}
}
