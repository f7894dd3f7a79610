package redis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// What takes the key away behind the holder's back is seen within a second.
func TestRevocation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		revoke func(*testing.T, *servers.Server, *goredis.Client)
	}{
		{"DEL", func(t *testing.T, _ *servers.Server, c *goredis.Client) {
			must(t, c.Del(t.Context(), key("x")).Err())
		}},
		{"SET by another", func(t *testing.T, _ *servers.Server, c *goredis.Client) {
			must(t, c.Set(t.Context(), key("x"), ours, time.Minute).Err())
		}},
		{"FLUSHALL", func(t *testing.T, _ *servers.Server, c *goredis.Client) {
			must(t, c.FlushAll(t.Context()).Err())
		}},
		{"Break", func(t *testing.T, s *servers.Server, _ *goredis.Client) {
			must(t, open(t, s.URL()).Break(t.Context(), "x"))
		}},
		{"restart without data", func(t *testing.T, s *servers.Server, _ *goredis.Client) {
			must(t, s.Restart(false))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := servers.Redis(t, servers.RedisOptions{})
			c := foreign(t, s)
			l := open(t, s.URL())
			auto := lock(t, l.Mutex("x"))
			manual := lock(t, l.Mutex("y", fencelock.WithManualRenew()))
			tt.revoke(t, s, c)
			began := time.Now()
			at := lost(t, auto, 2*time.Second, fencelock.Revoked)
			t.Logf("told after %v", at.Sub(began))
			if at.Sub(began) > time.Second {
				t.Errorf("told after %v, want within a second", at.Sub(began))
			}
			want(t, "Unlock", auto.Unlock(t.Context()), fencelock.ErrLost)
			want(t, "Renew", auto.Renew(t.Context()), fencelock.ErrLost)
			must(t, c.Del(t.Context(), key("x")).Err())
			again := lock(t, l.Mutex("x")) // the same name works again
			if again.Token() <= auto.Token() {
				t.Errorf("token after the loss: got %d, want more than %d", again.Token(), auto.Token())
			}
			unlock(t, again)
			if c.Exists(t.Context(), key("y")).Val() == 1 {
				must(t, manual.Err())
				unlock(t, manual)
			} else {
				lost(t, manual, time.Second, fencelock.Revoked)
			}
		})
	}
}

// A look at as many holds as the engine asks about at once tells each apart: ours, another's, gone, and a key of
// another type.
func TestLookAtMany(t *testing.T) {
	t.Parallel()
	c := foreign(t, servers.Redis(t, servers.RedisOptions{}))
	d, err := redis.New(c, nil)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	var cs []*backend.Claim
	keys := c.Pipeline()
	for i := range 2000 {
		name, nonce := fmt.Sprint(i), fmt.Sprintf("%032x", i)
		cs = append(cs, &backend.Claim{Request: &backend.Request{Name: name, Nonce: nonce, TTL: time.Minute}})
		switch i % 100 {
		case 0:
			keys.Set(t.Context(), key(name), fmt.Sprintf("%032x:7:o", i+1), 0)
		case 50:
			keys.LPush(t.Context(), key(name), nonce)
		case 99: // gone
		default:
			keys.Set(t.Context(), key(name), nonce+":7:o", 0)
		}
	}
	_, err = keys.Exec(t.Context())
	must(t, err)
	for i, err := range d.Keep(t.Context(), cs, false) {
		ours := i%100 != 0 && i%100 != 50 && i%100 != 99
		if ours != (err == nil) || err != nil && !errors.Is(err, backend.ErrLost) {
			t.Errorf("hold %d: got %v, want ours: %v", i, err, ours)
		}
	}
}

func TestBreakHandsOver(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	wait := queue(t, c, open(t, s.URL()), "x", 1)
	operator := open(t, s.URL())
	must(t, operator.Break(t.Context(), "x"))
	next := wait.Granted(t, time.Second)
	if next.Token() <= le.Token() {
		t.Errorf("token after Break: got %d, want more than %d", next.Token(), le.Token())
	}
	lost(t, le, time.Second, fencelock.Revoked)
	want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrLost)
	must(t, next.Err())
	unlock(t, next)
}

// The mark that a lock was taken away lives longer than the lease, for a release that is sent again late.
func TestMarkOutlivesTheLease(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Minute
	s := servers.Redis(t, servers.RedisOptions{})
	c, d, other := foreign(t, s), closing(t, s.URL()), closing(t, s.URL())
	abandon := func(r backend.Request) error { // as BreakHold, whose look saw the hold before it was renewed
		r.TTL = time.Second
		return other.Abandon(t.Context(), &r)
	}
	for i, tt := range []struct {
		name string
		mode backend.Mode
		end  func(*core.Hold) error
	}{
		{"Break", backend.Exclusive, func(h *core.Hold) error { return other.Break(t.Context(), h.Name) }},
		{"Break of a group", backend.Reader, func(h *core.Hold) error { return other.Break(t.Context(), h.Name) }},
		{"BreakHold", backend.Reader, func(h *core.Hold) error { return abandon(*h.Request) }},
		{"BreakHold twice", backend.Permit, func(h *core.Hold) error {
			return errors.Join(abandon(*h.Request), abandon(*h.Request))
		}},
		{"a deleted key", backend.Exclusive, func(h *core.Hold) error {
			must(t, c.Del(t.Context(), key(h.Name)).Err())
			want(t, "Release", d.Release(t.Context(), h), backend.ErrLost)
			return nil
		}},
	} {
		r := request("x", nonce("12345"[i]), "")
		r.TTL, r.Mode = ttl, tt.mode
		if r.Mode == backend.Permit {
			r.Limit = 2
		}
		h := &core.Hold{Request: r, Grant: acquire(t, d, r)}
		held := c.PTTL(t.Context(), key("x")).Val()
		must(t, tt.end(h))
		mark := redis.OursOf(key("x")) + "x" + r.Nonce
		if left, v := c.PTTL(t.Context(), mark).Val(), c.Get(t.Context(), mark).Val(); v != "lost" || left < held {
			t.Errorf("%s: the mark is %q for %v, want it lost for more than %v", tt.name, v, left, held)
		}
	}
}

// A request of a Break that comes late frees no later holder's lock.
func TestLateBreak(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, d := foreign(t, s), closing(t, s.URL())
	p, url := proxied(t, s)
	operator := closing(t, url)
	must(t, operator.Break(t.Context(), "warm")) // the server has the script
	r := request("x", nonceA, "")
	h := &core.Hold{Request: r, Grant: acquire(t, d, r)}
	p.Set(faultproxy.Mode{HoldRequests: true})
	if err := operator.Break(within(t, time.Second), "x"); err == nil {
		t.Error("a Break without an answer is no error")
	}
	must(t, d.Release(t.Context(), h))
	next := request("x", nonceB, "")
	acquire(t, d, next)
	scripts := func() int64 { return calls(t, c)["evalsha"] + calls(t, c)["eval"] }
	before := scripts()
	p.Set(faultproxy.Mode{})
	await(t, 5*time.Second, "the request has arrived", func() bool { return scripts() > before })
	if v := c.Get(t.Context(), key("x")).Val(); !strings.HasPrefix(v, nonceB) {
		t.Errorf("the key of the lock holds %q, want the next holder's nonce", v)
	}
	must(t, d.Abandon(t.Context(), next))
}

// A renewal never brings back what is gone.
func TestRenewDoesNotCreate(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	l := open(t, s.URL())
	for _, tt := range []struct {
		name string
		take func() error
		keys int64
	}{
		{"deleted", func() error { return c.Del(t.Context(), key("x")).Err() }, 0},
		{"another's", func() error { return c.Set(t.Context(), key("x"), ours, time.Minute).Err() }, 1},
	} {
		le := lock(t, l.Mutex("x", fencelock.WithManualRenew()))
		must(t, tt.take())
		want(t, tt.name+": Renew", le.Renew(t.Context()), fencelock.ErrLost)
		if n := c.Exists(t.Context(), key("x")).Val(); n != tt.keys {
			t.Errorf("%s: lock keys after Renew: got %d, want %d", tt.name, n, tt.keys)
		}
		if n := c.PTTL(t.Context(), key("x")).Val(); tt.keys == 1 && n <= 30*time.Second {
			t.Errorf("%s: Renew set another's expiry to %v", tt.name, n)
		}
		must(t, c.Del(t.Context(), key("x")).Err())
	}
}

// The holder's network, or the server, is silent for longer than the TTL: the holder is told at its
// Deadline, before anybody else can have the lock.
func TestHolderIsToldBeforeTheNextIsGranted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		silence func(*testing.T, *servers.Server, *faultproxy.Proxy)
		speak   func(*testing.T, *servers.Server, *faultproxy.Proxy)
	}{
		{
			"holder black-holed",
			func(_ *testing.T, _ *servers.Server, p *faultproxy.Proxy) { p.Set(faultproxy.BlackHole) },
			func(_ *testing.T, _ *servers.Server, p *faultproxy.Proxy) { p.Set(faultproxy.Mode{}) },
		},
		{
			"holder's replies held",
			func(_ *testing.T, _ *servers.Server, p *faultproxy.Proxy) { p.Set(faultproxy.Mode{HoldReplies: true}) },
			func(_ *testing.T, _ *servers.Server, p *faultproxy.Proxy) { p.Set(faultproxy.Mode{}) },
		},
		{
			"server stopped",
			func(t *testing.T, s *servers.Server, _ *faultproxy.Proxy) { must(t, s.Pause()) },
			func(t *testing.T, s *servers.Server, _ *faultproxy.Proxy) { must(t, s.Resume()) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := servers.Redis(t, servers.RedisOptions{})
			c := foreign(t, s)
			p, url := proxied(t, s)
			const ttl = 1200 * time.Millisecond
			le := lock(t, open(t, url, fencelock.WithTTL(ttl)).Mutex("x"))
			wait := queue(t, c, open(t, s.URL()), "x", 1)
			tt.silence(t, s, p)
			deadline := le.Deadline()
			told := lost(t, le, 3*time.Second, fencelock.Expired)
			if late := told.Sub(deadline); late > 2*ttl/3 || late < -time.Millisecond {
				t.Errorf("told %v after the Deadline at the time of the fault", late)
			}
			if tt.name == "server stopped" {
				<-time.After(300 * time.Millisecond) // longer than the TTL
				tt.speak(t, s, p)
			}
			next := wait.Granted(t, 5*time.Second)
			margin := wait.At.Sub(le.Deadline()) // when the lease ends, however late this test hears of it
			t.Logf("margin: the next was granted %v after the lease ended", margin)
			if margin <= 0 || next.Token() <= le.Token() {
				t.Errorf("margin %v, tokens %d and %d", margin, le.Token(), next.Token())
			}
			tt.speak(t, s, p)
			want(t, "Unlock of the old lease", le.Unlock(t.Context()), fencelock.ErrLost)
			must(t, next.Renew(t.Context())) // what arrived late touched nothing
			unlock(t, next)
		})
	}
}

func TestTokensRise(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	c := foreign(t, s)
	l := open(t, s.URL())
	var last fencelock.Token
	cycle := func(what string, opts ...fencelock.Option) {
		t.Helper()
		le := lock(t, l.Mutex("x", opts...))
		if le.Token() <= last || le.Token() >= 1<<53 {
			t.Fatalf("%s: got token %d, want more than %d and less than 2^53", what, le.Token(), last)
		}
		last = le.Token()
		unlock(t, le)
	}
	for i := range 500 {
		cycle(fmt.Sprint("cycle ", i))
	}
	must(t, c.FlushAll(t.Context()).Err())
	cycle("after FLUSHALL")
	must(t, s.Kill())
	must(t, s.Start())
	cycle("after kill -9")
	must(t, s.Restart(false))
	cycle("after a restart without data")
	cycle("with a floor below", fencelock.WithFloor(7))
	floor := last + 1_000_000_000
	cycle("with a floor above", fencelock.WithFloor(floor))
	if last != floor+1 {
		t.Errorf("token over the floor %d: got %d, want the next number", floor, last)
	}
	cycle("after a floor far ahead")
	bad := l.Mutex("x", fencelock.WithFloor(last+2*backend.FloorAhead))
	_, err := bad.TryLock(t.Context())
	want(t, "a floor hours ahead", err, fencelock.ErrInvalid)

	// A counter that some program has written to: its numbers end, and none comes twice.
	const high = 1<<53 - 3
	must(t, c.Set(t.Context(), redis.OursOf(key("x"))+"c", high-1, 0).Err())
	for last < 1<<53-1 {
		cycle("near the end")
	}
	_, err = l.Mutex("x").TryLock(t.Context())
	want(t, "at the end", err, fencelock.ErrInvalid)
	if n := c.Exists(t.Context(), key("x")).Val(); n != 0 {
		t.Error("a lock without a token was left behind")
	}
	d := closing(t, s.URL())
	for _, text := range []string{"abc", "nan", "-7", "1e3", ""} {
		must(t, c.Set(t.Context(), redis.OursOf(key("x"))+"c", text, 0).Err())
		what := fmt.Sprintf("with %q as the counter", text)
		_, err = l.Mutex("x").TryLock(t.Context())
		want(t, "TryLock "+what, err, fencelock.ErrInvalid)
		_, err = l.Semaphore("x", 2).TryAcquire(t.Context())
		want(t, "TryAcquire "+what, err, fencelock.ErrInvalid)
		_, err = bad.TryLock(t.Context())
		want(t, "a floor hours ahead "+what, err, fencelock.ErrInvalid)
		_, err = d.Acquire(t.Context(), reserving("x", nonce('e')))
		want(t, "Acquire of tokens "+what, err, fencelock.ErrInvalid)
		want(t, "Raise "+what, d.Raise(t.Context(), 1), fencelock.ErrInvalid)
		if n := c.Exists(t.Context(), key("x")).Val(); n != 0 {
			t.Errorf("a lock was left behind %s", what)
		}
	}
	must(t, c.Del(t.Context(), redis.OursOf(key("x"))+"c").Err())
	r := request("x", nonce('f'), "")
	h := &core.Hold{Request: r, Grant: acquire(t, d, r)}
	must(t, c.Set(t.Context(), redis.OursOf(key("x"))+"c", "nan", 0).Err())
	want(t, "RaiseHeld with no number as the counter", d.RaiseHeld(t.Context(), h, 1), fencelock.ErrInvalid)
	must(t, d.Release(t.Context(), h))
	le := lock(t, l.Mutex("y"))
	if le.Token() >= high {
		t.Errorf("token of a lock of another slot, whose counter has nothing to do with that: got %d", le.Token())
	}
	unlock(t, le)
}

// A waiter's grant keeps its token through the confirmation, and heeds its floor.
func TestFloorOfAWaiter(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	floor := le.Token() + 1_000_000_000
	wait := queue(t, c, open(t, s.URL(), fencelock.WithFloor(floor)), "x", 1)
	unlock(t, le)
	next := wait.Granted(t, time.Second)
	if next.Token() <= floor {
		t.Errorf("token over the floor %d: got %d", floor, next.Token())
	}
	info, err := open(t, s.URL()).Inspect(t.Context(), "x")
	must(t, err)
	if info.Token != next.Token() {
		t.Errorf("Inspect shows token %d, the lease has %d", info.Token, next.Token())
	}
	unlock(t, next)
}
