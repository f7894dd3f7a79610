package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcd"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// line begins to wait, and returns when n entries are in the queue.
func (r *rig) line(t *testing.T, name string, lock locks, n int) *pending {
	t.Helper()
	p := begin(t, lock)
	await(t, 10*time.Second, fmt.Sprintf("%d in the queue of %q", n, name), func() bool {
		return len(r.queue(t, name)) == n
	})
	return p
}

// before returns a Locker, and sets what is done before its nth transaction from then on that would make a reader
// or a permit of somebody.
func (r *rig) before(t *testing.T, opts ...fencelock.Option) (l *fencelock.Locker, set func(n int, do func())) {
	t.Helper()
	type plan struct {
		left atomic.Int64
		do   func()
	}
	var next atomic.Pointer[plan]
	l = r.seen(t, func(_ string, req any) func() {
		txn, _ := req.(*pb.TxnRequest)
		for _, op := range txn.GetSuccess() {
			put := op.GetRequestPut()
			p := next.Load()
			if p != nil && put != nil && strings.Contains(string(put.Key), "/+") && p.left.Add(-1) == 0 {
				p.do()
			}
		}
		return func() {}
	}, opts...)
	return l, func(n int, do func()) {
		p := &plan{do: do}
		p.left.Store(int64(n))
		next.Store(p)
	}
}

// recipeBesideReaders: a program with the recipe of etcd's own package is kept out by readers and permits, and keeps
// them out.
func recipeBesideReaders(t *testing.T, r *rig) {
	session, err := concurrency.NewSession(r.c)
	must(t, err)
	defer func() { _ = session.Close() }()
	m := concurrency.NewMutex(session, r.prefix+"~lock/x")
	a, b := open(t, r.url()), open(t, r.url())
	for _, kind := range []struct{ one, two, try locks }{
		{a.RWMutex("x").RLock, b.RWMutex("x").RLock, b.RWMutex("x").TryRLock},
		{a.Semaphore("x", 3).Acquire, b.Semaphore("x", 3).Acquire, b.Semaphore("x", 3).TryAcquire},
	} {
		first, second := get(t, kind.one), get(t, kind.two)
		want(t, "the recipe beside two", m.TryLock(t.Context()), concurrency.ErrLocked)
		unlock(t, first)
		want(t, "the recipe beside one", m.TryLock(t.Context()), concurrency.ErrLocked)
		unlock(t, second)
		must(t, m.TryLock(t.Context()))
		_, err := kind.try(t.Context())
		want(t, "a try beside the recipe", err, fencelock.ErrLocked)
		wait := r.line(t, "x", kind.one, 2)
		must(t, m.Unlock(t.Context()))
		unlock(t, wait.Granted(t, 2*time.Second))
	}
	r.awaitFree(t, "x")
}

// foundersAtOnce: of two readers that both have seen nobody read, one has the token of the other.
func foundersAtOnce(t *testing.T, r *rig) {
	slow, set := r.before(t)
	writer := lock(t, open(t, r.url()).Mutex("x"))
	first := r.line(t, "x", slow.RWMutex("x").RLock, 2)
	second := r.line(t, "x", open(t, r.url()).RWMutex("x").RLock, 3)
	raced := false
	set(1, func() { <-second.Done; raced = true })
	unlock(t, writer)
	two, one := second.Granted(t, 5*time.Second), first.Granted(t, 5*time.Second)
	if !raced || one.Token() != two.Token() {
		t.Errorf("two that read at once, and raced (%v), have the tokens %d and %d", raced, one.Token(), two.Token())
	}
	rising(t, "of readers", writer.Token(), one.Token())
	unlock(t, one)
	unlock(t, two)
	next := lock(t, slow.Mutex("x"))
	rising(t, "of the next writer", one.Token(), next.Token())
	unlock(t, next)
}

// keeperLeaves: a reader that is about to take the token of another, which ends meanwhile, has one above that of the
// writer between them.
func keeperLeaves(t *testing.T, r *rig) {
	slow, set := r.before(t)
	other := open(t, r.url())
	keeper := get(t, other.RWMutex("x").RLock)
	between := fencelock.Token(0)
	set(2, func() { // the first one is the guess that nobody is there
		if keeper.Unlock(t.Context()) == nil {
			if le, err := other.Mutex("x").TryLock(t.Context()); err == nil {
				between = le.Token()
				_ = le.Unlock(t.Context())
			}
		}
	})
	le := get(t, slow.RWMutex("x").TryRLock)
	rising(t, "of the writer between", keeper.Token(), between)
	rising(t, "of the reader after it", between, le.Token())
	unlock(t, le)
}

// permitsAtOnce: two permits that were chosen from the same queue have not the same slot. The base is far ahead of the
// clock, which would tell the two apart.
func permitsAtOnce(t *testing.T, r *rig) {
	slow, set := r.before(t)
	other := open(t, r.url())
	zero := get(t, other.Semaphore("x", 4).Acquire)
	ahead(t, r)
	var one *fencelock.Lease
	set(2, func() { one, _ = other.Semaphore("x", 4).TryAcquire(t.Context()) })
	two := get(t, slow.Semaphore("x", 4).TryAcquire)
	if one == nil || zero.Slot() != 0 || one.Slot() != 1 || two.Slot() != 2 {
		t.Fatalf("got slots %d, %+v and %d, want 0, 1 and 2", zero.Slot(), one, two.Slot())
	}
	rising(t, "of the second", zero.Token(), one.Token())
	rising(t, "of the third", one.Token(), two.Token())
	for _, le := range []*fencelock.Lease{zero, one, two} {
		unlock(t, le)
	}
}

// secondPermitFirst: of two waiters who may both hold the second has its turn first, and ends, before the first one
// takes the same slot: with a greater token. It is the base that tells them apart, so it is far ahead of the clock.
func secondPermitFirst(t *testing.T, r *rig) {
	slow, set := r.before(t)
	quick, setQuick := r.before(t)
	writer := lock(t, quick.Mutex("x"))
	ahead(t, r)
	first := r.line(t, "x", slow.Semaphore("x", 2).Acquire, 2)
	second := r.line(t, "x", quick.Semaphore("x", 2).Acquire, 3)
	chosen := make(chan struct{})
	setQuick(1, func() { // the first is to choose its slot from the same queue
		select {
		case <-chosen:
		case <-time.After(5 * time.Second):
		}
	})
	set(1, func() {
		close(chosen)
		<-second.Done
		if second.Err == nil {
			_ = second.Lease.Unlock(context.WithoutCancel(t.Context()))
		}
	})
	unlock(t, writer)
	one := first.Granted(t, 5*time.Second)
	must(t, second.Err)
	if one.Slot() != 0 || second.Lease.Slot() != 0 {
		t.Errorf("got slots %d and %d, want 0 and 0", second.Lease.Slot(), one.Slot())
	}
	rising(t, "of the second, granted first", writer.Token(), second.Lease.Token())
	rising(t, "of the first, granted second", second.Lease.Token(), one.Token())
	unlock(t, one)
}

// ahead puts the base an hour ahead of all clocks, as a floor does.
func ahead(t *testing.T, r *rig) {
	t.Helper()
	resp, err := r.c.Get(t.Context(), r.prefix+"~base")
	must(t, err)
	base := time.Now().Add(time.Hour).UnixMicro() - resp.Header.Revision
	_, err = r.c.Put(t.Context(), r.prefix+"~base", fmt.Sprintf("%016d", base))
	must(t, err)
}

// turns lets two wait who may hold together once a writer goes. Both choose by the same list; then the first is granted
// the lock, and between is called, before the second is. The base is far ahead of the clock, which would tell the two
// apart.
func turns(
	t *testing.T, r *rig, of func(*fencelock.Locker) locks, between func(*fencelock.Lease),
) (writer, one, two *fencelock.Lease) {
	t.Helper()
	early, setEarly := r.before(t)
	late, setLate := r.before(t)
	writer = lock(t, early.Mutex("x"))
	ahead(t, r)
	first := r.line(t, "x", of(early), 2)
	second := r.line(t, "x", of(late), 3)
	goes := make(chan struct{})
	setEarly(1, func() { <-goes })
	setLate(1, func() {
		close(goes)
		if <-first.Done; first.Err == nil {
			between(first.Lease)
		}
	})
	unlock(t, writer)
	two = second.Granted(t, 5*time.Second)
	must(t, first.Err)
	rising(t, "of the first", writer.Token(), first.Lease.Token())
	return writer, first.Lease, two
}

// readersByOneList: both have one token.
func readersByOneList(t *testing.T, r *rig) {
	_, one, two := turns(t, r, func(l *fencelock.Locker) locks { return l.RWMutex("x").RLock },
		func(*fencelock.Lease) {})
	if one.Token() != two.Token() {
		t.Errorf("two that read at once have the tokens %d and %d", one.Token(), two.Token())
	}
	unlock(t, one)
	unlock(t, two)
}

// permitsByOneList: they have not the same slot.
func permitsByOneList(t *testing.T, r *rig) {
	_, one, two := turns(t, r, func(l *fencelock.Locker) locks { return l.Semaphore("x", 2).Acquire },
		func(*fencelock.Lease) {})
	if one.Slot() == two.Slot() {
		t.Errorf("two permits have slot %d", one.Slot())
	}
	rising(t, "of the second", one.Token(), two.Token())
	unlock(t, one)
	unlock(t, two)
}

// firstInFrontLeaves: the first is granted its permit, and ends. The one behind it has a greater token nevertheless.
func firstInFrontLeaves(t *testing.T, r *rig) {
	_, one, two := turns(t, r, func(l *fencelock.Locker) locks { return l.Semaphore("x", 3).Acquire },
		func(le *fencelock.Lease) { _ = le.Unlock(context.WithoutCancel(t.Context())) })
	rising(t, "of the second", one.Token(), two.Token())
	unlock(t, two)
}

// lastPermitFirst: of three waiters who may all hold the last has its turn before the others hear of anything, the one
// before it goes, and the first has a greater token, as it was the first one in front of the last.
func lastPermitFirst(t *testing.T, r *rig) {
	writer := lock(t, open(t, r.url()).Mutex("x"))
	ahead(t, r)
	var ways [3]*faultproxy.Proxy
	var drivers [3]caller
	var waits [3]*pending
	var holds [3]core.Hold
	for i := range holds {
		way, url := r.proxied(t)
		req, d := request("x", i+1, time.Minute), r.driver(t, url) // they are listed by their nonces
		req.Mode, req.Limit, req.Wait = fencelock.Permit, 3, true
		ways[i], drivers[i], holds[i].Request = way, d, req
		waits[i] = r.line(t, "x", func(ctx context.Context) (_ *fencelock.Lease, err error) {
			holds[i].Grant, err = d.Acquire(ctx, req)
			return nil, err
		}, i+2)
		crowd(3000, func(int) { // the revisions of two are further apart than the slack of a base
			if _, err := r.c.Put(t.Context(), "gap", ""); err != nil {
				t.Error(err)
			}
		})
	}
	ways[0].Set(faultproxy.BlackHole)
	ways[1].Set(faultproxy.BlackHole)
	unlock(t, writer)
	waits[2].Granted(t, 5*time.Second)
	rising(t, "of the last", writer.Token(), holds[2].Grant.Token)
	waits[1].Cancel()
	<-waits[1].Done
	ways[1].Set(faultproxy.Mode{})
	must(t, drivers[1].Abandon(t.Context(), holds[1].Request))
	ways[0].Set(faultproxy.Mode{})
	waits[0].Granted(t, 5*time.Second)
	rising(t, "of the first", holds[2].Grant.Token, holds[0].Grant.Token)
	must(t, drivers[0].Release(t.Context(), &holds[0]))
	must(t, drivers[2].Release(t.Context(), &holds[2]))
}

// slotsOfTheGone: a permit whose list of the queue is older than what the watch has told does not take the slots of
// those who have gone for taken.
func slotsOfTheGone(t *testing.T, r *rig) {
	other := open(t, r.url())
	held := []*fencelock.Lease{get(t, other.Semaphore("x", 2).Acquire), get(t, other.Semaphore("x", 2).Acquire)}
	var once sync.Once
	var slow *fencelock.Locker
	var d *etcd.Driver
	slow, d = r.seenDriver(t, func(_ string, req any) func() {
		txn, _ := req.(*pb.TxnRequest)
		for _, op := range txn.GetSuccess() {
			inner := op.GetRequestTxn().GetSuccess()
			if len(inner) > 0 && strings.Contains(string(inner[0].GetRequestPut().GetKey()), "/+p") { // it queues
				return func() {
					once.Do(func() {
						for _, le := range held {
							_ = le.Unlock(context.WithoutCancel(t.Context()))
						}
						await(t, 5*time.Second, "the watch tells", func() bool { return d.Told() == len(held) })
					})
				}
			}
		}
		return func() {}
	})
	le := get(t, slow.Semaphore("x", 2).Acquire)
	if le.Slot() != 0 {
		t.Errorf("got slot %d, want 0", le.Slot())
	}
	unlock(t, le)
}

// stoppedReader: a reader whose entry ends before the transaction that takes its turn arrives does not come back beside
// the writer that was granted the lock meanwhile.
func stoppedReader(t *testing.T, r *rig) {
	slow, set := r.before(t)
	quick := open(t, r.url())
	writer := lock(t, quick.Mutex("x"))
	reader := r.line(t, "x", slow.RWMutex("x").RLock, 2)
	own := r.prefix + "~lock/x/" + r.queue(t, "x")[1]
	var next *fencelock.Lease
	set(1, func() {
		if _, err := r.c.Delete(t.Context(), own); err == nil {
			next, _ = quick.Mutex("x").TryLock(t.Context())
		}
	})
	unlock(t, writer)
	await(t, 5*time.Second, "the writer holds, and the reader queues again", func() bool {
		return len(r.queue(t, "x")) == 2
	})
	if reader.Over() || next == nil {
		t.Fatalf("the reader came back: %v; the writer: %v", reader.Err, next)
	}
	must(t, next.Err())
	unlock(t, next)
	le := reader.Granted(t, 5*time.Second)
	rising(t, "of the reader", next.Token(), le.Token())
	unlock(t, le)
}

// lostRepliesOfReader loses the answer to each chunk of a reader that joins another, and of one that waits.
func lostRepliesOfReader(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	l, other := open(t, url), open(t, r.url())
	for n := 1; n <= 5; n++ {
		unlock(t, lock(t, l.Mutex("warm")))
		keeper := get(t, other.RWMutex("x").RLock)
		p.LoseReplyTo(1, nth(n))
		le := get(t, l.RWMutex("x").RLock)
		if le.Token() != keeper.Token() || len(r.queue(t, "x")) != 2 {
			t.Errorf("lost reply %d: tokens %d and %d, entries %q, want one token and two entries",
				n, keeper.Token(), le.Token(), r.queue(t, "x"))
		}
		must(t, le.Renew(t.Context()))
		unlock(t, keeper)
		if _, err := other.Mutex("x").TryLock(t.Context()); !errors.Is(err, fencelock.ErrLocked) {
			t.Errorf("lost reply %d: a writer beside a reader: got %v, want ErrLocked", n, err)
		}
		if err := le.Unlock(t.Context()); err != nil {
			want(t, "Unlock", err, fencelock.ErrUnavailable)
			unlock(t, le)
		}
		p.LoseReplyTo(0, nil)
		writer := lock(t, other.Mutex("x"))
		rising(t, "of the writer", le.Token(), writer.Token())
		p.LoseReplyTo(1, nth(n))
		wait := r.line(t, "x", l.RWMutex("x").RLock, 2)
		unlock(t, writer)
		le = wait.Granted(t, 8*time.Second)
		rising(t, "of the reader", writer.Token(), le.Token())
		p.LoseReplyTo(0, nil)
		unlock(t, le)
	}
	r.awaitFree(t, "x")
}

// lostRepliesOfPermit loses the answer to each chunk of a permit: it takes one.
func lostRepliesOfPermit(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	l, other := open(t, url), open(t, r.url())
	for n := 1; n <= 5; n++ {
		unlock(t, lock(t, l.Mutex("warm")))
		zero := get(t, other.Semaphore("x", 3).Acquire)
		p.LoseReplyTo(1, nth(n))
		one := get(t, l.Semaphore("x", 3).Acquire)
		two := get(t, other.Semaphore("x", 3).TryAcquire)
		if zero.Slot() != 0 || one.Slot() != 1 || two.Slot() != 2 {
			t.Errorf("lost reply %d: got slots %d, %d and %d", n, zero.Slot(), one.Slot(), two.Slot())
		}
		rising(t, "of the second", zero.Token(), one.Token())
		rising(t, "of the third", one.Token(), two.Token())
		unlock(t, zero)
		unlock(t, two)
		if err := one.Unlock(t.Context()); err != nil {
			want(t, "Unlock", err, fencelock.ErrUnavailable)
			unlock(t, one)
		}
		p.LoseReplyTo(0, nil)
	}
	r.awaitFree(t, "x")
}

// lateCopyOfReader: a copy of the transaction by which a reader joined another, which comes when it holds already,
// changes nothing.
func lateCopyOfReader(t *testing.T, r *rig) {
	var copied atomic.Pointer[pb.TxnRequest]
	l := r.seen(t, func(_ string, req any) func() {
		if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Success) == 1 &&
			strings.Contains(string(txn.Success[0].GetRequestPut().GetKey()), "/+r") {
			copied.Store(txn)
		}
		return func() {}
	})
	keeper := get(t, open(t, r.url()).RWMutex("x").RLock)
	le := get(t, l.RWMutex("x").RLock)
	own := r.prefix + "~lock/x/" + r.queue(t, "x")[1]
	was, err := r.c.Get(t.Context(), own)
	must(t, err)
	resp, err := clientv3.RetryKVClient(r.c).Txn(t.Context(), copied.Load())
	must(t, err)
	is, err := r.c.Get(t.Context(), own)
	must(t, err)
	if resp.Succeeded || is.Kvs[0].ModRevision != was.Kvs[0].ModRevision {
		t.Errorf("a late copy has changed %v to %v", was.Kvs[0], is.Kvs[0])
	}
	unlock(t, le)
	unlock(t, keeper)
}

// holdsHaveIDs: what an operator sees of a hold is of no other one: not of the next that this process gets either.
func holdsHaveIDs(t *testing.T, r *rig) {
	l := open(t, r.url())
	seen := map[string]bool{}
	for _, take := range []locks{l.Mutex("x").Lock, l.RWMutex("x").RLock, l.Semaphore("x", 3).Acquire} {
		for range 5 {
			le := get(t, take)
			info, err := l.Inspect(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range info.Holds {
				if seen[h.ID] {
					t.Errorf("a second hold has the id %s", h.ID)
				}
				seen[h.ID] = true
			}
			unlock(t, le)
		}
	}
	if len(seen) != 10 {
		t.Errorf("got %d ids, want those of 5 readers and 5 permits", len(seen))
	}
}

// busyPool: a permit that is free is had, or waited for, also by a client so far away that others come before it each
// time: the store is well.
func busyPool(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	far := open(t, url)
	unlock(t, get(t, far.Semaphore("warm", 2).Acquire))
	ctx, stop := context.WithCancel(t.Context())
	var cycles sync.WaitGroup
	for range 8 {
		near := open(t, r.url())
		cycles.Go(func() {
			for ctx.Err() == nil {
				if le, err := near.Semaphore("x", 100).Acquire(ctx); err == nil {
					<-time.After(50 * time.Millisecond)       // in each of its round trips another one is granted
					_ = le.Unlock(context.WithoutCancel(ctx)) // it was held
				}
			}
		})
	}
	p.Set(faultproxy.Mode{Delay: 40 * time.Millisecond})
	le, err := far.Semaphore("x", 100).Acquire(within(t, 6500*time.Millisecond))
	stop()
	cycles.Wait()
	p.Set(faultproxy.Mode{})
	switch {
	case err == nil:
		unlock(t, le)
	case !errors.Is(err, context.DeadlineExceeded):
		t.Errorf("got %v, want a permit, or to be waiting for one", err)
	}
}
