package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/zookeeper"
)

// A session is cut off while it does not know what became of grants and a release that left together. Other sessions of
// the process go on meanwhile, and when it is back each holder has the token that its node shows.
func TestCutSession(t *testing.T) {
	t.Parallel()
	for what, mode := range map[string]faultproxy.Mode{
		"not done": {HoldRequests: true}, "done": {HoldReplies: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cutSession(t, mode)
		})
	}
}

func cutSession(t *testing.T, mode faultproxy.Mode) {
	// The third request of a session leaves when it has as much as this, while two are under way.
	const together = 16
	z := single(t)
	p := testkit.Proxied(t, z.Servers()[0].Addr())
	var direct, away atomic.Bool
	g := &gate{}
	d, err := zookeeper.New(z.Addrs(), &zookeeper.Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			switch {
			case away.Load():
				return nil, errors.New("refused")
			case direct.Load():
				return new(net.Dialer).DialContext(ctx, network, address)
			}
			conn, err := new(net.Dialer).DialContext(ctx, network, p.Addr())
			return gated{conn, g}, err
		},
	})
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	name := func(i int) string { return fmt.Sprint("name-", i) }
	cut, other := fencelock.WithTTL(20*time.Second), fencelock.WithTTL(10*time.Second)
	var plugs []*fencelock.Lease
	for i := range 3 {
		plugs = append(plugs, lock(t, l.Mutex(fmt.Sprint("plug-", i), cut)))
	}
	unlock(t, lock(t, l.Mutex(name(0), cut))) // the base is known
	direct.Store(true)
	kept := lock(t, l.Mutex("kept", other)) // keeps the other session
	direct.Store(false)

	var sent atomic.Int64
	g.hold(func(request []byte) bool {
		if about("/done/")(request) {
			sent.Add(1)
		}
		if about("/done/", "/tokens/last-")(request) {
			sent.Add(100)
		}
		return false
	})
	p.Set(mode)
	var wg sync.WaitGroup
	released := make([]error, len(plugs))
	release := func(i int) { wg.Go(func() { released[i] = plugs[i].Unlock(t.Context()) }) }
	for i := range 2 {
		release(i)
		await(t, 5*time.Second, "a release has left", func() bool { return sent.Load() == int64(i+1) })
	}
	release(2)
	leases, errs := make([]*fencelock.Lease, together-1), make([]error, together-1)
	for i := range leases {
		wg.Go(func() { leases[i], errs[i] = l.Mutex(name(i), cut).TryLock(t.Context()) })
	}
	await(t, 5*time.Second, "a release and grants have left together", func() bool { return sent.Load() == 103 })
	if !mode.HoldRequests {
		c := foreign(t, z.Addrs()...)
		await(t, 5*time.Second, "the grants are done", func() bool {
			return len(nodes(t, c, name(together-2), "held-")) == 1
		})
	}
	away.Store(true)
	p.Cut()

	began := time.Now()
	got, err := l.Mutex(name(together), other).TryLock(within(t, 5*time.Second))
	took := time.Since(began)
	away.Store(false)
	p.Set(faultproxy.Mode{})
	must(t, err)
	t.Logf("beside a session that is cut off: granted after %v", took)
	wg.Wait()
	must(t, errors.Join(released...))
	must(t, errors.Join(errs...))
	for i, le := range append(leases, got) {
		info, err := l.Inspect(t.Context(), le.Name())
		if err != nil || info.Token != le.Token() || le.Token() <= 0 {
			t.Errorf("lock %d: got token %d, and %d, %v of Inspect", i, le.Token(), info.Token, err)
		}
		unlock(t, le)
	}
	unlock(t, kept)
}
