package zookeeper_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/zookeeper"
)

// about matches requests that have all of the parts.
func about(parts ...string) func([]byte) bool {
	return func(request []byte) bool {
		for _, p := range parts {
			if !bytes.Contains(request, []byte(p)) {
				return false
			}
		}
		return true
	}
}

// last is the node that every grant writes.
func last(t *testing.T, c *zk.Conn) string {
	t.Helper()
	children, _, err := c.Children(root + "/tokens")
	must(t, err)
	return root + "/tokens/" + children[0]
}

// writes is how often a node was written.
func writes(t *testing.T, c *zk.Conn, path string) int32 {
	t.Helper()
	_, err := c.Sync("/")
	must(t, err)
	_, stat, err := c.Get(path)
	must(t, err)
	return stat.Version
}

// granted is how often something was granted.
func granted(t *testing.T, c *zk.Conn) int32 {
	t.Helper()
	return writes(t, c, last(t, c))
}

func TestLostReplyOfAcquire(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	for i, take := range []func(fencelock.Mutex) (*fencelock.Lease, error){
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.TryLock(t.Context()) },
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.Lock(within(t, 10*time.Second)) },
	} {
		name := fmt.Sprint("x-", i)
		before, drawn := p.Counts().LostReplies, granted(t, c)
		p.LoseReplyTo(1, about(at(name)+"/held-", "/tokens/"))
		le, err := take(l.Mutex(name))
		must(t, err)
		if n := p.Counts().LostReplies - before; n != 1 {
			t.Errorf("%s: %d replies were lost, want 1", name, n)
		}
		if n := granted(t, c) - drawn; n != 1 {
			t.Errorf("%s: it was granted %d times, want 1", name, n)
		}
		info, err := l.Inspect(t.Context(), name)
		if err != nil || !info.Held || info.Token != le.Token() {
			t.Errorf("%s: got %+v, %v, want it held with token %d", name, info, err, le.Token())
		}
		unlock(t, le)
	}
	awaitClean(t, c, time.Second)
}

func TestLostRepliesOfAWaiter(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	le := lock(t, open(t, z.URL()).Mutex("x"))
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	p.LoseReplyTo(1, about(at("x")+"/wait-"))
	wait := start(t, l.Mutex("x"))
	await(t, 10*time.Second, "the reply to the joining is lost", func() bool { return p.Counts().LostReplies == 1 })
	await(t, 10*time.Second, "one waiter", func() bool { return len(nodes(t, c, "x", "wait-")) == 1 })
	p.LoseReplyTo(1, about(at("x")+"/held-", "/tokens/"))
	unlock(t, le)
	got := wait.Granted(t, 5*time.Second)
	if n := p.Counts().LostReplies; n != 2 {
		t.Errorf("%d replies were lost, want 2", n)
	}
	if w := nodes(t, c, "x", ""); len(w) != 1 {
		t.Errorf("nodes: got %q, want the holder's", w)
	}
	if got.Token() <= le.Token() {
		t.Errorf("token: got %d after %d", got.Token(), le.Token())
	}
	unlock(t, got)
	awaitClean(t, c, time.Second)
}

func TestLostReplyOfRenewal(t *testing.T) {
	t.Parallel()
	z := single(t)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url, fencelock.WithManualRenew())
	le := lock(t, l.Mutex("x"))
	before := le.Deadline()
	p.LoseReplyTo(1, about(at("x")+"/held-"))
	if err := le.Renew(t.Context()); err != nil {
		want(t, "Renew with its reply lost", err, fencelock.ErrUnavailable)
	}
	must(t, le.Renew(t.Context()))
	if !le.Deadline().After(before) {
		t.Error("the Deadline has not moved")
	}
	unlock(t, le)
}

func TestLostReplyOfRelease(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	next := open(t, z.URL())
	for _, contended := range []bool{false, true} {
		le := lock(t, l.Mutex("x"))
		var wait *pending
		if contended {
			wait = queue(t, c, next, "x", 1)
		}
		p.LoseReplyTo(1, about(at("x")+"/held-", "/done/"))
		lostBefore := p.Counts().LostReplies
		must(t, le.Unlock(t.Context()))
		if n := p.Counts().LostReplies - lostBefore; n != 1 {
			t.Errorf("%d replies were lost, want 1", n)
		}
		if contended {
			got := wait.Granted(t, 5*time.Second)
			want(t, "Unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
			must(t, got.Err())
			unlock(t, got)
		}
		awaitClean(t, c, time.Second)
	}
}

// breaking is a connection on which the next write that matches fails, before or after it has left.
type breaking struct {
	net.Conn
	next *atomic.Pointer[failure]
}

type failure struct {
	match func([]byte) bool
	leave bool // the request leaves all the same
}

func (c breaking) Write(p []byte) (int, error) {
	f := c.next.Load()
	if f == nil || !f.match(p) || !c.next.CompareAndSwap(f, nil) {
		return c.Conn.Write(p)
	}
	if f.leave {
		if n, err := c.Conn.Write(p); err != nil {
			return n, err
		}
	}
	return 0, &net.OpError{Op: "write", Net: "tcp", Err: syscall.ECONNRESET}
}

// A connection breaks while a request is being written: whether it has left or not, it is asked again.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	var next atomic.Pointer[failure]
	d, err := zookeeper.New(z.Addrs(), &zookeeper.Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return breaking{conn, &next}, err
		},
	})
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	unlock(t, lock(t, l.Mutex("warm")))
	for _, leave := range []bool{false, true} {
		drawn := granted(t, c)
		next.Store(&failure{about("/held-", "/tokens/"), leave})
		le, err := l.Mutex("x").TryLock(t.Context())
		must(t, err)
		if n := granted(t, c) - drawn; n != 1 {
			t.Errorf("leave %v: it was granted %d times, want 1", leave, n)
		}
		next.Store(&failure{about("/held-", "/done/"), leave})
		unlock(t, le)
		if next.Load() != nil {
			t.Errorf("leave %v: no release was written", leave)
		}
		awaitClean(t, c, time.Second)
	}
}

// A release that could not leave before its ctx ended leaves with the next one, and the failure of
// the first is not told twice.
func TestReleaseAfterOutage(t *testing.T) {
	t.Parallel()
	const n = 16
	z := single(t)
	p, url := proxied(t, z.Servers()[0])
	d := driver(t, url)
	holds := make([]*core.Hold, n)
	for i := range holds {
		r := request(fmt.Sprint("x-", i))
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		holds[i] = &core.Hold{Request: r, Grant: g}
	}
	p.Set(faultproxy.Mode{Refuse: true})
	p.Cut()
	for _, h := range holds {
		if err := d.Release(within(t, 50*time.Millisecond), h); err == nil {
			t.Fatal("Release without a server: got nil")
		}
	}
	p.Set(faultproxy.Mode{})
	for _, h := range holds {
		must(t, d.Release(within(t, 10*time.Second), h))
	}
}

// A release whose reply was lost is not nil if the lock had been taken away before it came.
func TestLostReplyOfReleaseOfALostLock(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	d := driver(t, url)
	r := request("x")
	g, err := d.Acquire(t.Context(), r)
	must(t, err)
	// A first release of another name makes the node that remembers releases.
	other := request("y")
	og, err := d.Acquire(t.Context(), other)
	must(t, err)
	must(t, d.Release(t.Context(), &core.Hold{Request: other, Grant: og}))
	must(t, c.Delete(holder(t, c, "x"), -1))
	p.LoseReplyTo(1, about(at("x")+"/held-", "/done/"))
	want(t, "Release", d.Release(t.Context(), &core.Hold{Request: r, Grant: g}), backend.ErrLost)
	if n := p.Counts().LostReplies; n != 1 {
		t.Errorf("%d replies were lost, want 1", n)
	}
	// And again, when somebody else holds it.
	next := request("x")
	_, err = driver(t, z.URL()).Acquire(t.Context(), next)
	must(t, err)
	want(t, "Release again", d.Release(t.Context(), &core.Hold{Request: r, Grant: g}), backend.ErrLost)
	_ = d.Abandon(t.Context(), r)
	if got := holder(t, c, "x"); got != at("x")+"/held-"+next.Nonce {
		t.Errorf("the holder is %q, want the next one", got)
	}
}

// driver returns a bare driver.
func driver(t *testing.T, url string) caller {
	t.Helper()
	d, err := backend.Open(t.Context(), url, nil)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return call(d.(*zookeeper.Driver))
}

var nonces atomic.Int64

// request is one for a bare driver.
func request(name string) *backend.Request {
	return &backend.Request{
		Name: name, Nonce: fmt.Sprintf("%032x", nonces.Add(1)), Owner: "test",
		TTL: 20 * time.Second, Lost: func(error) {},
	}
}
