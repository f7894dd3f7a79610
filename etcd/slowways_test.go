package etcd_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
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

// Many holds are looked at and renewed at once, and not one transaction after the other.
func TestManyHoldsOnASlowWay(t *testing.T) {
	t.Parallel()
	r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "slow:")
	p, url := r.proxied(t)
	l := open(t, url, fencelock.WithTTL(4*time.Second))
	held := make([]*fencelock.Lease, 2000)
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
	p.Set(faultproxy.Mode{Delay: 90 * time.Millisecond})
	<-time.After(6 * time.Second)
	p.Set(faultproxy.Mode{})
	lost := 0
	for _, le := range held {
		if le.Err() != nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d holds were lost on a way of 180 ms", lost, len(held))
	}
}
