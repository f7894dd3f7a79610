package zookeeper_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/zookeeper"
)

// waits begins to wait, and returns when the server has n in the queue.
func waits(t *testing.T, c *zk.Conn, lock locks, name string, n int) *pending {
	t.Helper()
	p := begin(t, lock)
	await(t, 10*time.Second, fmt.Sprintf("%d in the queue for %q", n, name), func() bool {
		return len(nodes(t, c, name, "wait")) == n
	})
	return p
}

// gate holds up what a client sends, from the first request that matches on.
type gate struct {
	mu    sync.Mutex
	match func([]byte) bool // nil: none
	held  chan struct{}     // closed when there was one
	open  chan struct{}     // closed to let it go
}

// hold makes the next request that matches wait. It returns what is closed when it does, and what lets it go.
func (g *gate) hold(match func([]byte) bool) (held <-chan struct{}, release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	open := make(chan struct{})
	g.match, g.held, g.open = match, make(chan struct{}), open
	return g.held, sync.OnceFunc(func() { close(open) })
}

// gated is a connection through a gate.
type gated struct {
	net.Conn
	g *gate
}

func (c gated) Write(p []byte) (int, error) {
	c.g.mu.Lock()
	var open chan struct{}
	if c.g.match != nil && c.g.match(p) {
		open, c.g.match = c.g.open, nil
		close(c.g.held)
	}
	c.g.mu.Unlock()
	if open != nil {
		<-open
	}
	return c.Conn.Write(p)
}

// count counts the requests that match from here on.
func (g *gate) count(match func([]byte) bool) *atomic.Int64 {
	var n atomic.Int64
	g.hold(func(request []byte) bool {
		if match(request) {
			n.Add(1)
		}
		return false
	})
	return &n
}

// asks matches requests that are no pings.
func asks(request []byte) bool {
	ping := int32(-2)
	return len(request) >= 8 && binary.BigEndian.Uint32(request[4:]) != uint32(ping)
}

// gatedDriver returns a driver whose requests go through a gate.
func gatedDriver(t *testing.T, z *servers.ZooKeeperEnsemble) (*zookeeper.Driver, *gate) {
	t.Helper()
	g := &gate{}
	d, err := zookeeper.New(z.Addrs(), &zookeeper.Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return gated{conn, g}, err
		},
	})
	must(t, err)
	return d, g
}

// openGated returns a Locker of one.
func openGated(t *testing.T, z *servers.ZooKeeperEnsemble) (*fencelock.Locker, *gate) {
	t.Helper()
	d, g := gatedDriver(t, z)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, g
}

// joins matches the grant of a reader that has stood in the queue.
var joins = about("/waitread-", "/read-")

// Readers of several processes that come to a free name at once, or are let in together, begin one era.
func TestReadersBeginOneEra(t *testing.T) {
	t.Parallel()
	const n = 5
	z := single(t)
	c := foreign(t, z.Addrs()...)
	writer := open(t, z.URL())
	var ls []*fencelock.Locker
	for range n {
		ls = append(ls, open(t, z.URL()))
		unlock(t, get(t, ls[len(ls)-1].RWMutex("warm").RLock))
	}
	last := fencelock.Token(0)
	for round := range 6 {
		var all []*pending
		if round%2 == 0 {
			for _, l := range ls {
				all = append(all, begin(t, l.RWMutex("x").RLock))
			}
		} else {
			w := get(t, writer.RWMutex("x").Lock)
			for i, l := range ls {
				all = append(all, waits(t, c, l.RWMutex("x").RLock, "x", i+1))
			}
			last = w.Token()
			unlock(t, w)
		}
		era := fencelock.Token(0)
		for i, p := range all {
			le := p.Granted(t, 5*time.Second)
			if era == 0 {
				era = le.Token()
			}
			if le.Token() != era || era <= last {
				t.Errorf("round %d: reader %d has token %d beside %d, after %d", round, i, le.Token(), era, last)
			}
		}
		info, err := writer.Inspect(t.Context(), "x")
		if err != nil || info.Holders != n || info.Mode != fencelock.Reader || info.Token != era || info.Waiters != 0 {
			t.Errorf("round %d: got %+v and %v, want %d readers with token %d", round, info, err, n, era)
		}
		for _, p := range all {
			unlock(t, p.Lease)
		}
		last = era
	}
	awaitClean(t, c, 2*time.Second)
}

// A reader that would begin an era is stopped between its place in the queue and its grant. Those behind it begin
// one once it has lost its place, and when it goes on it joins them.
func TestReaderStopsBeforeItsEra(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	slow, g := openGated(t, z)
	w, other := open(t, z.URL()), open(t, z.URL())
	writer := get(t, w.RWMutex("x").Lock)
	first := waits(t, c, slow.RWMutex("x").RLock, "x", 1)
	second := waits(t, c, other.RWMutex("x").RLock, "x", 2)
	held, release := g.hold(joins)
	t.Cleanup(release)
	unlock(t, writer)
	<-held
	stopped := time.Now()
	got := second.Granted(t, w.Traits().DeadWaiter)
	if took := second.At.Sub(stopped); took < time.Second {
		t.Errorf("granted %v after the one in front was, want that it is given time", took)
	}
	release()
	late := first.Granted(t, 5*time.Second)
	if late.Token() != got.Token() || got.Token() <= writer.Token() {
		t.Errorf("tokens: got %d and %d, after a writer's %d, want one", got.Token(), late.Token(), writer.Token())
	}
	unlock(t, got)
	unlock(t, late)
	awaitClean(t, c, 2*time.Second)
}

// Whom a reader was to join has left when its request arrives, and others have begun an era: it joins those.
func TestReaderJoinsTooLate(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	front, g1 := openGated(t, z)
	back, g2 := openGated(t, z)
	x := get(t, open(t, z.URL()).RWMutex("x").RLock)
	held1, release1 := g1.hold(joins)
	t.Cleanup(release1)
	one := begin(t, front.RWMutex("x").RLock)
	<-held1
	held2, release2 := g2.hold(joins)
	t.Cleanup(release2)
	two := begin(t, back.RWMutex("x").RLock)
	<-held2
	unlock(t, x)
	release1()
	first := one.Granted(t, 5*time.Second)
	release2()
	second := two.Granted(t, 5*time.Second)
	if first.Token() != second.Token() || first.Token() <= x.Token() {
		t.Errorf("tokens: got %d and %d, after %d, want one", first.Token(), second.Token(), x.Token())
	}
	unlock(t, first)
	unlock(t, second)
	awaitClean(t, c, 2*time.Second)
}

// A floor that is not below the token of those who read begins a new number, and leaves theirs. Whoever joins
// later has no lower one, also when the one with the floor has left.
func TestReaderWithAFloor(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	a, b, d := open(t, z.URL()), open(t, z.URL()), open(t, z.URL())
	first := get(t, a.RWMutex("x").RLock)
	floor := fencelock.WithFloor(first.Token())
	second := get(t, b.RWMutex("x", floor).RLock)
	if second.Token() <= first.Token() {
		t.Errorf("with a floor of %d: got token %d", first.Token(), second.Token())
	}
	third := get(t, d.RWMutex("x").RLock)
	unlock(t, second)
	unlock(t, third)
	fourth := get(t, d.RWMutex("x").TryRLock)
	if third.Token() != second.Token() || fourth.Token() != second.Token() {
		t.Errorf("beside one with token %d: got %d, and %d once it had left",
			second.Token(), third.Token(), fourth.Token())
	}
	unlock(t, fourth)
	unlock(t, first)
	next := get(t, a.Mutex("x").TryLock)
	if next.Token() <= second.Token() {
		t.Errorf("a writer after token %d: got %d", second.Token(), next.Token())
	}
	unlock(t, next)
	awaitClean(t, c, 2*time.Second)
}

// One with a floor begins to read while another one is about to join those from before it: that one looks again.
func TestReaderJoinsAfterAFloor(t *testing.T) {
	t.Parallel()
	z := single(t)
	slow, g := openGated(t, z)
	first := get(t, open(t, z.URL()).RWMutex("x").RLock)
	held, release := g.hold(joins)
	t.Cleanup(release)
	late := begin(t, slow.RWMutex("x").RLock)
	<-held
	second := get(t, open(t, z.URL()).RWMutex("x", fencelock.WithFloor(first.Token())).RLock)
	release()
	third := late.Granted(t, 5*time.Second)
	if third.Token() != second.Token() || second.Token() <= first.Token() {
		t.Errorf("tokens: got %d, and then %d, beside %d", second.Token(), third.Token(), first.Token())
	}
	for _, le := range []*fencelock.Lease{first, second, third} {
		unlock(t, le)
	}
}

// The reply to a grant is lost: it is found again, with its token and slot, and is one hold.
func TestLostReplyOfAGroup(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	l, other := open(t, url), open(t, z.URL())
	unlock(t, get(t, l.RWMutex("warm").RLock))
	for i, k := range []struct {
		mark        string
		take, other locks
	}{
		{"read-", l.RWMutex("x-0").RLock, nil},
		{"read-", l.RWMutex("x-1").RLock, other.RWMutex("x-1").RLock},
		{"read-", l.RWMutex("x-2").TryRLock, other.RWMutex("x-2").RLock},
		{"perm-", l.Semaphore("x-3", 3).Acquire, nil},
		{"perm-", l.Semaphore("x-4", 3).Acquire, other.Semaphore("x-4", 3).Acquire},
		{"perm-", l.Semaphore("x-5", 3).TryAcquire, other.Semaphore("x-5", 3).Acquire},
	} {
		name, holders := fmt.Sprint("x-", i), 1
		var beside *fencelock.Lease
		if k.other != nil {
			beside = get(t, k.other)
			holders++
		}
		before := p.Counts().LostReplies
		p.LoseReplyTo(1, about(at(name)+"/"+k.mark, "/tokens/"))
		le := get(t, k.take)
		if n := p.Counts().LostReplies - before; n != 1 {
			t.Errorf("%s: %d replies were lost, want 1", name, n)
		}
		if n := len(nodes(t, c, name, k.mark)); n != holders || len(nodes(t, c, name, "")) != n {
			t.Errorf("%s: got %q, want %d holders", name, nodes(t, c, name, ""), holders)
		}
		switch {
		case beside == nil:
		case le.Mode() == fencelock.Reader && le.Token() != beside.Token():
			t.Errorf("%s: got token %d beside %d", name, le.Token(), beside.Token())
		case le.Mode() == fencelock.Permit && (le.Slot() != 1 || le.Token() <= beside.Token()):
			t.Errorf("%s: got slot %d and token %d beside token %d", name, le.Slot(), le.Token(), beside.Token())
		}
		must(t, le.Renew(t.Context()))
		p.LoseReplyTo(1, about(at(name)+"/"+k.mark, "/done/"))
		unlock(t, le)
		if beside != nil {
			must(t, beside.Renew(t.Context()))
			unlock(t, beside)
		}
	}
	awaitClean(t, c, 2*time.Second)
}

// The reply to the joining of the queue is lost, and then the session ends: the waiter waits on, with another.
func TestWaiterOfAGroupInDoubt(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	for name, mode := range map[string]backend.Mode{"r": backend.Reader, "p": backend.Permit} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			p, url := proxied(t, z.Servers()[0])
			l := open(t, url, fencelock.WithTTL(20*time.Second))
			writer := get(t, open(t, z.URL()).Mutex(name).Lock)
			lock := l.RWMutex(name).RLock
			if mode == backend.Permit {
				lock = l.Semaphore(name, 2).Acquire
			}
			unlock(t, get(t, l.Mutex("warm-"+name).Lock))
			again := make(logins, 1)
			var joined atomic.Bool
			p.LoseReplyTo(2, func(request []byte) bool {
				again.see(request)
				return about(at(name)+"/wait")(request) && joined.CompareAndSwap(false, true)
			})
			wait := waits(t, c, lock, name, 1)
			login := <-again                     // the reply is lost
			p.Set(faultproxy.Mode{Refuse: true}) // or it takes its session back
			p.Cut()
			places := func() int { return len(nodes(t, c, name, "wait")) }
			await(t, 10*time.Second, "the session has ended", func() bool {
				end(t, z.Servers()[0].Addr(), login)
				return places() == 0
			})
			p.Set(faultproxy.Mode{})
			await(t, 10*time.Second, "it waits again", func() bool { return places() == 1 })
			unlock(t, writer)
			le := wait.Granted(t, 5*time.Second)
			if n := nodes(t, c, name, ""); len(n) != 1 {
				t.Errorf("got %q, want one holder", n)
			}
			unlock(t, le)
		})
	}
}

// The release of any permit wakes the first who waits, and so does the end of a holder's session.
func TestAnyPermitWakes(t *testing.T) {
	t.Parallel()
	const n = 3
	z := single(t)
	c := foreign(t, z.Addrs()...)
	var ls []*fencelock.Locker
	for range n + 1 {
		ls = append(ls, open(t, z.URL()))
	}
	var held []*fencelock.Lease
	for i := range n {
		held = append(held, get(t, ls[i].Semaphore("x", n).Acquire))
	}
	for i := range n {
		wait := waits(t, c, ls[n].Semaphore("x", n).Acquire, "x", 1)
		released := time.Now()
		unlock(t, held[i])
		got := wait.Granted(t, 5*time.Second)
		if took := wait.At.Sub(released); took > time.Second {
			t.Errorf("permit %d: granted %v after its release, want that it is pushed", i, took)
		}
		if got.Slot() != i {
			t.Errorf("got slot %d, want %d, the one that came free", got.Slot(), i)
		}
		unlock(t, got)
		held[i] = get(t, ls[i].Semaphore("x", n).TryAcquire)
	}
	unlock(t, held[1])
	d, r := driver(t, z.URL()), request("x")
	r.Mode, r.Limit = backend.Permit, n
	_, err := d.Acquire(t.Context(), r)
	must(t, err)
	wait := waits(t, c, ls[n].Semaphore("x", n).Acquire, "x", 1)
	released := time.Now()
	must(t, d.Close()) // which ends the session
	if wait.Granted(t, 5*time.Second); wait.At.Sub(released) > time.Second {
		t.Errorf("granted %v after the end of a holder's session", wait.At.Sub(released))
	}
	unlock(t, wait.Lease)
	unlock(t, held[0])
	unlock(t, held[2])
	awaitClean(t, c, 2*time.Second)
}
