package zookeeper_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// A writer that died in the queue keeps the readers behind it out no longer than Traits.DeadWaiter, however long
// its session, though nothing is released.
func TestDeadWaitingWriter(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	a, b := open(t, z.URL()), open(t, z.URL())
	p, url := proxied(t, z.Servers()[0])
	reader := get(t, a.RWMutex("x").RLock)
	waits(t, c, open(t, url).RWMutex("x").Lock, "x", 1)
	late := waits(t, c, b.RWMutex("x").RLock, "x", 2)
	p.Set(faultproxy.BlackHole)
	died := time.Now()
	got := late.Granted(t, 2*a.Traits().DeadWaiter)
	took := late.At.Sub(died)
	t.Logf("a reader behind a dead writer: granted after %v", took)
	if most := a.Traits().DeadWaiter; took > most {
		t.Errorf("granted after %v, want %v at most", took, most)
	}
	must(t, reader.Err())
	unlock(t, got)
	unlock(t, reader)
	p.Set(faultproxy.Mode{})
}

// A writer that waits for long, and does nothing else, keeps its place before readers and permits.
func TestLiveWaitingWriter(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	a, b, d := open(t, z.URL()), open(t, z.URL()), open(t, z.URL())
	reader := get(t, a.RWMutex("x").RLock)
	writer := waits(t, c, b.Mutex("x").Lock, "x", 1)
	late := waits(t, c, d.RWMutex("x").RLock, "x", 2)
	place := nodes(t, c, "x", "wait-")
	select {
	case <-late.Done:
		t.Fatalf("a reader came before a writer that waits: %v", late.Err)
	case <-time.After(9 * time.Second):
	}
	if now := nodes(t, c, "x", "wait-"); !slices.Equal(now, place) {
		t.Errorf("the writer's place: got %q, want %q", now, place)
	}
	unlock(t, reader)
	w := writer.Granted(t, 5*time.Second)
	if late.Over() {
		t.Error("the reader was granted with the writer")
	}
	unlock(t, w)
	unlock(t, late.Granted(t, 5*time.Second))
	awaitClean(t, c, 2*time.Second)
}

// Break ends all permits, and whoever waits has one then.
func TestBreakOfPermits(t *testing.T) {
	t.Parallel()
	const n = 40
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d, other := driver(t, z.URL()), open(t, z.URL())
	for range n {
		r := request("x")
		r.Mode, r.Limit = backend.Permit, n
		_, err := d.Acquire(t.Context(), r)
		must(t, err)
	}
	wait := waits(t, c, other.Semaphore("x", n).Acquire, "x", 1)
	must(t, other.Break(t.Context(), "x"))
	le := wait.Granted(t, 5*time.Second)
	await(t, time.Second, "only the waiter holds", func() bool { return len(nodes(t, c, "x", "")) == 1 })
	if le.Slot() != 0 {
		t.Logf("it has slot %d: it came in before all were gone", le.Slot())
	}
	unlock(t, le)
	awaitClean(t, c, 2*time.Second)
}

// A group of holders keeps a drain up, as one holder does.
func TestUndrainedGroup(t *testing.T) {
	t.Parallel()
	z := single(t)
	a, b, d := open(t, z.URL()), open(t, z.URL()), driver(t, z.URL())
	one, two := get(t, a.RWMutex("x").RLock), get(t, b.RWMutex("x").RLock)
	permit := get(t, a.Semaphore("y", 2).Acquire)
	drained := func(want int) {
		t.Helper()
		infos, err := d.Undrained(t.Context(), backend.Gate{
			Move: "m", Scope: backend.Scope{{Match: "*"}}, State: backend.GateBoth, Epoch: 1,
		})
		if err != nil || len(infos) != want {
			t.Errorf("got %+v and %v, want %d names that are held", infos, err, want)
		}
	}
	drained(2)
	unlock(t, one)
	drained(2)
	unlock(t, two)
	drained(1)
	unlock(t, permit)
	drained(0)
}

// A request for a permit whose hold a session of before has left takes no second one beside it.
func TestHoldOfASessionThatIsOver(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	for name, mode := range map[string]backend.Mode{"r": backend.Reader, "p": backend.Permit} {
		r := request(name)
		r.Mode, r.Wait = mode, true
		mark := "read-" + r.Nonce
		if mode == backend.Permit {
			r.Limit, mark = 3, "perm-"+r.Nonce+"-3-0"
		}
		unlock(t, get(t, open(t, z.URL()).Mutex("warm").Lock))
		_, err := c.Create(at(name), nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
		must(t, err)
		_, err = c.Create(at(name)+"/"+mark, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		must(t, err)
		d := driver(t, z.URL())
		done := make(chan error, 1)
		var g backend.Grant
		go func() {
			var err error
			g, err = d.Acquire(within(t, 20*time.Second), r)
			done <- err
		}()
		await(t, 10*time.Second, "it waits", func() bool { return len(nodes(t, c, name, "wait")) == 1 })
		select {
		case err := <-done:
			t.Fatalf("%v: granted beside its own hold: %+v, %v", mode, g, err)
		case <-time.After(300 * time.Millisecond):
		}
		must(t, c.Delete(at(name)+"/"+mark, -1))
		must(t, <-done)
		must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: g}))
	}
	awaitClean(t, c, 2*time.Second)
}

// Break ends the holds that it has seen, and not those of the writers who come after them, though its requests be slow.
func TestSlowBreakOfAGroup(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	a := open(t, z.URL())
	p, url := proxied(t, z.Servers()[0])
	slow := open(t, url)
	unlock(t, lock(t, slow.Mutex("warm")))
	first, second := get(t, a.RWMutex("x").RLock), get(t, open(t, z.URL()).RWMutex("x").RLock)
	next := waits(t, c, a.RWMutex("x").Lock, "x", 1)
	after := waits(t, c, open(t, z.URL()).RWMutex("x").Lock, "x", 2)
	p.Set(faultproxy.Mode{Delay: 100 * time.Millisecond})
	must(t, slow.Break(within(t, 20*time.Second), "x"))
	p.Set(faultproxy.Mode{})
	le := next.Granted(t, 5*time.Second)
	<-time.After(a.Traits().Revoked)
	must(t, le.Err())
	if after.Over() {
		t.Error("the second writer was let in beside the first")
	}
	lost(t, first, 5*time.Second, fencelock.Revoked)
	lost(t, second, 5*time.Second, fencelock.Revoked)
	unlock(t, le)
	unlock(t, after.Granted(t, 5*time.Second))
}

// What an old session of a claim holds yet ends by itself, and then it is the turn of those who came before the claim
// did again.
func TestOwnOldHoldBeforeOthers(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	a := open(t, z.URL())
	unlock(t, lock(t, a.Mutex("warm")))
	d, err := backend.Open(t.Context(), z.URL(), nil)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	again := &backend.Claim{
		Request: &backend.Request{
			Name: "x", Nonce: strings.Repeat("5", 32), Owner: "o", TTL: 30 * time.Second, Wait: true, Auto: true,
			Lost: func(error) {},
		},
		Waker: deaf{},
	}
	_, err = c.Create(at("x"), nil, 0, zk.WorldACL(zk.PermAll))
	must(t, err)
	old, err := c.Create(at("x")+"/held-"+again.Nonce, []byte(`{"token":1,"owner":"o"}`), zk.FlagEphemeral,
		zk.WorldACL(zk.PermAll))
	must(t, err)
	before := waits(t, c, a.Mutex("x").Lock, "x", 1)
	ask := func() error {
		if again.Err = d.Enter(within(t, 5*time.Second), again); again.Err == nil {
			d.Ask(within(t, 5*time.Second), []*backend.Claim{again})
		}
		return again.Err
	}
	await(t, 5*time.Second, "two wait", func() bool {
		want(t, "behind others", ask(), backend.ErrLocked)
		return len(nodes(t, c, "x", "wait")) == 2
	})
	must(t, c.Delete(old, -1))
	le := before.Granted(t, 5*time.Second)
	for range 20 {
		want(t, "beside the one before", ask(), backend.ErrLocked)
		<-time.After(10 * time.Millisecond)
	}
	must(t, le.Err())
	unlock(t, le)
	again.Leaving = true
	d.Leave(within(t, 5*time.Second), []*backend.Claim{again})
	must(t, again.Err)
}

// deaf is a Waker.
type deaf struct{}

func (deaf) Wake(time.Duration) {}

// An operator who breaks a hold of his own process meets its holder, who unlocks it at that moment.
func TestBreakHoldBesideUnlock(t *testing.T) {
	t.Parallel()
	z := single(t)
	p, url := proxied(t, z.Servers()[0])
	l, other := open(t, url), open(t, z.URL())
	for i := range 20 { // the Unlock falls into each part of the other
		le := get(t, l.RWMutex("x").RLock)
		info, err := l.Inspect(t.Context(), "x")
		must(t, err)
		p.Set(faultproxy.Mode{Delay: 10 * time.Millisecond})
		broken := make(chan error, 1)
		go func() { broken <- l.BreakHold(t.Context(), "x", info.Holds[0].ID) }()
		<-time.After(time.Duration(i) * 5 * time.Millisecond)
		if err := le.Unlock(t.Context()); err != nil && !errors.Is(err, fencelock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		must(t, <-broken)
		p.Set(faultproxy.Mode{})
		unlock(t, get(t, other.Mutex("x").Lock))
	}
}

// A release of what was given up by another call says so.
func TestReleaseOfWhatWasUndone(t *testing.T) {
	t.Parallel()
	d, err := backend.Open(t.Context(), single(t).URL(), nil)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	held := &backend.Claim{Request: &backend.Request{
		Name: "x", Nonce: strings.Repeat("7", 32), Owner: "o", TTL: 30 * time.Second, Auto: true, Lost: func(error) {},
	}}
	d.Ask(within(t, 5*time.Second), []*backend.Claim{held})
	must(t, held.Err)
	broken := &backend.Claim{Request: held.Request, Leaving: true, Unsure: true}
	d.Leave(within(t, 5*time.Second), []*backend.Claim{broken})
	must(t, broken.Err)
	held.Held, held.Leaving = true, true
	d.Leave(within(t, 5*time.Second), []*backend.Claim{held})
	want(t, "the release", held.Err, backend.ErrLost)
}
