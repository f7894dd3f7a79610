package redis

import (
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
)

// Claims that were judged by other gates than the store's are not granted with those that go
// together with them.
func TestClaimsOfOtherGates(t *testing.T) {
	t.Parallel()
	c := goredis.NewClient(&goredis.Options{Addr: servers.Redis(t, servers.RedisOptions{}).Addr()})
	t.Cleanup(func() { _ = c.Close() })
	d, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	var cs []*backend.Claim
	for _, name := range []string{"a", "b", "c", "d"} {
		cs = append(cs, &backend.Claim{Request: &backend.Request{
			Name: name, Nonce: strings.Repeat(name, 32), Owner: "o", TTL: time.Minute,
		}})
	}
	cs[1].Gates = &backend.Record{Key: backend.GateKey, Version: "0123456789abcdef"}
	cs[3].Held, cs[3].Leaving = true, true
	d.store.Ask(t.Context(), cs)
	for i, want := range []error{nil, backend.ErrGates, nil, backend.ErrLost} {
		if !errors.Is(cs[i].Err, want) || cs[i].Err != nil && want == nil {
			t.Errorf("%q: got %v, want %v", cs[i].Name, cs[i].Err, want)
		}
		if got := cs[i].Token > 0; got != (want == nil) {
			t.Errorf("%q: got token %d", cs[i].Name, cs[i].Token)
		}
	}
	if cs[1].Gates != nil {
		t.Errorf("the gates of the store: got %v, want none", cs[1].Gates)
	}
}

// A copy of a Break that arrives late does not free the next holder's lock.
func TestLateCopyOfABreak(t *testing.T) {
	t.Parallel()
	c := goredis.NewClient(&goredis.Options{Addr: servers.Redis(t, servers.RedisOptions{}).Addr()})
	t.Cleanup(func() { _ = c.Close() })
	d, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	k := keysOf(d.store.prefix + "n")
	for i, want := range []bool{true, false} {
		r := &backend.Request{Name: "n", Nonce: strings.Repeat("ab"[i:i+1], 32), Owner: "o", TTL: time.Minute}
		if _, err := core.Of(d).Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if _, err := d.store.run(t.Context(), breakScript, k.all(*d.gatesIn(k.tag)), k.ours(), claimMillis,
			d.store.publish, d.store.plain(), "one"); err != nil {
			t.Fatal(err)
		}
		if i, err := core.Of(d).Inspect(t.Context(), "n"); err != nil || i.Held == want {
			t.Errorf("after a copy of Break: got held %v, %v, want %v", i.Held, err, !want)
		}
	}
}
