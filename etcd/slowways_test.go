package etcd_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// passed returns a lease that another client has passed on to one whose round trips take so long, and that one's
// proxy.
func passed(t *testing.T, trip time.Duration, opts ...fencelock.Option) (*fencelock.Lease, *faultproxy.Proxy) {
	t.Helper()
	r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "slow:")
	p, url := r.proxied(t)
	other, l := open(t, r.url()), open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	p.Set(faultproxy.Mode{Delay: trip / 2})
	le := lock(t, other.Mutex("x"))
	wait := r.wait(t, l.Mutex("x", opts...), 2)
	<-time.After(2 * time.Second) // until what was confirmed of its lease is old
	unlock(t, le)
	return wait.Granted(t, 10*time.Second), p
}

// On a slow way a waiter that has a lease of its own learns that it was granted the lock, though the answer of each
// first send comes too late.
func TestWaiterOnASlowWay(t *testing.T) {
	t.Parallel()
	le, p := passed(t, 400*time.Millisecond, fencelock.WithManualRenew())
	p.Set(faultproxy.Mode{})
	unlock(t, le)
}

// An heir on a slow way keeps the lock: its first renewal is one round trip.
func TestHeirOnASlowWay(t *testing.T) {
	t.Parallel()
	le, p := passed(t, 560*time.Millisecond)
	select {
	case <-le.Done():
		t.Errorf("the heir lost it: %v", le.Err())
	case <-time.After(5 * time.Second):
	}
	p.Set(faultproxy.Mode{})
	unlock(t, le)
}

// A waiter whose way becomes so slow that each look at the store takes half of the time that it has waits on, and is
// granted the lock.
func TestWayBecomesSlow(t *testing.T) {
	t.Parallel()
	r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "slow:")
	p, url := r.proxied(t)
	le := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, open(t, url).Mutex("x"), 2)
	p.Set(faultproxy.Mode{Delay: 500 * time.Millisecond})
	select {
	case <-wait.Done:
		t.Errorf("the wait has ended: %v", wait.Err)
	case <-time.After(core.Patience + 3*time.Second):
	}
	unlock(t, le)
	next := wait.Granted(t, 15*time.Second)
	p.Set(faultproxy.Mode{})
	unlock(t, next)
}

// Many holds are looked at and renewed at once, and not one transaction after the other.
func TestManyHoldsOnASlowWay(t *testing.T) {
	t.Parallel()
	r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "slow:")
	p, url := r.proxied(t)
	l := open(t, url, fencelock.WithTTL(4*time.Second))
	held := make([]*fencelock.Lease, 1000) // nine transactions, which are too many for a third of the TTL
	var wg sync.WaitGroup
	for i := range held {
		wg.Go(func() {
			var err error
			if held[i], err = l.Mutex(fmt.Sprint("n", i)).Lock(within(t, 20*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
	if wg.Wait(); t.Failed() {
		return
	}
	p.Set(faultproxy.Mode{Delay: 150 * time.Millisecond})
	<-time.After(6 * time.Second)
	p.Set(faultproxy.Mode{})
	lost := 0
	for _, le := range held {
		if le.Err() != nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d holds were lost on a way of 300 ms", lost, len(held))
	}
}
