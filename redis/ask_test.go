package redis

import (
	"crypto/rand"
	"errors"
	"net"
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

// A place in the queue counts for a claim that hears of it alone.
func TestQueuedWithoutAHub(t *testing.T) {
	t.Parallel()
	p := &place{claim: &backend.Claim{}}
	for _, ticket := range []any{"1", "", nil} {
		err := p.queued([]any{"queued", ticket, int64(0), int64(0), int64(0)}, backend.Now())
		if err == nil || backend.Final(err) || p.claim.Queued {
			t.Errorf("ticket %v: got %v, queued: %v, want an unexpected reply", ticket, err, p.claim.Queued)
		}
	}
}

// A push grants by the last ask that was answered, unless that is so old that too little would be left of the claim, or
// of a short lease.
func TestPushByAnOldAsk(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ttl, age time.Duration
		ask      int64
		want     bool
	}{
		{time.Minute, -time.Minute, 7, true},
		{time.Minute, claim/2 + time.Millisecond, 7, false},
		{time.Second, time.Second/2 + time.Millisecond, 7, false},
		{time.Minute, -time.Minute, 6, false},
		{time.Minute, -time.Minute, 8, false},
	} {
		p := &place{
			claim:    &backend.Claim{Request: &backend.Request{TTL: tt.ttl}},
			answered: 7, since: backend.Now().Add(-tt.age),
		}
		p.given.Store(&given{ask: tt.ask, token: 5})
		if got := p.taken(); got != tt.want || got != (p.claim.Token == 5) {
			t.Errorf("%+v: got %v, token %d", tt, got, p.claim.Token)
		}
	}
}

// A request for which no sentinel tells of a server was not sent, whatever the sentinels say or do.
func TestUnsentWithoutASentinel(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_ = c.Close()
		}
	}()
	c := goredis.NewFailoverClient(&goredis.FailoverOptions{
		MasterName: "m", SentinelAddrs: []string{l.Addr().String()}, DialerRetries: 1, MaxRetries: -1,
	})
	t.Cleanup(func() { _ = c.Close() })
	if err := c.Ping(t.Context()).Err(); err == nil || !unsent(err) {
		t.Errorf("got %v, want that it was not sent", err)
	}
}

// A waiter that is granted the lock, or gives it up, is told of no more pushes: the subscription ends once nobody is.
func TestListensWhileItWaits(t *testing.T) {
	t.Parallel()
	s, _ := inside(t)
	t.Cleanup(func() { _ = s.Close() })
	claim := func(nonce string) *backend.Claim {
		return &backend.Claim{Request: &backend.Request{
			Name: "n", Nonce: strings.Repeat(nonce, 32), Owner: "o", TTL: time.Minute, Wait: true,
		}}
	}
	first, second := claim("a"), claim("b")
	for i, c := range []*backend.Claim{first, second} {
		if err := s.Enter(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		p := c.Place.(*place)
		if p.listener.Hub() == nil {
			t.Fatal("a waiter has no hub")
		}
		s.Ask(t.Context(), []*backend.Claim{c})
		if waits := p.listener.Hub() != nil; waits != (i == 1) || waits != errors.Is(c.Err, backend.ErrLocked) {
			t.Errorf("claim %d: got %v, and it listens: %v", i, c.Err, waits)
		}
	}
	second.Leaving = true
	s.Ask(t.Context(), []*backend.Claim{second})
	if second.Err != nil || second.Place.(*place).listener.Hub() != nil {
		t.Errorf("it has left: got %v, and it listens yet", second.Err)
	}
}

// A copy of a Break that arrives late does not free the next holder's lock, though nothing tells it from the one
// before.
func TestLateCopyOfABreak(t *testing.T) {
	t.Parallel()
	s, c := inside(t)
	k := keysOf(s.prefix + "n")
	for i, want := range []int64{0, 1} {
		if err := c.Set(t.Context(), k.lock, "locked", 0).Err(); err != nil {
			t.Fatal(err)
		}
		held, err := s.breaks(t.Context(), k, "", nil)
		if err == nil {
			_, err = s.breaks(t.Context(), k, "one", held.([]any))
		}
		if n := c.Exists(t.Context(), k.lock).Val(); err != nil || n != want {
			t.Errorf("copy %d of Break: got %v, and %d keys of the lock, want %d", i+1, err, n, want)
		}
	}
}

// inside returns a store, and the client that it is over.
func inside(t *testing.T) (*store, *goredis.Client) {
	c := goredis.NewClient(&goredis.Options{Addr: servers.Redis(t, servers.RedisOptions{}).Addr()})
	t.Cleanup(func() { _ = c.Close() })
	d, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d.store, c
}

// A Break that arrives late frees the lock of those alone who held it when it asked.
func TestBreakOfThoseWhoHeld(t *testing.T) {
	t.Parallel()
	s, c := inside(t)
	d := core.Of(s)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	hold := func(nonce string, mode backend.Mode) *core.Hold {
		t.Helper()
		r := &backend.Request{Name: "n", Nonce: strings.Repeat(nonce, 32), Owner: nonce, TTL: time.Minute, Mode: mode}
		g, err := d.Acquire(t.Context(), r)
		must(err)
		return &core.Hold{Request: r, Grant: g}
	}
	k := keysOf(s.prefix + "n")
	redisson := func(field string) { must(c.HSet(t.Context(), k.lock, field, 1).Err()) }
	set := func(value string) { must(c.Set(t.Context(), k.lock, value, 0).Err()) }
	gone := func() { must(c.Del(t.Context(), k.lock).Err()) }
	var a, b *core.Hold
	for _, tt := range []struct {
		name   string
		before func()
		after  func()
		left   string // who holds it then
	}{
		{
			"nobody after one",
			func() { a = hold("a", backend.Exclusive) }, func() { must(d.Release(t.Context(), a)) }, "",
		},
		{"one after another", func() { a = hold("a", backend.Exclusive) }, func() {
			must(d.Release(t.Context(), a))
			b = hold("b", backend.Exclusive)
		}, "b"},
		{"one after nobody", func() {}, func() { b = hold("b", backend.Exclusive) }, "b"},
		{"a reader after a writer", func() { a = hold("a", backend.Exclusive) }, func() {
			must(d.Release(t.Context(), a))
			b = hold("b", backend.Reader)
		}, "b"},
		{"a reader after another", func() { a = hold("a", backend.Reader); hold("c", backend.Reader) }, func() {
			must(d.Release(t.Context(), a))
			b = hold("b", backend.Reader)
		}, "b"},
		{"a group without holds", func() { set("shared:r:7") }, func() {}, ""},
		{"a stranger", func() { set("theirs") }, func() {}, ""},
		{"another stranger", func() { set("theirs") }, func() { set("another's") }, "stranger"},
		{"Redisson", func() { redisson("0-0-0-0-0:1") }, func() {}, ""},
		{
			"Redisson, others",
			func() { redisson("0-0-0-0-0:1") }, func() { gone(); redisson("0-0-0-0-0:2") }, "stranger",
		},
	} {
		tt.before()
		held, err := s.breaks(t.Context(), k, "", nil)
		must(err)
		tt.after()
		reply, err := s.breaks(t.Context(), k, rand.Text(), held.([]any)[1:])
		must(err)
		i, err := d.Inspect(t.Context(), "n")
		must(err)
		if reply != int64(1) || i.Held != (tt.left != "") || tt.left == "b" && (i.Owner != "b" || i.Holders > 1) {
			t.Errorf("%s: got %v and %+v, want it held by %q", tt.name, reply, i, tt.left)
		}
		if tt.left == "b" {
			must(d.Release(t.Context(), b))
		} else {
			gone()
		}
		must(c.FlushAll(t.Context()).Err())
	}
}

// A user with rights to some names has those, also where what it may not have is asked for in the same call, and keeps
// what it holds of them.
func TestRightsToSomeNames(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Users: []string{"u on >p ~* &* +@all"}})
	admin := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = admin.Close() })
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Username: "u", Password: "p"})
	t.Cleanup(func() { _ = c.Close() })
	d, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	claims := func(digit string, mode backend.Mode) (cs []*backend.Claim) {
		for _, name := range []string{"mine-1", "other-1", "mine-2", "mine-3", "other-2"} {
			cs = append(cs, &backend.Claim{Request: &backend.Request{
				Name: name + digit, Nonce: strings.Repeat(digit, 32), Owner: "o", TTL: time.Minute, Mode: mode,
			}})
		}
		return cs
	}
	check := func(what string, cs []*backend.Claim, err func(i int) error, others error) {
		t.Helper()
		for i, c := range cs {
			want := others
			if strings.HasPrefix(c.Name, "mine") {
				want = nil
			}
			if got := err(i); !errors.Is(got, want) {
				t.Errorf("%s of %s: got %v, want %v", what, c.Name, got, want)
			}
		}
	}
	kinds := map[string][]*backend.Claim{"1": claims("1", backend.Exclusive), "2": claims("2", backend.Reader)}
	for _, cs := range kinds {
		d.Ask(t.Context(), cs)
		check("the first Ask", cs, func(i int) error { return cs[i].Err }, nil)
	}
	err = admin.Do(t.Context(), "ACL", "SETUSER", "u", "resetkeys", "~fencelock:mine*", "~fl*").Err()
	if err != nil {
		t.Fatal(err)
	}
	for digit, cs := range kinds {
		for _, extend := range []bool{true, false} {
			errs := d.Keep(t.Context(), cs, extend)
			check("Keep", cs, func(i int) error { return errs[i] }, backend.ErrInvalid)
		}
		mixed := claims(string(digit[0]+2), cs[0].Mode)
		for _, c := range cs {
			c.Held, c.Leaving, c.Err = true, true, nil
		}
		mixed = append(mixed, cs...)
		d.Ask(t.Context(), mixed)
		check("Ask", mixed, func(i int) error { return mixed[i].Err }, backend.ErrInvalid)
		for _, c := range mixed[:len(cs)] {
			if (c.Token > 0) != (c.Err == nil) {
				t.Errorf("%s: got token %d, %v", c.Name, c.Token, c.Err)
			}
		}
	}
}
