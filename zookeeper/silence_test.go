package zookeeper_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/zookeeper"
)

// renewals tells of each.
type renewals chan struct{}

func (r renewals) Observe(_ context.Context, e fencelock.Event) {
	if e.Kind == fencelock.Renewed {
		select {
		case r <- struct{}{}:
		default:
		}
	}
}

// follower is a server that does not lead.
func follower(t *testing.T, z *servers.ZooKeeperEnsemble) *servers.Server {
	t.Helper()
	leader, err := z.Leader(within(t, 30*time.Second))
	must(t, err)
	for _, s := range z.Servers() {
		if s != leader {
			return s
		}
	}
	t.Fatal("every server leads")
	return nil
}

// The server of a holder stops with it, just after a renewal. The leader has not heard of that
// one, and of those before it late: nobody else has the lock before the holder was told.
func TestFollowerStopsWithItsHolder(t *testing.T) {
	t.Parallel()
	z := ensemble(t)
	silent := follower(t, z)
	var other *servers.Server
	for _, s := range z.Servers() {
		if s != silent {
			other = s
		}
	}
	const ttl = 4 * time.Second // a slow machine renews it in time
	for i := range 3 {
		renewed := make(renewals, 16)
		h := open(t, "zookeeper://"+silent.Addr(), fencelock.WithTTL(ttl), fencelock.WithObserver(renewed))
		w := open(t, "zookeeper://"+other.Addr(), fencelock.WithTTL(ttl))
		name := fmt.Sprint("x", i)
		le := lock(t, h.Mutex(name))
		wait := start(t, w.Mutex(name))
		for range 3 {
			select {
			case <-renewed:
			case <-le.Done():
				t.Fatalf("lost before its server was stopped: %v", le.Err())
			}
		}
		must(t, silent.Pause())
		select {
		case <-le.Done():
		case <-wait.Done:
			t.Errorf("the waiter was granted the lock (%v) %v before the holder's deadline",
				wait.Err, time.Until(le.Deadline()))
		}
		got := wait.Granted(t, 4*ttl)
		must(t, silent.Resume())
		unlock(t, got)
		must(t, h.Close())
	}
}

// asked is a request for a session as it was sent.
type asked struct{ zxid, session uint64 }

// spy dials, and keeps what the client asks for first on each connection, unless that is a session
// of 1 ms, with which it looks whether the server has a leader.
type spy struct {
	mu    sync.Mutex
	asks  []asked
	dials int
}

func (s *spy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	s.mu.Lock()
	s.dials++
	s.mu.Unlock()
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &spied{Conn: c, s: s}, nil
}

// of returns what was asked by those who had no session, or by those who had.
func (s *spy) of(fresh bool) (asks []asked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asks {
		if (a.session == 0) == fresh {
			asks = append(asks, a)
		}
	}
	return asks
}

type spied struct {
	net.Conn
	s     *spy
	asked bool
}

func (c *spied) Write(p []byte) (int, error) {
	if !c.asked && len(p) >= 28 && binary.BigEndian.Uint32(p[16:]) > 1 {
		c.asked = true
		c.s.mu.Lock()
		c.s.asks = append(c.s.asks, asked{binary.BigEndian.Uint64(p[8:]), binary.BigEndian.Uint64(p[20:])})
		c.s.mu.Unlock()
	}
	return c.Conn.Write(p)
}

// through opens a Locker that dials so.
func through(t *testing.T, addrs []string, o zookeeper.Options, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	d, err := zookeeper.New(addrs, &o)
	must(t, err)
	l, err := fencelock.New(d, opts...)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Servers without a leader hang up as those do that are behind what a session has seen. An
// election takes the guard against the latter from nobody: a session that goes on tells what it
// has seen.
func TestElectionForgetsNothing(t *testing.T) {
	t.Parallel()
	z := ensemble(t)
	s := &spy{}
	l := through(t, z.Addrs(), zookeeper.Options{Dial: s.dial}, fencelock.WithTTL(50*time.Second))
	le := lock(t, l.Mutex("x"))
	unlock(t, lock(t, l.Mutex("y")))
	for range 2 { // only one is left: it hangs up for as long as it is alone
		leader, err := z.Leader(within(t, 30*time.Second))
		must(t, err)
		must(t, leader.Kill())
		if _, err := z.Leader(within(t, 3*time.Second)); err != nil {
			break
		}
	}
	await(t, 30*time.Second, "it tries again and again", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.dials > 30
	})
	for _, srv := range z.Servers() {
		if srv.Ready(within(t, time.Second)) != nil {
			must(t, srv.Restart(true))
		}
	}
	must(t, z.AwaitOK(within(t, 30*time.Second)))
	await(t, 15*time.Second, "a renewal", func() bool { return le.Renew(t.Context()) == nil })
	unlock(t, le)
	for _, a := range s.of(false) {
		if a.zxid == 0 {
			t.Fatalf("the session %#x asked without what it had seen: %+v", a.session, s.of(false))
		}
	}
}

// A session that has expired is over: the client library opens no other in its place, in which it
// would send what was meant for the first.
func TestExpiredOpensNoSession(t *testing.T) {
	t.Parallel()
	z := single(t)
	p, _ := proxied(t, z.Servers()[0])
	s := &spy{}
	l := through(t, []string{p.Addr()}, zookeeper.Options{Dial: s.dial}, fencelock.WithTTL(2*time.Second))
	le := lock(t, l.Mutex("x"))
	_, err := l.Inspect(t.Context(), "x") // on the session for what is about no lock, which lasts longer
	must(t, err)
	p.Set(faultproxy.Mode{Refuse: true})
	p.Cut()
	lost(t, le, 10*time.Second, fencelock.Expired, fencelock.SessionLost)
	c := foreign(t, z.Addrs()...)
	await(t, 10*time.Second, "the servers have ended the session", func() bool {
		return len(nodes(t, c, "x", "held-")) == 0
	})
	fresh := len(s.of(true))
	p.Set(faultproxy.Mode{})
	before := len(s.of(false))
	await(t, 10*time.Second, "it asks for its old session", func() bool { return len(s.of(false)) > before })
	<-time.After(500 * time.Millisecond) // it would ask at once
	if got := len(s.of(true)); got != fresh {
		t.Errorf("%d new sessions in the place of one that has expired, want none", got-fresh)
	}
	unlock(t, lock(t, l.Mutex("x")))
}

// resetting breaks each connection with a session when credentials are sent again, while bad.
type resetting struct {
	mu    sync.Mutex
	bad   bool
	conns []net.Conn
	hits  int
}

func (r *resetting) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, c)
	return &resettable{c, r}, nil
}

func (r *resetting) set(bad bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad = bad
	for _, c := range r.conns {
		_ = c.Close() // the network breaks
	}
	r.conns = nil
}

type resettable struct {
	net.Conn
	r *resetting
}

func (c *resettable) Write(p []byte) (int, error) {
	const setAuth = 100
	c.r.mu.Lock()
	bad := c.r.bad && len(p) >= 12 && binary.BigEndian.Uint32(p[8:]) == setAuth
	if bad {
		c.r.hits++
	}
	c.r.mu.Unlock()
	if bad {
		_ = c.Conn.Close()
		return 0, errors.New("connection reset by peer")
	}
	return c.Conn.Write(p)
}

// Connections that are reset when the credentials are sent again delay the session, and no more.
func TestResetAfterTheGreeting(t *testing.T) {
	t.Parallel()
	z := single(t)
	r := &resetting{}
	l := through(t, z.Addrs(), zookeeper.Options{User: "u", Password: "p", Dial: r.dial},
		fencelock.WithTTL(20*time.Second))
	le := lock(t, l.Mutex("x"))
	r.set(true)
	await(t, 10*time.Second, "three resets", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.hits >= 3
	})
	r.set(false)
	await(t, 10*time.Second, "a renewal", func() bool { return le.Renew(within(t, time.Second)) == nil })
	unlock(t, le)
	closes(t, l, 3*time.Second)
}

// closes fails the test unless Close returns in time.
func closes(t *testing.T, l *fencelock.Locker, most time.Duration) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- l.Close() }()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(most):
		t.Fatalf("Close has not returned within %v", most)
	}
}

// A dialer that does not return stops the client library for ever: its session is replaced by
// another, and Close returns.
func TestSessionThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	z := single(t)
	var mu sync.Mutex
	var conns []net.Conn
	hang, release := 0, make(chan struct{})
	defer close(release)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		hangs := hang > 0
		hang--
		mu.Unlock()
		if hangs {
			<-release // whatever ctx says
			return nil, errors.New("too late")
		}
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
		return c, err
	}
	l := through(t, z.Addrs(), zookeeper.Options{Dial: dial}, fencelock.WithTTL(2*time.Second))
	unlock(t, lock(t, l.Mutex("x")))
	mu.Lock()
	hang = 1
	for _, c := range conns {
		_ = c.Close()
	}
	mu.Unlock()
	await(t, 15*time.Second, "a grant on another session", func() bool {
		le, err := l.Mutex("x").TryLock(within(t, time.Second))
		return err == nil && le.Unlock(t.Context()) == nil
	})
	closes(t, l, 5*time.Second)
}

// However many long names a process holds, each of its sessions can be ended by one transaction
// that every server can read.
func TestSessionsHaveABudget(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	l := open(t, z.URL())
	const names = 1200
	var locking sync.WaitGroup
	places := make(chan struct{}, 64)
	for i := range names {
		places <- struct{}{}
		locking.Go(func() {
			defer func() { <-places }()
			if _, err := l.Mutex(fmt.Sprintf("%04d-%s", i, strings.Repeat("é", 250))).
				Lock(within(t, 30*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
	locking.Wait()
	loads := map[int64]int{}
	for _, name := range leftovers(t, c) {
		children, _, err := c.Children(root + "/locks/" + name)
		must(t, err)
		for _, child := range children {
			path := root + "/locks/" + name + "/" + child
			_, stat, err := c.Get(path)
			must(t, err)
			loads[stat.EphemeralOwner] += len(path)
		}
	}
	sum := 0
	for owner, load := range loads {
		sum += load
		if load > 512<<10 {
			t.Errorf("session %#x has nodes with paths of %d bytes, want at most 512 KiB", owner, load)
		}
	}
	if sum < names*1500 || len(loads) < 4 {
		t.Errorf("%d sessions have paths of %d bytes: the test is too small", len(loads), sum)
	}
	closes(t, l, 10*time.Second)
	awaitClean(t, c, 5*time.Second)
}
