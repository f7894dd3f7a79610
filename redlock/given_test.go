package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/redlock"
)

// The program has used up the pools of the clients that it gave: calls end with their ctx all the same, and Close soon.
func TestPoolsUsedUp(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	var clients []goredis.UniversalClient
	for _, addr := range c.addrs {
		r := goredis.NewClient(&goredis.Options{Addr: addr, PoolSize: 1, PoolTimeout: 20 * time.Second})
		t.Cleanup(func() { _ = r.Close() })
		clients = append(clients, r)
	}
	d, err := redlock.New(clients, &redlock.Options{Fresh: true})
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	le := lock(t, l.Mutex("held", fencelock.WithManualRenew()))
	var taken []*goredis.Conn
	for _, r := range clients {
		conn := r.(*goredis.Client).Conn()
		must(t, conn.Ping(t.Context()).Err())
		taken = append(taken, conn)
	}
	for what, call := range map[string]func(context.Context) error{
		"TryLock": func(ctx context.Context) error { _, err := l.Mutex("a").TryLock(ctx); return err },
		"Lock":    func(ctx context.Context) error { _, err := l.Mutex("a").Lock(ctx); return err },
		"Renew":   le.Renew,
		"Inspect": func(ctx context.Context) error { _, err := l.Inspect(ctx, "a"); return err },
		"Break":   func(ctx context.Context) error { return l.Break(ctx, "a") },
		"List": func(ctx context.Context) error {
			for _, err := range l.List(ctx, "") {
				return err
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			began := time.Now()
			err := call(ctx)
			if took := time.Since(began); err == nil || took > 1500*time.Millisecond {
				t.Errorf("with a ctx of 300 ms: got %v after %v, want an error at its end", err, took)
			}
		})
	}
	began := time.Now()
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second { // calls to a node end after 2 s; a pool gives up after 20
		t.Errorf("Close took %v", took)
	}
	for _, conn := range taken {
		must(t, conn.Close())
	}
}

// A client that reads from replicas is no client of a node: nothing is granted, and the error says why.
func TestClientsThatReadFromReplicas(t *testing.T) {
	t.Parallel()
	c, r := withReplica(t)
	follow(t, r, c.direct[0])
	var clients []goredis.UniversalClient
	for range 3 {
		one := goredis.NewClient(&goredis.Options{Addr: r.Options().Addr})
		t.Cleanup(func() { _ = one.Close() })
		clients = append(clients, one)
	}
	d, err := redlock.New(clients, nil)
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_, err = l.Mutex("a").TryLock(t.Context())
	want(t, "TryLock on replicas", err, fencelock.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "replica") {
		t.Errorf("got %v, want it to name the replicas", err)
	}
}

// An error says which nodes did not do what was asked, and each reason once.
func TestErrorsNameTheNodes(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l := open(t, through)
	unlock(t, lock(t, l.Mutex("a")))
	refuse(proxies[0])
	proxies[1].Set(blackHole)
	_, err := l.Mutex("a").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrUnavailable)
	for _, says := range []string{
		"1 of 3 nodes answered", "2 are needed", proxies[0].Addr() + ": ",
		proxies[1].Addr() + ": no answer in time",
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want it to say %q", err, says)
		}
	}
	if err != nil && strings.Contains(err.Error(), proxies[2].Addr()) {
		t.Errorf("got %v, want nothing of the node that answered", err)
	}
	proxies[1].Set(faultproxy.Mode{})
	_, err = fencelock.Open(t.Context(), "redlock://a:x@"+strings.Join(c.addrs, ","))
	if !errors.Is(err, fencelock.ErrInvalid) || strings.Count(err.Error(), "WRONGPASS") != 1 ||
		!strings.Contains(err.Error(), strings.Join(c.addrs, ", ")+": ") {
		t.Errorf("a wrong password: got %v, want ErrInvalid that names the nodes and the reason once", err)
	}
}

// A floor far ahead of the nodes' clocks is refused, and moves no counter, in a call of its own and
// together with others.
func TestFarFloor(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	l := open(t, c.url("fresh=1"))
	const far = 1<<53 - 2
	for range 20 {
		done := make(chan error, 3)
		for _, name := range []string{"a", "b", "c"} {
			m := l.Mutex(name)
			if name == "b" {
				m = l.Mutex(name, fencelock.WithFloor(far))
			}
			go func() {
				le, err := m.TryLock(t.Context())
				if err == nil {
					if le.Token() > time.Now().Add(time.Hour).UnixMicro() {
						t.Errorf("%s: token %d", name, le.Token())
					}
					err = le.Unlock(t.Context())
				}
				if name != "b" {
					done <- err
				} else if done <- nil; !errors.Is(err, fencelock.ErrInvalid) {
					t.Errorf("a floor at the end of the numbers: got %v, want ErrInvalid", err)
				}
			}()
		}
		for range 3 {
			must(t, <-done)
		}
	}
	le := lock(t, l.Mutex("b", fencelock.WithFloor(time.Now().Add(59*time.Minute).UnixMicro())))
	if most := time.Now().Add(2 * time.Hour).UnixMicro(); le.Token() > most {
		t.Errorf("after far floors that were refused: token %d, want one below %d", le.Token(), most)
	}
	unlock(t, le)
	const cycles = 20
	count := func() (all int) {
		t.Helper()
		for i := range c.direct {
			var calls int
			if _, err := fmt.Sscanf(c.calls(t, i), "cmdstat_fcall:calls=%d", &calls); err != nil {
				t.Fatal(err)
			}
			all += calls
		}
		return all
	}
	began := count()
	for i := range cycles {
		unlock(t, lock(t, l.Mutex(fmt.Sprint("other ", i))))
	}
	if calls := count() - began; calls > 3*2*cycles+4 { // but for one whose counter is that of b
		t.Errorf("%d locks of other names after a far floor: %d calls of the nodes, want six each", cycles, calls)
	}
}

// The clients' pools tell of failed dials for up to a second after an outage. An Unlock bridges that.
func TestUnlockRightAfterAnOutage(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	var down atomic.Bool
	var conns sync.Map
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if down.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("refused by the test")}
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			conns.Store(conn, nil)
		}
		return conn, err
	}
	var clients []goredis.UniversalClient
	for _, addr := range c.addrs {
		r := goredis.NewClient(&goredis.Options{Addr: addr, PoolSize: 1, DialerRetries: 1, Dialer: dial})
		t.Cleanup(func() { _ = r.Close() })
		clients = append(clients, r)
	}
	d, err := redlock.New(clients, &redlock.Options{Fresh: true})
	must(t, err)
	l, err := fencelock.New(d, fencelock.WithTTL(time.Minute))
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	le := lock(t, l.Mutex("held"))
	down.Store(true)
	conns.Range(func(conn, _ any) bool { _ = conn.(net.Conn).Close(); return true })
	for range 3 {
		_, err := l.Inspect(t.Context(), "x")
		want(t, "Inspect", err, fencelock.ErrUnavailable)
	}
	down.Store(false)
	must(t, le.Unlock(t.Context()))
}
