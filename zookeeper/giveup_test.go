package zookeeper

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
)

// aClient returns a store, and how the engine calls it.
func aClient(t *testing.T, addr string, opts Options) (*store, core.Caller) {
	t.Helper()
	d, err := New([]string{addr}, &opts)
	if err != nil {
		t.Fatal(err)
	}
	c := core.Of(d)
	t.Cleanup(func() { _ = c.Close(); c.Land() })
	return d.store, c
}

// aRequest is one of client n.
func aRequest(n string) *backend.Request {
	return &backend.Request{
		Name: "x", Nonce: strings.Repeat(n, nonceLen), TTL: 10 * time.Second, Wait: true, Lost: func(error) {},
	}
}

// in is a ctx of the test that ends after d.
func in(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// forgotten fails the test unless the store knows of no claim.
func forgotten(t *testing.T, st *store) {
	t.Helper()
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.places) > 0 {
		t.Errorf("the store remembers %d claims, want none", len(st.places))
	}
	for _, s := range st.sessions {
		s.mu.Lock()
		if len(s.users) > 0 {
			t.Errorf("a session counts %d claims, want none", len(s.users))
		}
		s.mu.Unlock()
	}
}

// A claim that was given up is forgotten, so that its session ends when nobody else uses it: one whose session has sent
// no credentials yet, and one of a user that the servers refuse.
func TestGivenUpIsForgotten(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
	addr := z.Addrs()[0]
	_, holder := aClient(t, addr, Options{User: "u", Password: "p"})
	if _, err := holder.Acquire(in(t, 20*time.Second), aRequest("1")); err != nil {
		t.Fatal(err)
	}
	t.Run("before its session is there", func(t *testing.T) {
		p := testkit.Proxied(t, addr)
		p.Set(faultproxy.Mode{HoldReplies: true})
		st, waiter := aClient(t, p.Addr(), Options{User: "u", Password: "p"})
		r, ended := aRequest("2"), context.DeadlineExceeded
		if _, err := waiter.Acquire(in(t, 50*time.Millisecond), r); !errors.Is(err, ended) {
			t.Fatalf("Acquire: got %v, want %v", err, ended)
		}
		// It ends what was asked for, of which nothing was sent.
		if err := waiter.Abandon(in(t, 200*time.Millisecond), r); err != nil {
			t.Errorf("Abandon without an answer: got %v", err)
		}
		p.Set(faultproxy.Mode{})
		forgotten(t, st)
	})
	t.Run("by another user", func(t *testing.T) {
		st, other := aClient(t, addr, Options{User: "other", Password: "p"})
		r := aRequest("3")
		if _, err := other.Acquire(in(t, 20*time.Second), r); !errors.Is(err, backend.ErrInvalid) {
			t.Fatalf("Acquire: got %v, want %v", err, backend.ErrInvalid)
		}
		if err := other.Abandon(in(t, 20*time.Second), r); err != nil { // it has made nothing
			t.Errorf("Abandon: got %v", err)
		}
		forgotten(t, st)
	})
}

// An answer of which nothing can be read does not say that it was done.
func TestUnreadableAnswer(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{})
	st, _ := aClient(t, z.Addrs()[0], Options{})
	s, err := st.any(in(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	i, err := s.multi(in(t, 20*time.Second), &zk.CreateRequest{
		Path: "/container", Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagContainer,
	})
	if i != -1 || !errors.Is(err, zk.ErrAPIError) {
		t.Errorf("got operation %d: %v, want -1: %v", i, err, zk.ErrAPIError)
	}
}

// A process that was stopped while it reconnected has its time anew: the servers may keep the session yet.
func TestStallThatIsNoticedLate(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{})
	st, _ := aClient(t, z.Addrs()[0], Options{})
	s, err := st.any(in(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, late := range []time.Duration{9 * time.Second, 0} {
		s.mu.Lock()
		s.due = backend.Now().Add(-late)
		s.mu.Unlock()
		if s.stalled(); s.alive() != (late > 0) {
			t.Errorf("%v late: the session is alive: %v", late, s.alive())
		}
	}
}

// An operator of the same process may end a hold between the grant and its handing over.
func TestHoldThatIsBrokenAsItIsGranted(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
	st, _ := aClient(t, z.Addrs()[0], Options{})
	c := &backend.Claim{Request: aRequest("4")}
	p := st.place(c)
	if err := p.do(in(t, 20*time.Second), c, asking); err != nil {
		t.Fatal(err)
	}
	p.stop()
	if err := p.hand(c); !errors.Is(err, errNotKept) {
		t.Errorf("got %v, want %v", err, errNotKept)
	}
}
