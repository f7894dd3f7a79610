package redlock_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/testkit"
)

// Two clients that split the votes of the nodes that answer, while another is silent, come to an end: it is not waited
// for as long as for a majority, and the nodes that answer keep the lock for the same one of the two.
func TestSplitBesideASilentNode(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	var ls []*fencelock.Locker
	for far := range 2 { // each has one node nearer than the other has it, so that both vote first for another one
		proxies, through := c.proxied(t, "fresh=1")
		proxies[far].Set(faultproxy.Mode{Delay: 5 * time.Millisecond})
		l := open(t, through)
		unlock(t, lock(t, l.Mutex("warm")))
		ls = append(ls, l)
	}
	must(t, c.Servers()[2].Pause())
	t.Cleanup(func() { _ = c.Servers()[2].Resume() })
	var all []time.Duration
	for i := range 20 {
		name := fmt.Sprint("a", i)
		began := time.Now()
		first, second := testkit.Start(t, ls[0].Mutex(name)), testkit.Start(t, ls[1].Mutex(name))
		select {
		case <-first.Done:
		case <-second.Done:
			first, second = second, first
		case <-time.After(10 * time.Second):
			t.Fatal("nobody is granted the lock within 10s")
		}
		all = append(all, time.Since(began))
		unlock(t, first.Granted(t, time.Second))
		unlock(t, second.Granted(t, 2*time.Second))
	}
	slices.Sort(all)
	t.Logf("the first grants took %v", all)
	if all[len(all)/2] > time.Second {
		t.Errorf("the first grants took %v, want far less than a call to the silent node", all)
	}
}

// A try of a lock of which one node is another's is told so in time, though a node is silent.
func TestTryBesideASilentNode(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	l := open(t, c.url("fresh=1"))
	unlock(t, lock(t, l.Mutex("warm")))
	must(t, c.direct[0].Set(t.Context(), "fencelock:a", "a stranger's", time.Minute).Err())
	must(t, c.Servers()[2].Pause())
	t.Cleanup(func() { _ = c.Servers()[2].Resume() })
	began := time.Now()
	_, err := l.Mutex("a").TryLock(t.Context())
	took := time.Since(began)
	want(t, "TryLock", err, fencelock.ErrLocked)
	if took > time.Second || errors.Is(err, fencelock.ErrUnavailable) {
		t.Errorf("after %v: got %v, want far less than a call to the silent node", took, err)
	}
}

// A node that is slow, and not silent, decides where one of the others is another's: also once a call to it has failed,
// when the next one has to make a connection.
func TestSlowNodeDecides(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	proxies[2].Set(faultproxy.Mode{Delay: 50 * time.Millisecond})
	l := open(t, through)
	must(t, c.direct[0].Set(t.Context(), "fencelock:a", "a stranger's", time.Minute).Err())
	for range 5 {
		le, err := l.Mutex("a").TryLock(t.Context())
		must(t, err)
		unlock(t, le)
	}
	refuse(proxies[2])
	other := lock(t, l.Mutex("b"))
	refused := func(c faultproxy.Counts) bool { return c.Refused > 0 }
	must(t, proxies[2].Await(testkit.Within(t, 10*time.Second), refused))
	unlock(t, other)
	proxies[2].Set(faultproxy.Mode{Delay: 50 * time.Millisecond})
	le, err := l.Mutex("a").TryLock(t.Context())
	must(t, err)
	unlock(t, le)
}
