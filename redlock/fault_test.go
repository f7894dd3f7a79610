package redlock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/testkit"
)

var blackHole = faultproxy.Mode{HoldRequests: true, HoldReplies: true}

// A minority that is down, silent or empty changes nothing; a majority that is refuses.
func TestMinorityAndMajority(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		how   string
		renew error // of a held lease without a majority
		fail  func(t *testing.T, c *cluster, p []*faultproxy.Proxy, node int)
	}{
		{
			"killed", fencelock.ErrUnavailable,
			func(t *testing.T, c *cluster, _ []*faultproxy.Proxy, node int) {
				must(t, c.Servers()[node].Kill())
			},
		},
		{"paused", fencelock.ErrUnavailable, func(t *testing.T, c *cluster, _ []*faultproxy.Proxy, node int) {
			must(t, c.Servers()[node].Pause())
			t.Cleanup(func() { _ = c.Servers()[node].Resume() })
		}},
		{
			"black-holed", fencelock.ErrUnavailable,
			func(_ *testing.T, _ *cluster, p []*faultproxy.Proxy, node int) {
				p[node].Set(blackHole)
			},
		},
		{"restarted empty", fencelock.ErrLost, func(t *testing.T, c *cluster, _ []*faultproxy.Proxy, node int) {
			must(t, c.Servers()[node].Restart(false))
		}},
	} {
		for _, n := range []int{3, 5} {
			t.Run(fmt.Sprintf("%s of %d", tt.how, n), func(t *testing.T) {
				t.Parallel()
				c := start(t, n)
				proxies, through := c.proxied(t, "fresh=1")
				l := open(t, through)
				held := lock(t, l.Mutex("held"))
				for node := range n / 2 {
					tt.fail(t, c, proxies, node)
				}
				for i := range 3 {
					le := lock(t, l.Mutex("free"))
					must(t, le.Renew(t.Context()))
					must(t, le.Unlock(t.Context()))
					_, err := l.Mutex("held").TryLock(t.Context())
					want(t, fmt.Sprintf("try %d of a held lock", i), err, fencelock.ErrLocked)
				}
				must(t, held.Renew(t.Context()))
				tt.fail(t, c, proxies, n/2)
				_, err := l.Mutex("free").TryLock(t.Context())
				want(t, "TryLock without a majority", err, fencelock.ErrUnavailable)
				want(t, "Renew without a majority", held.Renew(t.Context()), tt.renew)
			})
		}
	}
}

// One hung node delays nothing noticeably: far less than a call to it may take.
func TestHungNodeDelaysNothing(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	l, other := open(t, c.url("fresh=1")), open(t, c.url("fresh=1"))
	unlock(t, lock(t, l.Mutex("a")))
	unlock(t, lock(t, other.Mutex("a")))
	must(t, c.Servers()[1].Pause())
	t.Cleanup(func() { _ = c.Servers()[1].Resume() })
	const rounds = 30
	began := time.Now()
	for range rounds {
		le := lock(t, l.Mutex("a"))
		_, err := other.Mutex("a").TryLock(t.Context())
		want(t, "TryLock", err, fencelock.ErrLocked)
		must(t, le.Renew(t.Context()))
		must(t, le.Unlock(t.Context()))
	}
	if each := time.Since(began) / rounds; each > 300*time.Millisecond {
		t.Errorf("a round with a hung node took %v", each)
	}
	must(t, c.Servers()[1].Resume())
	await(t, 10*time.Second, "what was owed to the hung node is done when it answers again",
		func() bool { return c.value(t, 1, "a") == "" })
}

// A waiter is woken by push although a node is down, and gets the lock at once.
func TestPushWithANodeDown(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	a, b := open(t, c.url("fresh=1")), open(t, c.url(""))
	must(t, c.Servers()[0].Kill())
	le := lock(t, a.Mutex("a"))
	type result struct {
		le  *fencelock.Lease
		err error
		at  time.Time
	}
	got := make(chan result, 1)
	go func() {
		le, err := b.Mutex("a").Lock(t.Context())
		got <- result{le, err, time.Now()}
	}()
	await(t, 10*time.Second, "it waits", func() bool {
		info, err := a.Inspect(t.Context(), "a")
		return err == nil && info.Waiters == 1
	})
	began := time.Now()
	unlock(t, le)
	r := <-got
	must(t, r.err)
	if took := r.at.Sub(began); took > 1500*time.Millisecond { // the floor timer is at 3 s
		t.Errorf("handed over after %v", took)
	}
	unlock(t, r.le)
}

// count sets all counters of a node.
func (c *cluster) count(t *testing.T, node int, to int64) {
	t.Helper()
	var all []any
	for b := range 4096 {
		all = append(all, fmt.Sprint("c", b), to)
	}
	must(t, c.direct[node].HSet(t.Context(), state, all...).Err())
}

// The votes disagree: the greatest is the token, a majority carries it, and the next grant is above it, with the votes
// of any nodes.
func TestWriteBack(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l := open(t, through)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	refuse(proxies[0]) // so that node 2 is one of the two that vote
	c.count(t, 2, ahead)
	le := lock(t, l.Mutex("a"))
	if le.Token() != ahead+1 {
		t.Fatalf("token: got %d, want %d, one above the greatest counter", le.Token(), ahead+1)
	}
	for _, node := range []int{1, 2} {
		if v := c.value(t, node, "a"); !strings.Contains(v, fmt.Sprintf(":%d:", ahead+1)) {
			t.Errorf("node %d has %q, want the token", node, v)
		}
		if left := c.direct[node].PTTL(t.Context(), "fencelock:a").Val(); left <= 0 {
			t.Errorf("node %d keeps the lock for %v after the write-back, want an expiry", node, left)
		}
	}
	unlock(t, le)
	proxies[0].Set(faultproxy.Mode{})
	refuse(proxies[2]) // the one with the high counter is not asked
	next := lock(t, l.Mutex("a"))
	if next.Token() <= le.Token() {
		t.Errorf("token: got %d after %d", next.Token(), le.Token())
	}
	unlock(t, next)
}

// A vote that comes after the grant, with a greater number, does not change the token of the same
// Acquire sent again.
func TestLateVoteKeepsTheToken(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	d := closing(t, through)
	for i := range 6 {
		late := i % 3
		proxies[late].Set(faultproxy.Mode{HoldRequests: true})
		r := request(fmt.Sprint("a", i), "abcdef"[i:i+1], "") // no nonce twice: what is left of one refuses it
		first, err := d.Acquire(t.Context(), r)
		must(t, err)
		c.count(t, late, time.Now().Add(time.Hour+time.Duration(i)*time.Minute).UnixMicro())
		proxies[late].Set(faultproxy.Mode{})
		await(t, 5*time.Second, "the late vote", func() bool { return c.value(t, late, r.Name) != "" })
		again, err := d.Acquire(t.Context(), r)
		must(t, err)
		if again.Token != first.Token {
			t.Errorf("token: got %d, and sent again %d", first.Token, again.Token)
		}
		must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: again}))
	}
}

// A vote request that arrives after its acquisition was given up finds a tombstone, and takes nothing.
func TestLateRequestTakesNothing(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l := open(t, through)
	unlock(t, lock(t, l.Mutex("warm")))
	for _, p := range proxies {
		p.Set(faultproxy.Mode{HoldRequests: true})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := l.Mutex("a").TryLock(ctx); err == nil {
		t.Fatal("granted by silence")
	}
	for _, p := range proxies {
		p.Set(faultproxy.Mode{}) // the held requests are delivered now
	}
	other := open(t, c.url(""))
	await(t, 10*time.Second, "nothing is held", func() bool {
		le, err := other.Mutex("a").TryLock(t.Context())
		if err == nil {
			unlock(t, le)
		}
		return err == nil && c.value(t, 0, "a")+c.value(t, 1, "a")+c.value(t, 2, "a") == ""
	})
}

// A node that is down when a lock is released is told when it is back, though nobody asks it anything else.
func TestOwedToANodeThatWasDown(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l := open(t, through, fencelock.WithTTL(time.Minute))
	le := lock(t, l.Mutex("a"))
	await(t, 5*time.Second, "all have voted", func() bool { return c.value(t, 0, "a") != "" })
	refuse(proxies[0])
	unlock(t, le)
	if c.value(t, 0, "a") == "" {
		t.Fatal("the node that is down has freed the lock")
	}
	proxies[0].Set(faultproxy.Mode{})
	await(t, 15*time.Second, "the node frees the lock", func() bool { return c.value(t, 0, "a") == "" })
}

// A node that answers again just before Close is told what it is owed.
func TestCloseSendsWhatIsOwed(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l, err := fencelock.Open(t.Context(), through, fencelock.WithTTL(time.Minute))
	must(t, err)
	defer func() { _ = l.Close() }()
	le := lock(t, l.Mutex("a"))
	await(t, 5*time.Second, "all have voted", func() bool { return c.value(t, 0, "a") != "" })
	refuse(proxies[0])
	unlock(t, le)
	<-time.After(2 * time.Second) // the next try by itself is seconds away
	proxies[0].Set(faultproxy.Mode{})
	must(t, l.Close())
	if v := c.value(t, 0, "a"); v != "" {
		t.Errorf("after Close the node still has %q", v)
	}
}

// Close takes the 5 s that the engine has for releases, and not a call to silent nodes more.
func TestCloseBesideSilentNodes(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l := open(t, through)
	lock(t, l.Mutex("a"))
	for _, p := range proxies {
		p.Set(blackHole)
	}
	began := time.Now()
	err := l.Close()
	if took := time.Since(began); err == nil || took > 6*time.Second {
		t.Errorf("after %v: %v, want an error after 5s", took, err)
	}
}

// A lease that began with a bare majority gets the vote of the node that refused it, once that is free, and not only
// with the next renewal: then it outlives another node.
func TestBareMajorityIsMended(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	l := open(t, c.url("fresh=1"), fencelock.WithTTL(time.Minute), fencelock.WithManualRenew())
	unlock(t, lock(t, l.Mutex("warm")))
	must(t, c.direct[2].Set(t.Context(), "fencelock:a", "a stranger's", 300*time.Millisecond).Err())
	le := lock(t, l.Mutex("a"))
	await(t, 10*time.Second, "the node that refused has a vote", func() bool {
		return strings.Contains(c.value(t, 2, "a"), fmt.Sprintf(":%d:", le.Token()))
	})
	must(t, c.Servers()[1].Kill())
	must(t, le.Renew(t.Context()))
	unlock(t, le)
}

// A node that always refuses, as no other will, does not make the outage of another one final: it is waited out.
func TestOutageBesideANodeThatRefuses(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l := open(t, through)
	unlock(t, lock(t, l.Mutex("warm")))
	must(t, c.direct[0].HSet(t.Context(), "fencelock:a", "x", 1).Err())
	refuse(proxies[1])
	_, err := l.Mutex("a").TryLock(t.Context())
	want(t, "TryLock in the outage", err, fencelock.ErrUnavailable)
	got := make(chan error, 1)
	go func() {
		_, err := l.Mutex("a").Lock(t.Context())
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("Lock in the outage: got %v, want it to wait", err)
	case <-time.After(time.Second):
	}
	proxies[1].Set(faultproxy.Mode{})
	must(t, <-got)
	must(t, c.direct[1].HSet(t.Context(), "fencelock:b", "x", 1).Err())
	must(t, c.direct[2].HSet(t.Context(), "fencelock:b", "x", 1).Err())
	_, err = l.Mutex("b").Lock(t.Context())
	want(t, "Lock where too few nodes are left", err, fencelock.ErrInvalid)
}

// What stands in a lock's way on a minority of the nodes hides no holder, and keeps nobody from breaking the lock.
func TestForeignKeyOnOneNode(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	l := open(t, c.url("fresh=1"))
	must(t, c.direct[2].HSet(t.Context(), "fencelock:a", "x", 1).Err())
	le := lock(t, l.Mutex("a"))
	info, err := l.Inspect(t.Context(), "a")
	if err != nil || !info.Held || info.Token != le.Token() {
		t.Errorf("Inspect: got %+v, %v, want it held with token %d", info, err, le.Token())
	}
	listed := 0
	for _, err := range l.List(t.Context(), "") {
		must(t, err)
		listed++
	}
	if listed != 1 {
		t.Errorf("List: got %d locks, want 1", listed)
	}
	must(t, l.Break(t.Context(), "a"))
	testkit.Lost(t, le, 2*time.Second, fencelock.Revoked)
	unlock(t, lock(t, l.Mutex("a")))
	must(t, c.direct[0].HSet(t.Context(), "fencelock:a", "x", 1).Err())
	_, err = l.Inspect(t.Context(), "a")
	want(t, "Inspect where no majority is left", err, fencelock.ErrInvalid)
	want(t, "Break where no majority is left", l.Break(t.Context(), "a"), fencelock.ErrInvalid)
}

// One node still has a vote of a lock that is released, as before a late release arrives, and
// another one is late with its answer to the look: their word decides, and is waited for.
func TestInspectWaitsForTheNodeThatDecides(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l := open(t, through)
	for i := range 3 {
		le := lock(t, l.Mutex("n"))
		await(t, 5*time.Second, "the vote", func() bool { return c.value(t, i, "n") != "" })
		vote := c.value(t, i, "n")
		unlock(t, le)
		await(t, 5*time.Second, "the release", func() bool { return c.value(t, i, "n") == "" })
		must(t, c.direct[i].Set(t.Context(), "fencelock:n", vote, 30*time.Second).Err())
		proxies[(i+1)%3].Set(faultproxy.Mode{Delay: 40 * time.Millisecond})
		if info, err := l.Inspect(t.Context(), "n"); err != nil || info.Held {
			t.Errorf("a vote is left on node %d: got %+v, %v, want the lock free", i, info, err)
		}
		proxies[(i+1)%3].Set(faultproxy.Mode{})
		must(t, c.direct[i].Del(t.Context(), "fencelock:n").Err())
	}
}

// A vote that came after the token was settled has a number of its own, which is not shown as the token.
func TestInspectWaitsForTheToken(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	l := open(t, through)
	for i := range 3 {
		le := lock(t, l.Mutex("n"))
		for j := range 3 {
			await(t, 5*time.Second, "the vote", func() bool { return c.value(t, j, "n") != "" })
		}
		vote := strings.SplitN(c.value(t, i, "n"), ":", 3)
		late := fmt.Sprintf("%s:%d:%s", vote[0], le.Token()+1000, vote[2])
		must(t, c.direct[i].Set(t.Context(), "fencelock:n", late, 30*time.Second).Err())
		proxies[(i+1)%3].Set(faultproxy.Mode{Delay: 40 * time.Millisecond})
		if info, err := l.Inspect(t.Context(), "n"); err != nil || info.Token != le.Token() {
			t.Errorf("a late vote on node %d: got %+v, %v, want the token %d", i, info, err, le.Token())
		}
		proxies[(i+1)%3].Set(faultproxy.Mode{})
		unlock(t, le)
	}
}

// A connection to each node is lost without a word. What is asked later goes over others, and waits for none of those.
func TestSilentConnectionsDelayNothing(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	d := closing(t, through)
	for i := range 3 {
		for _, p := range proxies {
			p.Set(faultproxy.Mode{Delay: 5 * time.Second})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := d.Acquire(ctx, request(fmt.Sprint("lost", i), "abc"[i:i+1], ""))
		cancel()
		want(t, "Acquire over connections that are silent", err, context.DeadlineExceeded)
		for _, p := range proxies {
			p.Set(faultproxy.Mode{})
		}
		for j := range 3 { // each request comes soon after the one before it
			began := time.Now()
			r := request(fmt.Sprint("a", i, j), fmt.Sprint(3*i+j), "")
			g, err := d.Acquire(t.Context(), r)
			must(t, err)
			must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: g}))
			if took := time.Since(began); took > time.Second { // a call to a node ends after 2 s
				t.Errorf("Acquire and Release took %v", took)
			}
		}
	}
}

// A Break that a majority has carried out, though not the nodes with the votes, holds: a node without a vote gives the
// holder none later, and one that was down frees the lock when it answers.
func TestBreakIsNotUndoneByLateVotes(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	proxies, through := c.proxied(t, "fresh=1")
	a := open(t, through, fencelock.WithTTL(time.Minute))
	theirs, other := c.proxied(t, "")
	b := open(t, other)
	unlock(t, lock(t, a.Mutex("a")))
	proxies[2].Set(faultproxy.Mode{HoldRequests: true})
	le := lock(t, a.Mutex("a"))
	refuse(theirs[1])
	must(t, b.Break(t.Context(), "a"))
	proxies[2].Set(faultproxy.Mode{})
	await(t, 5*time.Second, "the holder hears of it", func() bool {
		return le.Err() != nil || le.Renew(t.Context()) != nil
	})
	theirs[1].Set(faultproxy.Mode{})
	await(t, 15*time.Second, "all have freed the lock", func() bool {
		return c.value(t, 0, "a")+c.value(t, 1, "a")+c.value(t, 2, "a") == ""
	})
}

// The operator's word that nothing was forgotten is void where a node has settled, whichever others answer.
func TestFreshBesideASettledNode(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	unlock(t, lock(t, open(t, c.url("fresh=1")).Mutex("a")))
	must(t, c.Servers()[2].Pause())
	t.Cleanup(func() { _ = c.Servers()[2].Resume() })
	unlock(t, lock(t, open(t, c.url("fresh=1")).Mutex("a")))
	must(t, c.Servers()[2].Kill())
	unlock(t, lock(t, open(t, c.url("fresh=1")).Mutex("a")))
}

// A node whose state is of another type, which some other program has put there, says so.
func TestForeignState(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	l := open(t, c.url("fresh=1"))
	unlock(t, lock(t, l.Mutex("a")))
	for _, r := range c.direct {
		must(t, r.Del(t.Context(), state).Err())
		must(t, r.Set(t.Context(), state, "x", 0).Err())
	}
	_, err := l.Mutex("a").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrInvalid)
}
