package zookeeper_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
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

// Processes and sessions that draw from one counter at once, for many names, never have a number in common.
func TestOneCounterForManyNames(t *testing.T) {
	t.Parallel()
	z := single(t)
	ds := []caller{driver(t, z.URL()), driver(t, z.URL())}
	names := sameCounter(12)
	var mu sync.Mutex
	var all []*core.Hold
	last := map[string]backend.Token{}
	var wg sync.WaitGroup
	for i, d := range ds {
		for j, name := range names {
			wg.Go(func() {
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
					h := &core.Hold{Request: r, Grant: g}
					mu.Lock()
					all = append(all, h)
					if g.Token <= last[name] {
						t.Errorf("%s: got token %d after %d", name, g.Token, last[name])
					}
					last[name] = g.Token + backend.Token(g.Reserved)
					mu.Unlock()
					if err := d.Release(t.Context(), h); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b *core.Hold) int { return cmp.Compare(a.Token, b.Token) })
	reserved := 0
	for i, h := range all[1:] {
		if before := all[i]; h.Token <= before.Token+backend.Token(before.Reserved) {
			t.Errorf("%s has %d, %s had %d and %d in reserve",
				h.Name, h.Token, before.Name, before.Token, before.Reserved)
		}
		reserved += h.Reserved
	}
	if reserved == 0 {
		t.Error("no token was reserved")
	}
}

// Who finds that another process has drawn from the counter meanwhile, for another name, reads it and asks again.
func TestCounterOfOthersCostsARead(t *testing.T) {
	t.Parallel()
	z := single(t)
	p, url := proxied(t, z.Servers()[0])
	d, other := driver(t, url), driver(t, z.URL())
	names := sameCounter(3)
	must(t, d.Release(t.Context(), hold(t, d, reserving(names[0]))))
	must(t, other.Release(t.Context(), hold(t, other, reserving(names[1]))))
	before := p.Counts().Requests
	h := hold(t, d, reserving(names[2]))
	if n := p.Counts().Requests - before; n != 3 {
		t.Errorf("%d requests, want 3: one that is refused, the counter, and one that is done", n)
	}
	must(t, d.Release(t.Context(), h))
}

// sameCounter returns names that draw from one counter.
func sameCounter(n int) (names []string) {
	for i := 0; len(names) < n; i++ {
		h := fnv.New32a()
		name := fmt.Sprint("name-", i)
		_, _ = h.Write([]byte(name))
		if h.Sum32()%256 == 7 {
			names = append(names, name)
		}
	}
	return names
}
