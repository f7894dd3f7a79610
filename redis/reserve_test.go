package redis_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// reserving is a request that asks for tokens after its own.
func reserving(name, nonce string) *backend.Request {
	r := request(name, nonce, "")
	r.Reserve = 63
	return r
}

func acquire(t *testing.T, d caller, r *backend.Request) backend.Grant {
	t.Helper()
	g, err := d.Acquire(t.Context(), r)
	must(t, err)
	return g
}

func nonce(c byte) string {
	n := []byte(nonceA)
	n[0] = c
	return string(n)
}

// Every grant of the name is above the tokens that were reserved before, through all that ends a
// hold.
func TestReserved(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, d := foreign(t, s), closing(t, s.URL())
	g := acquire(t, d, request("x", nonceA, ""))
	if g.Reserved != 0 {
		t.Errorf("reserved without being asked: %d", g.Reserved)
	}
	must(t, d.Abandon(t.Context(), request("x", nonceA, "")))
	top := g.Token
	next := func(what string, g backend.Grant, asked bool) {
		t.Helper()
		if g.Token <= top || g.Reserved < 0 || g.Reserved > 63 || asked != (g.Reserved > 0) {
			t.Errorf("%s: got %d and %d more after %d; asked: %v", what, g.Token, g.Reserved, top, asked)
		}
		top = g.Token + backend.Token(g.Reserved)
	}
	r := reserving("x", nonce('1'))
	g = acquire(t, d, r)
	next("a free name", g, true)
	again := acquire(t, d, r)
	if again.Token != g.Token {
		t.Errorf("sent again: got %d, want %d", again.Token, g.Token)
	}
	top = max(top, again.Token+backend.Token(again.Reserved))
	must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: again}))
	next("after a release", acquire(t, d, reserving("x", nonce('2'))), true)
	must(t, d.Break(t.Context(), "x"))
	next("after a Break", acquire(t, d, reserving("x", nonce('3'))), true)
	must(t, c.Del(t.Context(), key("x")).Err()) // as its expiry does
	r = request("x", nonce('4'), "")
	next("after the expiry, plain", acquire(t, d, r), false)

	// A waiter, whose grant is another's release.
	w := reserving("x", nonce('5'))
	w.Wait = true
	got := make(chan backend.Grant, 1)
	go func() {
		g, err := d.Acquire(t.Context(), w)
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	await(t, 5*time.Second, "it waits", func() bool { return queued(t, c, "x") == 1 })
	must(t, d.Abandon(t.Context(), r))
	next("a waiter", <-got, true)
	must(t, d.Abandon(t.Context(), w))
	next("after a waiter", acquire(t, d, reserving("x", nonce('6'))), true)
}

// A reservation moves the counter ahead of the server's clock by no more than 3 ms.
func TestReservedIsCapped(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, d := foreign(t, s), closing(t, s.URL())
	counter := redis.OursOf(key("x")) + "c"
	for _, tt := range []struct {
		ahead time.Duration
		least int
		most  int
	}{
		{0, 63, 63},
		{time.Hour, 0, 0},
	} {
		now := c.Time(t.Context()).Val()
		must(t, c.Set(t.Context(), counter, now.Add(tt.ahead).UnixMicro(), 0).Err())
		r := reserving("x", nonceA)
		g := acquire(t, d, r)
		if g.Reserved < tt.least || g.Reserved > tt.most {
			t.Errorf("counter ahead by %v: got %d reserved, want %d to %d", tt.ahead, g.Reserved, tt.least, tt.most)
		}
		must(t, d.Abandon(t.Context(), r))
	}
	must(t, c.Del(t.Context(), counter).Err())
	r := reserving("x", nonceA)
	r.Reserve = 1_000_000
	g := acquire(t, d, r)
	after := c.Time(t.Context()).Val()
	if end := g.Token + backend.Token(g.Reserved); end > after.Add(3*time.Millisecond).UnixMicro() ||
		g.Reserved == 0 {
		t.Errorf("reserved %d: up to %d, the clock is at %d", g.Reserved, end, after.UnixMicro())
	}
}
