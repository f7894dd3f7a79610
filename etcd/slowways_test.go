package etcd_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// On a slow way a waiter that has a lease of its own learns that it was granted the lock, though the answer of each
// first send comes too late.
func TestWaiterOnASlowWay(t *testing.T) {
	t.Parallel()
	r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "slow:")
	p, url := r.proxied(t)
	other, l := open(t, r.url()), open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	p.Set(faultproxy.Mode{Delay: 200 * time.Millisecond})
	le := lock(t, other.Mutex("x"))
	wait := r.wait(t, l.Mutex("x", fencelock.WithManualRenew()), 2)
	<-time.After(2 * time.Second) // until what was confirmed of its lease is old
	unlock(t, le)
	next := wait.Granted(t, 10*time.Second)
	p.Set(faultproxy.Mode{})
	unlock(t, next)
}

// A Lock that begins where each answer takes 900 ms, longer than the first send of a request waits, has its lease and
// the lock within the patience of a wait.
func TestLockBeginsOnASlowWay(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	for what, opt := range map[string][]fencelock.Option{
		"a shared lease":     nil,
		"a lease of its own": {fencelock.WithManualRenew()},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := on(t, e, what+":")
			p, url := r.proxied(t)
			l := open(t, url)
			p.Set(faultproxy.Mode{Delay: 450 * time.Millisecond})
			le, err := l.Mutex("x", opt...).Lock(within(t, 20*time.Second))
			p.Set(faultproxy.Mode{})
			must(t, err)
			unlock(t, le)
		})
	}
}

// The same of a Lock that waits.
func TestWaitBeginsOnASlowWay(t *testing.T) {
	t.Parallel()
	r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "slow:")
	p, url := r.proxied(t)
	le := lock(t, open(t, r.url()).Mutex("x"))
	l := open(t, url)
	p.Set(faultproxy.Mode{Delay: 450 * time.Millisecond})
	wait := start(t, l.Mutex("x"))
	await(t, 20*time.Second, "it is in the queue, or gives up", func() bool {
		return len(r.queue(t, "x")) == 2 || wait.Over()
	})
	<-time.After(core.Patience + time.Second)
	if wait.Over() {
		t.Fatalf("the wait has ended: %v", wait.Err)
	}
	p.Set(faultproxy.Mode{})
	unlock(t, le)
	unlock(t, wait.Granted(t, 10*time.Second))
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
	l := open(t, url, fencelock.WithTTL(9*time.Second))
	held := make([]*fencelock.Lease, 1500) // 13 transactions, which are too many for a third of the TTL
	for at := 0; at < len(held) && !t.Failed(); at += 50 {
		crowd(50, func(i int) {
			var err error
			if held[at+i], err = l.Mutex(fmt.Sprint("n", at+i)).Lock(within(t, 20*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
	if t.Failed() {
		return
	}
	p.Set(faultproxy.Mode{Delay: 150 * time.Millisecond})
	<-time.After(11 * time.Second)
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
