package zookeeper_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// Tries of several processes at once do not take each other's places in the queue for those of others who wait: where
// all may hold, all do.
func TestTriesAtOnce(t *testing.T) {
	t.Parallel()
	const n = 10
	z := single(t)
	c := foreign(t, z.Addrs()...)
	keeper := open(t, z.URL())
	var ls []*fencelock.Locker
	for range n {
		l := open(t, z.URL())
		unlock(t, get(t, l.RWMutex("warm").RLock))
		ls = append(ls, l)
	}
	permit := func(l *fencelock.Locker) locks { return l.Semaphore("x", 2*n).TryAcquire }
	reader := func(l *fencelock.Locker) locks { return l.RWMutex("x").TryRLock }
	for _, way := range []struct {
		name   string
		before locks // whose hold is there already
		try    func(*fencelock.Locker) locks
	}{
		{"permits beside one", permit(keeper), permit},
		{"permits of a free name", nil, permit},
		{"readers beside one", reader(keeper), reader},
		{"readers of a free name", nil, reader},
	} {
		for round := range 5 {
			var held *fencelock.Lease
			if way.before != nil {
				held = get(t, way.before)
			}
			leases, errs := make([]*fencelock.Lease, n), make([]error, n)
			start := make(chan struct{})
			var wg sync.WaitGroup
			for i, l := range ls {
				wg.Go(func() {
					<-start
					leases[i], errs[i] = way.try(l)(t.Context())
				})
			}
			close(start)
			wg.Wait()
			for i, err := range errs {
				if err != nil {
					t.Errorf("%s, round %d: try %d: got %v, want a lease", way.name, round, i, err)
					continue
				}
				unlock(t, leases[i])
			}
			if held != nil {
				unlock(t, held)
			}
			awaitClean(t, c, 2*time.Second)
		}
	}
}

// A try behind somebody who waits and may not hold yet is refused at once: it takes no place in the queue.
func TestTryBehindAWaiter(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	a, b, l := open(t, z.URL()), open(t, z.URL()), open(t, z.URL())
	for i, way := range []struct {
		held, waits, try func(name string) locks
	}{
		{
			func(name string) locks { return a.Semaphore(name, 20).Acquire },
			func(name string) locks { return b.Mutex(name).Lock },
			func(name string) locks { return l.Semaphore(name, 20).TryAcquire },
		},
		{
			func(name string) locks { return a.RWMutex(name).RLock },
			func(name string) locks { return b.RWMutex(name).Lock },
			func(name string) locks { return l.RWMutex(name).TryRLock },
		},
		{
			func(name string) locks { return a.Mutex(name).Lock },
			func(name string) locks { return b.Semaphore(name, 20).Acquire },
			func(name string) locks { return l.Semaphore(name, 20).TryAcquire },
		},
	} {
		name := fmt.Sprint("x-", i)
		held := get(t, way.held(name))
		wait := waits(t, c, way.waits(name), name, 1)
		_, before, err := c.Children(at(name))
		must(t, err)
		quickest := time.Hour
		for range 10 {
			began := time.Now()
			_, err := way.try(name)(t.Context())
			want(t, "a try behind a waiter", err, backend.ErrLocked)
			quickest = min(quickest, time.Since(began))
		}
		_, after, err := c.Children(at(name))
		must(t, err)
		if after.Cversion != before.Cversion {
			t.Errorf("%s: the queue has changed %d times by tries that are refused", name,
				after.Cversion-before.Cversion)
		}
		if most := 150 * time.Millisecond; quickest > most {
			t.Errorf("%s: the quickest try took %v, want less than %v", name, quickest, most)
		}
		unlock(t, held)
		unlock(t, wait.Granted(t, 5*time.Second))
	}
	awaitClean(t, c, 2*time.Second)
}

// Requests that take long move slowly, and move: a try waits for each of those in front of it.
func TestTriesAtOnceOfSlowClients(t *testing.T) {
	t.Parallel()
	const n = 6
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	var ls []*fencelock.Locker
	for range n {
		l := open(t, url)
		unlock(t, get(t, l.Semaphore("warm", 2).Acquire))
		ls = append(ls, l)
	}
	held := get(t, open(t, z.URL()).Semaphore("x", 20).Acquire)
	p.Set(faultproxy.Mode{Delay: 50 * time.Millisecond})
	leases, errs := make([]*fencelock.Lease, n), make([]error, n)
	var wg sync.WaitGroup
	for i, l := range ls {
		wg.Go(func() { leases[i], errs[i] = l.Semaphore("x", 20).TryAcquire(t.Context()) })
	}
	wg.Wait()
	p.Set(faultproxy.Mode{})
	must(t, errors.Join(errs...))
	for _, le := range leases {
		unlock(t, le)
	}
	unlock(t, held)
	awaitClean(t, c, 2*time.Second)
}

// A try comes at the moment when nobody holds and somebody who waits is about to: it holds beside that one.
func TestTryBehindTheNextHolder(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	l, g := openGated(t, z)
	unlock(t, lock(t, l.Mutex("warm")))
	acl, nonce := zk.WorldACL(zk.PermAll), strings.Repeat("5", 32)
	for _, way := range []struct {
		name, waits, holds string
		try                locks
	}{
		{"r", "/waitread-" + nonce + "-", "/read-" + nonce, l.RWMutex("r").TryRLock},
		{"p", "/waitperm-" + nonce + "-20-", "/perm-" + nonce + "-20-0", l.Semaphore("p", 20).TryAcquire},
	} {
		_, err := c.CreateContainer(at(way.name), nil, zk.FlagContainer, acl)
		must(t, err)
		place, err := c.Create(at(way.name)+way.waits, nil, zk.FlagEphemeralSequential, acl)
		must(t, err)
		queued := false
		held, release := g.hold(func(request []byte) bool { // its first look from its place
			if queued && about(at(way.name))(request) {
				return true
			}
			queued = queued || about(at(way.name)+"/wait")(request)
			return false
		})
		t.Cleanup(release)
		try := begin(t, way.try)
		select {
		case <-held:
		case <-try.Done:
			t.Fatalf("a try behind the next holder: got %v, want that it stands there", try.Err)
		}
		holds := at(way.name) + way.holds
		_, err = c.Multi(
			&zk.DeleteRequest{Path: place, Version: -1},
			&zk.CreateRequest{Path: holds, Data: []byte(`{"token":5}`), Acl: acl, Flags: zk.FlagEphemeral},
		)
		must(t, err)
		release()
		le := try.Granted(t, 5*time.Second)
		if le.Mode() == fencelock.Reader && le.Token() != 5 || le.Mode() == fencelock.Permit && le.Slot() != 1 {
			t.Errorf("%v: got token %d and slot %d", le.Mode(), le.Token(), le.Slot())
		}
		unlock(t, le)
		must(t, c.Delete(holds, -1))
	}
}
