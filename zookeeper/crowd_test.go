package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/faultproxy"
)

// Many callers share requests, and the failure of one is no other's.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const n = 120
	z := single(t)
	c := foreign(t, z.Addrs()...)
	other := open(t, z.URL())
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	name := func(i int) string { return fmt.Sprint("crowd-", i) }
	for i := 0; i < n; i += 3 {
		lock(t, other.Mutex(name(i)))
	}
	for range 3 {
		leases, errs := make([]*fencelock.Lease, n), make([]error, n)
		var wg sync.WaitGroup
		before := p.Counts().Requests
		for i := range n {
			wg.Go(func() { leases[i], errs[i] = l.Mutex(name(i)).TryLock(t.Context()) })
		}
		wg.Wait()
		t.Logf("%d tries in %d requests", n, p.Counts().Requests-before)
		for i := range n {
			if i%3 == 0 {
				want(t, name(i), errs[i], fencelock.ErrLocked)
				continue
			}
			must(t, errs[i])
			wg.Go(func() { errs[i] = leases[i].Unlock(t.Context()) })
		}
		wg.Wait()
		for i := range n {
			if i%3 != 0 {
				must(t, errs[i])
			}
		}
		if left := len(leftovers(t, c)); left != n/3 {
			t.Errorf("names with a node: got %d, want the %d that are held", left, n/3)
		}
	}
}

// The reply to requests that many share is lost: each finds out what became of it, and nothing is done twice.
func TestLostReplyOfMany(t *testing.T) {
	t.Parallel()
	const n = 60
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	last := make([]fencelock.Token, n)
	for range 4 {
		leases, errs := make([]*fencelock.Lease, n), make([]error, n)
		each := func(do func(i int) error) {
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { errs[i] = do(i) })
			}
			wg.Wait()
			for _, err := range errs {
				must(t, err)
			}
		}
		before := p.Counts().LostReplies
		p.LoseReplyTo(1, about("/held-", "/tokens/"))
		each(func(i int) (err error) {
			leases[i], err = l.Mutex(fmt.Sprint("crowd-", i)).Lock(t.Context())
			return err
		})
		for i, le := range leases {
			if le.Token() <= last[i] {
				t.Errorf("token of %d: got %d after %d", i, le.Token(), last[i])
			}
			last[i] = le.Token()
			must(t, le.Err())
		}
		p.LoseReplyTo(1, about("/held-", "/done/"))
		each(func(i int) error { return leases[i].Unlock(t.Context()) })
		if lost := p.Counts().LostReplies - before; lost != 2 {
			t.Errorf("%d replies were lost, want 2", lost)
		}
		if left := leftovers(t, c); len(left) > 0 {
			t.Errorf("names with a node: %q", left)
		}
	}
}

// A caller who gives up takes nobody else along, and leaves nothing.
func TestManyLeave(t *testing.T) {
	t.Parallel()
	const n = 60
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("warm")))
	for range 3 {
		leases, errs := make([]*fencelock.Lease, n), make([]error, n)
		p.Set(faultproxy.Mode{HoldRequests: true})
		var leaving, staying sync.WaitGroup
		for i := range n {
			ctx, wg := t.Context(), &staying
			if i%2 == 0 {
				ctx, wg = within(t, time.Duration(50+i)*time.Millisecond), &leaving
			}
			wg.Go(func() { leases[i], errs[i] = l.Mutex(fmt.Sprint("crowd-", i)).Lock(ctx) })
		}
		leaving.Wait()
		p.Set(faultproxy.Mode{})
		staying.Wait()
		for i := range n {
			if i%2 == 0 {
				want(t, "a lock whose caller has left", errs[i], context.DeadlineExceeded)
				continue
			}
			must(t, errs[i])
			staying.Go(func() { errs[i] = leases[i].Unlock(t.Context()) })
		}
		staying.Wait()
		for i := 1; i < n; i += 2 {
			must(t, errs[i])
		}
		awaitClean(t, c, 5*time.Second)
	}
}

// A request that was held up on its way, and whose caller has gone, leaves nothing when it arrives.
func TestLateRequest(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	l := open(t, url)
	unlock(t, lock(t, l.Mutex("x")))
	for _, lock := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := l.Mutex("x").TryLock(ctx); return err },
		func(ctx context.Context) error { _, err := l.Mutex("x").Lock(ctx); return err },
	} {
		p.Set(faultproxy.Mode{HoldRequests: true})
		want(t, "a lock whose request is held up", lock(within(t, 300*time.Millisecond)), context.DeadlineExceeded)
		p.Set(faultproxy.Mode{})
		var le *fencelock.Lease
		await(t, 5*time.Second, "the lock is free", func() bool {
			var err error
			le, err = l.Mutex("x").TryLock(t.Context())
			if err != nil && !errors.Is(err, fencelock.ErrLocked) {
				t.Fatal(err)
			}
			return err == nil
		})
		unlock(t, le)
		awaitClean(t, c, 5*time.Second)
	}
}

// A waiter that is dead does not hold up the one behind it, nor a try, however long its session lasts.
func TestDeadWaiterLosesItsPlace(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	holder, behind := open(t, z.URL()), open(t, z.URL())
	for _, way := range []string{"waiter", "try"} {
		if testing.Short() && way == "try" {
			return
		}
		le := lock(t, holder.Mutex("x"))
		p, url := proxied(t, z.Servers()[0])
		dead := queue(t, c, open(t, url), "x", 1)
		var next *pending
		if way == "waiter" {
			next = queue(t, c, behind, "x", 2)
		}
		p.Set(faultproxy.BlackHole)
		unlock(t, le)
		if next != nil {
			unlock(t, next.granted(t, 5*time.Second))
		} else {
			await(t, 5*time.Second, "a try", func() bool {
				le, err := behind.Mutex("x").TryLock(t.Context())
				if err == nil {
					unlock(t, le)
				}
				return err == nil
			})
		}
		dead.cancel()
		<-dead.done
		p.Set(faultproxy.Mode{})
		awaitClean(t, c, 10*time.Second)
	}
}

func TestRaise(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes every counter")
	}
	z := single(t)
	d := driver(t, z.URL())
	floor := backend.Token(1) << 52
	must(t, d.Raise(t.Context(), floor))
	must(t, d.Raise(t.Context(), 5)) // it never falls
	for _, name := range []string{"a", "b", "c"} {
		if le := lock(t, open(t, z.URL()).Mutex(name)); le.Token() <= floor {
			t.Errorf("token of %q: got %d, want more than %d", name, le.Token(), floor)
		}
	}
	want(t, "too high", d.Raise(t.Context(), 1<<53), backend.ErrInvalid)
}

// A process that is new to an ensemble without data draws tokens above those of before the loss.
func TestTokensOfANewProcessAfterTheLossOfAllData(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three restarts")
	}
	z := single(t)
	last := fencelock.Token(0)
	for range 3 {
		l := open(t, z.URL())
		for range 3 {
			le := lock(t, l.Mutex("x"))
			if le.Token() <= last {
				t.Errorf("token: got %d after %d", le.Token(), last)
			}
			last = le.Token()
			unlock(t, le)
		}
		must(t, l.Close())
		must(t, z.Servers()[0].Restart(false))
	}
}
