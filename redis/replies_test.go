package redis_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// calling matches requests that call a script for a lock.
func calling(hash, name string) func([]byte) bool {
	return func(request []byte) bool {
		return bytes.Contains(request, []byte(hash)) && bytes.Contains(request, []byte(key(name)+"\r\n"))
	}
}

// acquiring and releasing match requests that do that with a lock: those name the slot's counter,
// these do not.
func acquiring(name string) func([]byte) bool { return naming(true, name) }
func releasing(name string) func([]byte) bool { return naming(false, name) }

func naming(counter bool, name string) func([]byte) bool {
	run := calling(redis.RunHash, name)
	return func(request []byte) bool { return run(request) && bytes.Contains(request, []byte("}c\r\n")) == counter }
}

// looking matches requests that look whether a lock is held still.
func looking(name string) func([]byte) bool { return calling("mget", name) }

func TestLostReplyOfAcquire(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	for i, take := range []func(fencelock.Mutex) (*fencelock.Lease, error){
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.TryLock(t.Context()) },
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.Lock(within(t, 5*time.Second)) },
	} {
		name := fmt.Sprint("x-", i)
		p.LoseReplyTo(1, acquiring(name))
		lostBefore := p.Counts().LostReplies
		le, err := take(l.Mutex(name))
		must(t, err)
		if n := p.Counts().LostReplies - lostBefore; n != 1 {
			t.Errorf("%s: %d replies were lost, want 1", name, n)
		}
		if drawn, err := c.Get(t.Context(), redis.OursOf(key(name))+"c").Int64(); err != nil || drawn != le.Token() {
			t.Errorf(
				"%s: the last token drawn is %d (%v), the lease has %d: want no second token",
				name,
				drawn,
				err,
				le.Token(),
			)
		}
		unlock(t, le)
	}
	awaitTombstones(t, c, time.Second)
}

func TestLostReplyOfWaitersConfirmation(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	le := lock(t, open(t, s.URL()).Mutex("x"))
	p, url := proxied(t, s)
	wait := queue(t, c, open(t, url, fencelock.WithManualRenew()), "x", 1)
	p.LoseReplyTo(1, acquiring("x"))
	unlock(t, le)
	got := wait.Granted(t, 2*time.Second)
	if n := p.Counts().LostReplies; n != 1 {
		t.Errorf("%d replies were lost, want 1", n)
	}
	if drawn := c.Get(t.Context(), redis.OursOf(key("x"))+"c").Val(); drawn != fmt.Sprint(got.Token()) {
		t.Errorf("the last token drawn is %s, the lease has %d", drawn, got.Token())
	}
	unlock(t, got)
	awaitTombstones(t, c, time.Second)
}

func TestLostReplyOfRenewal(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	p, url := proxied(t, s)
	var seen events
	l := open(t, url, fencelock.WithTTL(1500*time.Millisecond), fencelock.WithObserver(&seen))
	le := lock(t, l.Mutex("x"))
	must(t, le.Renew(t.Context())) // the server has the script
	p.LoseReplyTo(1, calling(redis.RenewHash, "x"))
	deadline := le.Deadline()
	must(t, le.Renew(t.Context()))
	if !le.Deadline().After(deadline) {
		t.Error("the renewal whose reply was lost did not move the Deadline")
	}
	before := p.Counts().LostReplies
	p.LoseReplyTo(2, calling(redis.RenewHash, "x")) // in the background
	must(t, p.Await(within(t, 3*time.Second), lostMoreThan(before+1)))
	renewed := seen.count(fencelock.Renewed)
	await(t, 2*time.Second, "renewed after that", func() bool { return seen.count(fencelock.Renewed) > renewed })
	must(t, le.Err())
	unlock(t, le)

	long := lock(t, l.Mutex("y", fencelock.WithTTL(20*time.Second)))
	before = p.Counts().LostReplies
	p.LoseReplyTo(3, looking("y")) // one check with its second try, and the next
	must(t, p.Await(within(t, 4*time.Second), lostMoreThan(before+2)))
	must(t, long.Err())
	unlock(t, long)
}

func TestLostReplyOfRelease(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	l, other := open(t, url), open(t, s.URL())
	unlock(t, lock(t, l.Mutex("warm")))

	le := lock(t, l.Mutex("x"))
	p.LoseReplyTo(1, releasing("x"))
	must(t, le.Unlock(t.Context()))
	want(t, "a second Unlock", le.Unlock(t.Context()), fencelock.ErrReleased)

	// No reply at all: unknown. The release sent again after the next grant is nil, and frees nobody.
	le = lock(t, l.Mutex("x"))
	p.LoseReplyTo(100, releasing("x"))
	want(t, "Unlock without any reply", le.Unlock(t.Context()), fencelock.ErrUnavailable)
	p.LoseReplyTo(0, nil)
	next := lock(t, other.Mutex("x"))
	must(t, le.Unlock(t.Context()))
	want(t, "Unlock after that", le.Unlock(t.Context()), fencelock.ErrReleased)
	info, err := other.Inspect(t.Context(), "x")
	must(t, err)
	if !info.Held || info.Token != next.Token() {
		t.Errorf("after the repeated release: got %+v, want it held with token %d", info, next.Token())
	}
	must(t, next.Renew(t.Context()))
	unlock(t, next)
	awaitClean(t, c, time.Second)
}

// A release that has freed the lock and cannot hand it on says why. Called again it is not told that the lock was lost.
func TestReleaseThatCannotHandOn(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	l, other := open(t, s.URL()), open(t, s.URL())
	for name, holds := range map[string]locks{"x": l.Mutex("x").Lock, "y": l.RWMutex("y").RLock} {
		le := get(t, holds)
		wait := queue(t, c, other, name, 1)
		must(t, c.Set(t.Context(), redis.OursOf(key(name))+"c", "no number", 0).Err())
		want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrInvalid)
		<-wait.Done
		want(t, "the waiter's Lock", wait.Err, fencelock.ErrInvalid)
		await(t, 2*time.Second, "nobody waits", func() bool { return queued(t, c, name) == 0 })
		must(t, le.Unlock(t.Context()))
	}
}

// A release that is sent twice hands over once.
func TestLostReplyOfReleaseWithWaiters(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	le := lock(t, l.Mutex("x"))
	first := queue(t, c, open(t, s.URL()), "x", 1)
	second := queue(t, c, open(t, s.URL()), "x", 2)
	p.LoseReplyTo(1, releasing("x"))
	unlock(t, le)
	held := first.Granted(t, time.Second)
	if second.Over() {
		t.Error("the second waiter was served too")
	}
	must(t, held.Err())
	if n := queued(t, c, "x"); n != 1 {
		t.Errorf("in the queue: got %d, want 1", n)
	}
	unlock(t, held)
	unlock(t, second.Granted(t, time.Second))
	awaitClean(t, c, time.Second)
}

// A release that is sent again finds what the first one did, also by a driver that knows nothing of
// it; but not what another has taken away.
func TestReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	p, url := proxied(t, s)
	d := closing(t, url)
	hold := func(name string) *core.Hold {
		r := request(name, nonce(name[0]), "")
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		return &core.Hold{Request: r, Grant: g}
	}
	silently := func(h *core.Hold) {
		t.Helper()
		p.LoseReplyTo(100, releasing(h.Name))
		if err := d.Release(t.Context(), h); err == nil || errors.Is(err, backend.ErrLost) {
			t.Errorf("a release without an answer: got %v, want an unknown outcome", err)
		}
		p.LoseReplyTo(0, nil)
	}
	h := hold("answered")
	must(t, d.Release(t.Context(), h))
	must(t, d.Release(t.Context(), h))

	h = hold("forgotten")
	silently(h)
	must(t, d.Release(t.Context(), h))

	h = hold("deleted before")
	must(t, c.Del(t.Context(), key(h.Name)).Err())
	silently(h)
	want(t, "released again after it was deleted", d.Release(t.Context(), h), backend.ErrLost)

	h = hold("broken before")
	must(t, d.Break(t.Context(), h.Name))
	want(t, "released after Break", d.Release(t.Context(), h), backend.ErrLost)
	want(t, "released again after Break", d.Release(t.Context(), h), backend.ErrLost)

	// The release that was sent first never arrives, and the lock is broken meanwhile: only Break can
	// tell.
	h = hold("ended before")
	p.Set(faultproxy.Mode{Refuse: true})
	p.Cut()
	if err := d.Release(t.Context(), h); err == nil || errors.Is(err, backend.ErrLost) {
		t.Errorf("a release that did not arrive: got %v, want an unknown outcome", err)
	}
	if err := d.Break(t.Context(), h.Name); err == nil || backend.Final(err) {
		t.Errorf("a Break that did not arrive: got %v, want an unknown outcome", err)
	}
	p.Set(faultproxy.Mode{})
	must(t, open(t, s.URL()).Break(t.Context(), h.Name))
	want(t, "released again after Break", d.Release(t.Context(), h), backend.ErrLost)
}
