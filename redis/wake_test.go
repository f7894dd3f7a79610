package redis_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// The subscription is killed and the lock becomes free in between, so that nobody is told.
func TestResubscriptionLooksAgain(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	must(t, c.Set(t.Context(), key("x"), ours, time.Minute).Err())
	wait := queue(t, c, open(t, s.URL()), "x", 1)
	// The commands of one pipeline reach the server at once: no subscription comes between them.
	began := time.Now()
	_, err := c.Pipelined(t.Context(), func(p goredis.Pipeliner) error {
		p.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
		p.Del(t.Context(), key("x"))
		return nil
	})
	must(t, err)
	unlock(t, wait.Granted(t, 3*time.Second))
	took := wait.At.Sub(began)
	t.Logf("a lock freed while the subscription was down: had after %v", took)
	if took > 1500*time.Millisecond {
		t.Errorf("a lock freed while the subscription was down: had after %v, want it promptly", took)
	}
}

func TestReleaseWhileSubscriptionIsDown(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	wait := queue(t, c, open(t, s.URL()), "x", 1)
	for range 3 {
		must(t, c.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
		await(t, 3*time.Second, "subscribed again", func() bool { return listeners(t, c) == 1 })
	}
	must(t, c.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
	unlock(t, le)
	released := time.Now()
	unlock(t, wait.Granted(t, 3*time.Second))
	took := wait.At.Sub(released)
	t.Logf("hand-over to a waiter whose subscription was killed: %v", took)
	if took > 1500*time.Millisecond {
		t.Errorf("hand-over to a waiter whose subscription was killed took %v, want it promptly", took)
	}
	awaitClean(t, c, time.Second)
}

// deaf is a Dialer whose connections lose every pushed message once it is told to, and if it is mute what is sent too.
type deaf struct{ on, mute, lost atomic.Bool }

type deafConn struct {
	net.Conn
	d *deaf
}

func (d *deaf) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var nd net.Dialer
	c, err := nd.DialContext(ctx, network, addr)
	return &deafConn{c, d}, err
}

func (c *deafConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if !c.d.on.Load() || !bytes.Contains(b[:n], []byte("\r\nmessage\r\n")) {
			return n, err
		}
		c.d.lost.Store(true)
	}
}

func (c *deafConn) Write(b []byte) (int, error) {
	if c.d.mute.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// deafened returns a Locker and the switch that makes it lose its pushes.
func deafened(t *testing.T, s *servers.Server, opts ...fencelock.Option) (*fencelock.Locker, *deaf) {
	d := &deaf{}
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Dialer: d.dial})
	t.Cleanup(func() { _ = c.Close() })
	return over(t, c, opts...), d
}

func TestLostPushIsMendedByFloorTimer(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	const ttl = 3 * time.Second // the waiter looks when what it saw has run out
	le := lock(t, open(t, s.URL(), fencelock.WithTTL(ttl)).Mutex("x"))
	l, d := deafened(t, s)
	wait := queue(t, c, l, "x", 1)
	d.on.Store(true)
	released := time.Now()
	unlock(t, le)
	unlock(t, wait.Granted(t, 6*time.Second))
	took := wait.At.Sub(released)
	t.Logf("hand-over whose push was lost: %v", took)
	if !d.lost.Load() {
		t.Error("the push was not lost")
	}
	if took > ttl+500*time.Millisecond {
		t.Errorf("hand-over whose push was lost took %v, want the floor timer, %v at most", took, ttl)
	}
	awaitClean(t, c, time.Second)
}

func TestLostPushDelaysTheNextByAClaim(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a claim and a floor timer")
	}
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL(), fencelock.WithTTL(3*time.Second)).Mutex("x"))
	l, d := deafened(t, s)
	first := queue(t, c, l, "x", 1)
	second := queue(t, c, open(t, s.URL()), "x", 2)
	d.on.Store(true)
	d.mute.Store(true) // or it finds what it was given, should it look first
	released := time.Now()
	unlock(t, le)
	held := second.Granted(t, 5*time.Second)
	took := second.At.Sub(released)
	t.Logf("hand-over past a waiter whose push was lost: %v", took)
	if took > 3500*time.Millisecond { // two claims are 4 s
		t.Errorf("hand-over past a waiter whose push was lost took %v, want one claim of 2 s", took)
	}
	d.on.Store(false)
	d.mute.Store(false)
	unlock(t, held)
	unlock(t, first.Granted(t, 6*time.Second))
	awaitTombstones(t, c, time.Second)
}

func TestExpiredHolderIsNoticed(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	must(t, c.Set(t.Context(), key("x"), ours, 700*time.Millisecond).Err())
	began := time.Now()
	wait := queue(t, c, open(t, s.URL()), "x", 1)
	unlock(t, wait.Granted(t, 2*time.Second))
	took := wait.At.Sub(began)
	t.Logf("a dead holder with 700ms left: had after %v", took)
	if took < 650*time.Millisecond || took > 1700*time.Millisecond { // the floor timer is at 2 s
		t.Errorf("a dead holder with 700ms left: had after %v", took)
	}
}
