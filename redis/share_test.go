package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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

// line begins to wait, and returns when the server has n waiters.
func line(t *testing.T, c *goredis.Client, lock locks, name string, n int64) *pending {
	t.Helper()
	p := begin(t, lock)
	await(t, 10*time.Second, fmt.Sprintf("%d in the queue for %q", n, name), func() bool {
		return queued(t, c, name) == n
	})
	return p
}

// A program that knows the plain recipe alone is kept out by readers, and keeps them out.
func TestStrangerBesideReaders(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	a, b := open(t, s.URL()), open(t, s.URL())
	take := func() bool {
		args := goredis.SetArgs{Mode: "NX", TTL: time.Minute}
		return c.SetArgs(t.Context(), key("x"), "a stranger", args).Err() == nil
	}
	for _, kind := range []struct{ one, two locks }{
		{a.RWMutex("x").RLock, b.RWMutex("x").RLock},
		{a.Semaphore("x", 3).Acquire, b.Semaphore("x", 3).Acquire},
	} {
		first, second := get(t, kind.one), get(t, kind.two)
		if kind := c.Type(t.Context(), key("x")).Val(); kind != "string" || take() {
			t.Fatalf("beside two holders the key is a %s, which a stranger must not get", kind)
		}
		unlock(t, first)
		if take() {
			t.Fatal("a stranger got in beside the second holder")
		}
		unlock(t, second)
		if !take() {
			t.Fatal("the name is free, and the stranger cannot have it")
		}
		wait := line(t, c, kind.one, "x", 1)
		_, err := b.RWMutex("x").TryRLock(t.Context())
		want(t, "TryRLock beside a stranger", err, fencelock.ErrLocked)
		must(t, c.Del(t.Context(), key("x")).Err())
		unlock(t, wait.Granted(t, 2*time.Second))
	}
	awaitClean(t, c, time.Second)
}

// sharing matches asks of groups: they name the slot's counter.
func sharing(name string) func([]byte) bool {
	run := calling(redis.ShareHash, name)
	return func(request []byte) bool { return run(request) && bytes.Contains(request, []byte("}c\r\n")) }
}

func TestLostReplyOfAGroup(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	l, other := open(t, url), open(t, s.URL())
	unlock(t, get(t, l.RWMutex("warm").RLock))
	beside := get(t, other.Semaphore("p", 3).Acquire)
	for name, take := range map[string]locks{"r": l.RWMutex("r").RLock, "p": l.Semaphore("p", 3).Acquire} {
		p.LoseReplyTo(1, sharing(name))
		lostBefore := p.Counts().LostReplies
		le := get(t, take)
		if n := p.Counts().LostReplies - lostBefore; n != 1 {
			t.Errorf("%s: %d replies were lost, want 1", name, n)
		}
		if drawn, err := c.Get(t.Context(), redis.OursOf(key(name))+"c").Int64(); err != nil || drawn != le.Token() {
			t.Errorf("%s: the last token drawn is %d (%v), the lease has %d", name, drawn, err, le.Token())
		}
		want := 1
		if name == "p" {
			want = 2
		}
		if info, err := other.Inspect(t.Context(), name); err != nil || info.Holders != want {
			t.Errorf("%s: got %+v, %v, want %d holders", name, info, err, want)
		}
		unlock(t, le)
	}
	unlock(t, beside)
	awaitTombstones(t, c, time.Second)
}

// A release whose reply is lost is sent again, and is none of another's hold.
func TestLostReplyOfAReleaseOfAGroup(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	l, other := open(t, url), open(t, s.URL())
	beside := get(t, other.Semaphore("p", 2).Acquire)
	le := get(t, l.Semaphore("p", 2).Acquire)
	p.LoseReplyTo(1, calling(redis.ShareHash, "p"))
	unlock(t, le)
	must(t, beside.Renew(t.Context()))
	again := get(t, l.Semaphore("p", 2).TryAcquire)
	_, err := l.Semaphore("p", 2).TryAcquire(t.Context())
	want(t, "a third permit of two", err, fencelock.ErrLocked)
	unlock(t, again)
	unlock(t, beside)
	awaitTombstones(t, c, time.Second)
}

// A release whose first copy never arrives is answered as of a hold that was lost, if that was broken meanwhile.
func TestReleaseOfABrokenHoldIsSentAgain(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	p, url := proxied(t, s)
	l, other := open(t, url, fencelock.WithOwner("broken")), open(t, s.URL(), fencelock.WithOwner("beside"))
	le, beside := get(t, l.RWMutex("x").RLock), get(t, other.RWMutex("x").RLock)
	info, err := other.Inspect(t.Context(), "x")
	must(t, err)
	p.Set(faultproxy.Mode{HoldRequests: true})
	for _, h := range info.Holds {
		if h.Owner == "broken" {
			must(t, other.BreakHold(t.Context(), "x", h.ID))
		}
	}
	unlock(t, beside)
	unlock(t, get(t, other.Mutex("x").Lock))
	done, before := make(chan error, 1), p.Counts().HeldRequests
	go func() { done <- le.Unlock(context.WithoutCancel(t.Context())) }()
	must(t, p.Await(within(t, 5*time.Second), func(c faultproxy.Counts) bool { return c.HeldRequests > before }))
	p.Cut()
	p.Set(faultproxy.Mode{})
	want(t, "Unlock", <-done, fencelock.ErrLost)
}

// A writer that died in the queue keeps the readers behind it out no longer than Traits.DeadWaiter:
// whether its connection ended, or its host vanished. Nothing is released meanwhile.
func TestDeadWaitingWriter(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name string
		mode faultproxy.Mode
	}{{"killed", faultproxy.Mode{Refuse: true}}, {"vanished", faultproxy.BlackHole}} {
		for _, held := range []string{"by a reader", "by a writer first"} {
			t.Run(end.name+", held "+held, func(t *testing.T) {
				t.Parallel()
				s := servers.Redis(t, servers.RedisOptions{})
				c := foreign(t, s)
				a, b, d := open(t, s.URL()), open(t, s.URL()), open(t, s.URL())
				p, url := proxied(t, s)
				n := int64(0)
				var writer, reader *fencelock.Lease
				var next *pending
				if held == "by a reader" {
					reader = get(t, a.RWMutex("x").RLock)
				} else {
					writer = get(t, b.RWMutex("x").Lock)
					next = line(t, c, a.RWMutex("x").RLock, "x", 1)
					n++
				}
				line(t, c, open(t, url).RWMutex("x").Lock, "x", n+1)
				late := line(t, c, d.RWMutex("x").RLock, "x", n+2)
				heard := listeners(t, c)
				p.Set(end.mode)
				if end.mode.Refuse {
					p.Cut()
					await(t, 2*time.Second, "the server sees the end of the connection",
						func() bool { return listeners(t, c) == heard-1 })
				}
				if next != nil {
					unlock(t, writer)
					reader = next.Granted(t, time.Second)
				}
				died := time.Now()
				got := late.Granted(t, a.Traits().DeadWaiter+time.Second)
				took := late.At.Sub(died)
				t.Logf("a reader behind a dead writer: granted after %v", took)
				if most := a.Traits().DeadWaiter; took > most {
					t.Errorf("granted after %v, want %v at most", took, most)
				}
				must(t, reader.Err())
				unlock(t, got)
				unlock(t, reader)
				p.Set(faultproxy.Mode{})
			})
		}
	}
}

// A writer that gives up lets the readers behind it in at once.
func TestWriterThatLeavesServes(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	reader := get(t, over(t, c).RWMutex("x").RLock)
	var seen events
	writer := line(t, c, over(t, c, fencelock.WithObserver(&seen)).RWMutex("x").Lock, "x", 1)
	var late []*pending
	for i := range 3 {
		late = append(late, line(t, c, over(t, c).RWMutex("x").RLock, "x", int64(i+2)))
	}
	writer.Cancel()
	await(t, 2*time.Second, "it has left", func() bool { return seen.count(fencelock.CleanedUp) == 1 })
	if n := c.ZCard(t.Context(), redis.OursOf(key("x"))+"h"+key("x")).Val(); n != 4 {
		t.Errorf("%d read once the writer has left, want all four", n)
	}
	for _, p := range late {
		le := p.Granted(t, time.Second)
		if le.Token() != reader.Token() {
			t.Errorf("got token %d, want that of the reader who is there, %d", le.Token(), reader.Token())
		}
		unlock(t, le)
	}
	unlock(t, reader)
	awaitClean(t, c, time.Second)
}

// One of several ends by its time. Its permit is free then, the others keep theirs, and the key lasts
// as long as the last.
func TestOneOfSeveralExpires(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, d := foreign(t, s), closing(t, s.URL())
	request := func(i int, ttl time.Duration) *backend.Request {
		return &backend.Request{
			Name: "x", Nonce: fmt.Sprintf("%032x", i), Owner: "o", TTL: ttl,
			Mode: backend.Permit, Limit: 3, Lost: func(error) {},
		}
	}
	var hs []*core.Hold
	for i, ttl := range []time.Duration{20 * time.Second, 2 * time.Second, 10 * time.Second} {
		r := request(i, ttl)
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		if g.Slot != i {
			t.Errorf("slot of permit %d: got %d", i, g.Slot)
		}
		hs = append(hs, &core.Hold{Request: r, Grant: g})
	}
	began := time.Now()
	lasts := func(what string, want time.Duration) {
		t.Helper()
		lock, ours := key("x"), redis.OursOf(key("x"))
		for _, k := range []string{lock, ours + "h" + lock, ours + "o" + lock} {
			if left := c.PTTL(t.Context(), k).Val(); left > want || left < want-2*time.Second {
				t.Errorf("%s: %q ends in %v, want %v", what, k, left, want)
			}
		}
	}
	lasts("three permits", 20*time.Second)
	_, err := d.Acquire(t.Context(), request(3, time.Minute))
	want(t, "a fourth", err, backend.ErrLocked)
	wait := begin(t, open(t, s.URL()).Semaphore("x", 3).Acquire)
	le := wait.Granted(t, 4*time.Second)
	if took := wait.At.Sub(began); took < time.Second || took > 3*time.Second {
		t.Errorf("the permit of a dead holder was had after %v, want about its 2 s", took)
	}
	if le.Slot() != 1 || le.Token() <= hs[1].Token {
		t.Errorf("got slot %d and token %d, want slot 1 and more than %d", le.Slot(), le.Token(), hs[1].Token)
	}
	errs := d.Renew(t.Context(), hs)
	if errs[0] != nil || !errors.Is(errs[1], backend.ErrLost) || errs[2] != nil {
		t.Errorf("renewals: got %v, want the second one lost", errs)
	}
	want(t, "the release of the dead one", d.Release(t.Context(), hs[1]), backend.ErrLost)
	unlock(t, le)
	must(t, d.Release(t.Context(), hs[0]))
	lasts("the one of 10 s", 10*time.Second)
	must(t, d.Release(t.Context(), hs[2]))
	awaitTombstones(t, c, time.Second) // the mark of the dead one's release
}

// Many more than one call serves are served one call after the other.
func TestManyAreLetIn(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	const n = 50
	writer := get(t, over(t, c).RWMutex("x").Lock)
	var waits []*pending
	for i := range n {
		waits = append(waits, line(t, c, over(t, c).RWMutex("x").RLock, "x", int64(i+1)))
	}
	last := line(t, c, over(t, c).RWMutex("x").Lock, "x", n+1)
	released := time.Now()
	unlock(t, writer)
	var in []*fencelock.Lease
	var took time.Duration
	for _, p := range waits {
		le := p.Granted(t, 2*time.Second)
		took = max(took, p.At.Sub(released))
		if len(in) > 0 && le.Token() != in[0].Token() {
			t.Errorf("tokens %d and %d, want one", in[0].Token(), le.Token())
		}
		in = append(in, le)
	}
	t.Logf("%d readers were in after %v", n, took)
	if took > time.Second {
		t.Errorf("%d readers were in after %v, want it at once", n, took)
	}
	if last.Over() {
		t.Error("the writer behind them did not wait")
	}
	for _, le := range in {
		unlock(t, le)
	}
	unlock(t, last.Granted(t, time.Second))
	awaitClean(t, c, time.Second)
}

// First come, first served, in every mode: waiters that may hold together do so with their neighbours alone.
func TestModesInOneQueue(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := get(t, over(t, c).Mutex("x").Lock)
	groups := []string{"rr", "w", "r", "ppp", "w", "w", "pp"}
	var waits [][]*pending
	n := int64(0)
	for _, g := range groups {
		var group []*pending
		for _, mode := range g {
			l := over(t, c)
			take := map[rune]locks{
				'r': l.RWMutex("x").RLock, 'w': l.Mutex("x").Lock, 'p': l.Semaphore("x", 3).Acquire,
			}[mode]
			n++
			group = append(group, line(t, c, take, "x", n))
		}
		waits = append(waits, group)
	}
	token := le.Token()
	unlock(t, le)
	for i, group := range waits {
		var in []*fencelock.Lease
		slots := map[int]bool{}
		for _, p := range group {
			le := p.Granted(t, time.Second)
			slots[le.Slot()] = true
			if le.Token() <= token {
				t.Errorf("group %d: token %d after %d", i, le.Token(), token)
			}
			in = append(in, le)
		}
		if groups[i][0] == 'p' && len(slots) != len(group) {
			t.Errorf("group %d: slots %v", i, slots)
		}
		if i+1 < len(waits) && waits[i+1][0].Over() {
			t.Errorf("group %d, %s, holds beside group %d, %s", i+1, groups[i+1], i, groups[i])
		}
		for _, le := range in {
			token = max(token, le.Token())
			unlock(t, le)
		}
	}
	awaitClean(t, c, time.Second)
}

// A floor that is not below the token of those who read begins a new one, and leaves theirs.
func TestReaderWithAFloor(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	a, b := open(t, s.URL()), open(t, s.URL())
	first := get(t, a.RWMutex("x").RLock)
	floor := first.Token() + 1000
	second := get(t, b.RWMutex("x", fencelock.WithFloor(floor)).RLock)
	third := get(t, open(t, s.URL()).RWMutex("x").RLock)
	if second.Token() <= floor || third.Token() != second.Token() {
		t.Errorf("tokens %d, with a floor of %d %d, then %d", first.Token(), floor, second.Token(), third.Token())
	}
	for _, le := range []*fencelock.Lease{second, third, first} {
		must(t, le.Renew(t.Context()))
		unlock(t, le)
	}
	writer := get(t, a.RWMutex("x").Lock)
	if writer.Token() <= third.Token() {
		t.Errorf("a writer's token %d after %d", writer.Token(), third.Token())
	}
	unlock(t, writer)
}

// What some program does to the keys makes nobody a holder beside others.
func TestKeysOfAGroupAreDeleted(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	a, b := open(t, s.URL()), open(t, s.URL())
	x, y := get(t, a.RWMutex("x").RLock), get(t, a.RWMutex("y").RLock)

	must(t, c.Del(t.Context(), key("x")).Err())
	next := get(t, b.RWMutex("x").RLock)
	lost(t, x, 2*time.Second, fencelock.Revoked)
	if info, err := b.Inspect(t.Context(), "x"); err != nil || info.Holders != 1 {
		t.Errorf("got %+v, %v, want the new reader alone", info, err)
	}
	unlock(t, next)

	must(t, c.Del(t.Context(), redis.OursOf(key("y"))+"h"+key("y")).Err())
	for _, try := range []locks{b.RWMutex("y").TryRLock, b.Mutex("y").TryLock, b.Semaphore("y", 2).TryAcquire} {
		_, err := try(t.Context())
		want(t, "a try beside a marker without holds", err, fencelock.ErrLocked)
	}
	lost(t, y, 2*time.Second, fencelock.Revoked)
	if info, err := b.Inspect(t.Context(), "y"); err != nil || !info.Held || info.Holders != 0 {
		t.Errorf("got %+v, %v, want it held by nobody who is known", info, err)
	}
	must(t, b.Break(t.Context(), "y"))
	unlock(t, get(t, b.Mutex("y").TryLock))
	awaitTombstones(t, c, time.Second)
}

// A server without memory renews and releases.
func TestGroupWithoutMemory(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	const ttl = 1500 * time.Millisecond
	a, b := open(t, s.URL(), fencelock.WithTTL(ttl)), open(t, s.URL(), fencelock.WithTTL(3*ttl))
	ls := []*fencelock.Lease{
		get(t, a.RWMutex("x").RLock), get(t, b.RWMutex("x").RLock), get(t, a.Semaphore("y", 2).Acquire),
	}
	must(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := b.RWMutex("z").TryRLock(within(t, 300*time.Millisecond))
	if err == nil {
		t.Error("a lock was granted without memory for it")
	}
	<-time.After(2 * ttl)
	for _, le := range ls {
		must(t, le.Err())
		unlock(t, le)
	}
	must(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	unlock(t, get(t, b.Mutex("x").Lock))
	awaitTombstones(t, c, 2*time.Second)
}

// A push gives a permit whole, with its slot, and costs the waiter no request but the renewal. The gates
// are compared.
func TestPushOfAPermit(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	a, b, d := over(t, c), over(t, c), over(t, c)
	first, second := get(t, a.Semaphore("x", 2).Acquire), get(t, b.Semaphore("x", 2).Acquire)
	wait := line(t, c, d.Semaphore("x", 2).Acquire, "x", 1)
	before := calls(t, c)["evalsha"]
	unlock(t, first)
	le := wait.Granted(t, time.Second)
	if le.Slot() != 0 || le.Token() <= second.Token() {
		t.Errorf("got slot %d and token %d, want slot 0 and more than %d", le.Slot(), le.Token(), second.Token())
	}
	await(t, time.Second, "the renewal", func() bool {
		return c.PTTL(t.Context(), redis.OursOf(key("x"))+"h"+key("x")).Val() > 5*time.Second
	})
	if n := calls(t, c)["evalsha"] - before; n > 4 { // the release, the renewal, and looks of the background
		t.Errorf("a hand-over took %d scripts", n)
	}
	unlock(t, le)
	unlock(t, second)

	g := closing(t, s.URL())
	writer := get(t, a.RWMutex("y").Lock)
	reader := line(t, c, b.RWMutex("y").RLock, "y", 1)
	must(t, g.SetGate(t.Context(), closedGate("y"), 0))
	unlock(t, writer)
	<-reader.Done
	var gate *backend.GateError
	if !errors.As(reader.Err, &gate) {
		t.Errorf("a reader behind a gate that was closed meanwhile: got %v, want the gate's refusal", reader.Err)
	}
	_, err := d.Semaphore("y", 2).TryAcquire(t.Context())
	if !errors.As(err, &gate) {
		t.Errorf("a permit behind a closed gate: got %v, want the gate's refusal", err)
	}
}

// The rights that the documentation names are enough.
func TestRightsForGroups(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Users: []string{"documented on >p " + rights}})
	url := asUser(s, "documented", "p")
	a, b := open(t, url), open(t, url)
	for _, kind := range []struct{ one, two locks }{
		{a.RWMutex("x").RLock, b.RWMutex("x").RLock},
		{a.Semaphore("x", 2).Acquire, b.Semaphore("x", 2).Acquire},
	} {
		first, second := get(t, kind.one), get(t, kind.two)
		must(t, first.Renew(t.Context()))
		writer := begin(t, b.Mutex("x").Lock)
		waiters(t, a, "x", 1)
		unlock(t, first)
		unlock(t, second)
		unlock(t, writer.Granted(t, 2*time.Second))
	}
	must(t, a.Break(t.Context(), "x"))
}

// Groups on a cluster: renewed, handed on, broken and listed, in several slots.
func TestGroupsOnACluster(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 3})
	c := clusterClient(t, cl)
	const ttl = 3 * time.Second
	a, b, d := open(t, cl.URL(), fencelock.WithTTL(ttl)), open(t, cl.URL(), fencelock.WithTTL(ttl)), open(t, cl.URL())
	other := open(t, cl.URL()) // in a the reader might join the one that holds
	names, _ := spread(t, cl, c, 2)
	names = append(names, "{}", "{a}b", "é{ü}")
	var held [][]*fencelock.Lease
	var writers, late []*pending
	for _, name := range names {
		held = append(held, []*fencelock.Lease{
			get(t, a.RWMutex(name).RLock), get(t, b.RWMutex(name).RLock),
			get(t, a.Semaphore(name+"/p", 2).Acquire), get(t, b.Semaphore(name+"/p", 2).Acquire),
		})
		writers = append(writers, begin(t, d.RWMutex(name).Lock))
		waiters(t, a, name, 1)
		late = append(late, begin(t, other.RWMutex(name).RLock))
		waiters(t, d, name, 2)
	}
	seen := map[string]fencelock.Info{}
	for info, err := range d.List(t.Context(), "") {
		must(t, err)
		seen[info.Name] = info
	}
	for _, name := range names {
		if i := seen[name]; i.Holders != 2 || i.Mode != fencelock.Reader || i.Waiters != 2 {
			t.Errorf("List: got %+v", i)
		}
		if i := seen[name+"/p"]; i.Holders != 2 || i.Mode != fencelock.Permit {
			t.Errorf("List: got %+v", i)
		}
	}
	<-time.After(ttl * 3 / 2)
	for i, name := range names {
		for _, le := range held[i] {
			must(t, le.Err())
		}
		unlock(t, held[i][0])
		unlock(t, held[i][1])
		w := writers[i].Granted(t, time.Second)
		unlock(t, w)
		r := late[i].Granted(t, time.Second)
		if w.Token() <= held[i][0].Token() || r.Token() <= w.Token() {
			t.Errorf("%q: tokens %d, %d and %d", name, held[i][0].Token(), w.Token(), r.Token())
		}
		must(t, d.Break(t.Context(), name+"/p"))
		unlock(t, r)
	}
	for i := range names {
		lost(t, held[i][2], 2*time.Second, fencelock.Revoked)
		lost(t, held[i][3], 2*time.Second, fencelock.Revoked)
	}
	for _, s := range cl.Servers() {
		awaitTombstones(t, foreign(t, s), 2*time.Second)
	}
}

// On a cluster nobody but the count of a sharded push tells that a waiter has died. One that has is dropped at
// the head before its turn.
func TestDeadWaitingWriterOnACluster(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 2})
	a, b := open(t, cl.URL()), open(t, cl.URL())
	dying := clusterClient(t, cl)
	reader := get(t, a.RWMutex("x").RLock)
	dead := begin(t, over(t, dying).RWMutex("x").Lock)
	waiters(t, a, "x", 1)
	must(t, dying.Close())
	late := begin(t, b.RWMutex("x").RLock)
	died := time.Now()
	le := late.Granted(t, 6*time.Second)
	if took := late.At.Sub(died); took > 1500*time.Millisecond {
		t.Errorf("a reader behind a dead writer was granted after %v, want it with its first or second look", took)
	}
	unlock(t, le)
	unlock(t, reader)
	dead.Cancel()
}

// With an empty prefix a group is a lock, and no string of an application.
func TestGroupWithoutPrefix(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	d, err := redis.New(c, &redis.Options{NoPrefix: true})
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	must(t, c.Set(t.Context(), "config", "of an application", 0).Err())
	reader, permit := get(t, l.RWMutex("r").RLock), get(t, l.Semaphore("p", 2).Acquire)
	seen := 0
	for info, err := range l.List(t.Context(), "") {
		must(t, err)
		if seen++; info.Holders != 1 {
			t.Errorf("List: got %+v", info)
		}
	}
	if seen != 2 {
		t.Errorf("List: got %d names, want 2", seen)
	}
	must(t, l.Break(t.Context(), "r"))
	lost(t, reader, 2*time.Second, fencelock.Revoked)
	unlock(t, permit)
}

// A slot moves with a group in it, and with those who wait for it.
func TestClusterSlotMovesWithAGroup(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster of its own takes seconds to start")
	}
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 2})
	c := clusterClient(t, cl)
	a, b, d := open(t, cl.URL()), open(t, cl.URL()), open(t, cl.URL())
	first, second := get(t, a.RWMutex("x").RLock), get(t, b.RWMutex("x").RLock)
	wait := begin(t, d.RWMutex("x").Lock)
	waiters(t, a, "x", 1)
	moveSlot(t, cl, int(c.ClusterKeySlot(t.Context(), key("x")).Val()))
	<-time.After(time.Second)
	for _, le := range []*fencelock.Lease{first, second} {
		must(t, le.Err())
		must(t, le.Renew(t.Context()))
		unlock(t, le)
	}
	unlock(t, wait.Granted(t, 6*time.Second))
}

// What a group costs on a single server, in commands of the server, those of scripts included.
func TestCommandsOfGroups(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	const long = time.Minute
	ttl := fencelock.WithTTL(long)
	a, b, d := over(t, c, ttl), over(t, c, ttl), over(t, c, ttl)
	cost := func(what string, most int64, do func()) {
		t.Helper()
		before := calls(t, c)
		do()
		var n int64
		for name, k := range calls(t, c) {
			if name != "info" {
				n += k - before[name]
			}
		}
		t.Logf("%s: %d commands", what, n)
		if n > most {
			t.Errorf("%s: %d commands, want %d at most", what, n, most)
		}
	}
	for _, warm := range []string{"x", "y"} { // the counters, and the scripts
		unlock(t, get(t, a.RWMutex(warm).RLock))
	}
	var first, second, third *fencelock.Lease
	cost("the first reader", 25, func() { first = get(t, a.RWMutex("x").TryRLock) })
	cost("the second", 25, func() { second = get(t, b.RWMutex("x").TryRLock) })
	cost("a third", 25, func() { third = get(t, d.RWMutex("x").TryRLock) })
	cost("the release of one of three", 20, func() { unlock(t, third) })
	cost("its renewal", 12, func() { must(t, first.Renew(t.Context())) })
	cost("the release of one of two", 20, func() { unlock(t, second) })
	cost("the last release", 20, func() { unlock(t, first) })
	cost("the first permit", 25, func() { first = get(t, a.Semaphore("y", 2).TryAcquire) })
	cost("the second", 30, func() { second = get(t, b.Semaphore("y", 2).TryAcquire) })
	cost("one too many", 20, func() {
		_, err := d.Semaphore("y", 2).TryAcquire(t.Context())
		want(t, "a third of two", err, fencelock.ErrLocked)
	})
	unlock(t, first)
	unlock(t, second)
	awaitClean(t, c, time.Second)
}

// Readers, writers and permits of several processes, some of which give up, end, or lose their
// connections, for one name. Nobody holds beside whom he must not, tokens never go back, and in the end
// nothing is left.
func TestGroupsUnderStress(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	const ttl = 2 * time.Second
	p, url := proxied(t, s)
	var readers, writers, permits atomic.Int64
	var got [3]atomic.Int64
	var newest sync.Map // slot or mode -> token
	ctx, cancel := context.WithTimeout(t.Context(), stressFor())
	defer cancel()
	hold := func(le *fencelock.Lease, random *rand.Rand) {
		mine := []*atomic.Int64{
			backend.Exclusive: &writers, backend.Reader: &readers, backend.Permit: &permits,
		}[le.Mode()]
		got[le.Mode()].Add(1)
		mine.Add(1)
		<-time.After(time.Duration(random.IntN(4)) * time.Millisecond)
		r, w, n := readers.Load(), writers.Load(), permits.Load()
		if le.Err() == nil && (w > 1 || n > 2 || w > 0 && r+n > 0 || r > 0 && n > 0) {
			t.Errorf("a %v saw %d readers, %d writers, %d permits", le.Mode(), r, w, n)
		}
		if le.Mode() != backend.Reader {
			at := fmt.Sprint(le.Mode(), le.Slot())
			if last, ok := newest.Swap(at, le.Token()); ok && last.(fencelock.Token) >= le.Token() {
				t.Errorf("%s: token %d after %d", at, le.Token(), last)
			}
		}
		mine.Add(-1)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		at := s.URL()
		if i%4 == 3 {
			at = url
		}
		l := open(t, at, fencelock.WithTTL(ttl))
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 5))
			for ctx.Err() == nil {
				patience, give := context.WithTimeout(ctx, time.Duration(2+random.IntN(300))*time.Millisecond)
				rw, sem := l.RWMutex("x"), l.Semaphore("x", 2)
				take := []locks{
					rw.Lock, rw.TryLock, rw.RLock, rw.RLock, rw.TryRLock, sem.Acquire, sem.Acquire, sem.TryAcquire,
				}
				le, err := take[random.IntN(len(take))](patience)
				give()
				if err != nil {
					continue
				}
				hold(le, random)
				_ = le.Unlock(context.WithoutCancel(ctx))
			}
		})
	}
	for ctx.Err() == nil {
		<-time.After(150 * time.Millisecond)
		p.Cut()
	}
	wg.Wait()
	t.Logf("%d writers, %d readers, %d permits", got[0].Load(), got[1].Load(), got[2].Load())
	for mode := range got {
		if got[mode].Load() == 0 {
			t.Errorf("nobody got in as %v", backend.Mode(mode))
		}
	}
	looker := open(t, s.URL())
	await(t, 20*time.Second, "the name is free", func() bool {
		info, err := looker.Inspect(t.Context(), "x")
		return err == nil && !info.Held && info.Waiters == 0
	})
	awaitTombstones(t, c, 10*time.Second)
}

func stressFor() time.Duration {
	if testing.Short() {
		return 2 * time.Second
	}
	return 6 * time.Second
}
