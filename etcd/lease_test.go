package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// leaseOf returns the lease that the holder's entry is under, and its create and mod revision.
func (r *rig) leaseOf(t *testing.T, name string) (clientv3.LeaseID, int64, int64) {
	t.Helper()
	resp, err := r.c.Get(t.Context(), r.prefix+"~lock/"+name+"/", clientv3.WithFirstCreate()...)
	must(t, err)
	if len(resp.Kvs) == 0 {
		t.Fatalf("%s has no holder", name)
	}
	return clientv3.LeaseID(resp.Kvs[0].Lease), resp.Kvs[0].CreateRevision, resp.Kvs[0].ModRevision
}

func (r *rig) lease(t *testing.T, name string) clientv3.LeaseID {
	t.Helper()
	id, _, _ := r.leaseOf(t, name)
	return id
}

// sharedLease: the auto-renewed locks of one TTL share a lease, nothing else does.
func sharedLease(t *testing.T, r *rig) {
	l := open(t, r.url())
	same := map[clientv3.LeaseID]bool{}
	for _, name := range []string{"a", "b", "c"} {
		lock(t, l.Mutex(name))
		same[r.lease(t, name)] = true
	}
	if len(same) != 1 {
		t.Errorf("leases of three auto-renewed locks of one TTL: got %d, want 1", len(same))
	}
	each := map[clientv3.LeaseID]bool{}
	for name, opt := range map[string]fencelock.Option{
		"ttl": fencelock.WithTTL(31 * time.Second), "manual": fencelock.WithManualRenew(),
		"grace": fencelock.WithGrace(time.Second), "max": fencelock.WithMaxHold(time.Minute),
	} {
		lock(t, l.Mutex(name, opt))
		each[r.lease(t, name)] = true
	}
	lock(t, l.Mutex("manual too", fencelock.WithManualRenew()))
	each[r.lease(t, "manual%20too")] = true
	lock(t, open(t, r.url()).Mutex("other client"))
	each[r.lease(t, "other%20client")] = true
	if len(each) != 6 {
		t.Errorf("leases of six locks that share none: got %d", len(each))
	}
	for id := range each {
		if same[id] {
			t.Error("a lock of its own shares the lease")
		}
	}
}

// ownLeases: one that is left over serves the next lock; a try that fails makes none.
func ownLeases(t *testing.T, r *rig) {
	l := open(t, r.url(), fencelock.WithManualRenew())
	le := lock(t, l.Mutex("x"))
	first := r.lease(t, "x")
	unlock(t, le)
	le = lock(t, l.Mutex("x"))
	if again := r.lease(t, "x"); again != first {
		t.Errorf("the lease of the next lock: got %x, want the one that was left over, %x", again, first)
	}
	other := open(t, r.url(), fencelock.WithManualRenew(), fencelock.WithTTL(77*time.Second))
	for range 10 {
		_, err := other.Mutex("x").TryLock(t.Context())
		want(t, "TryLock", err, fencelock.ErrLocked)
	}
	resp, err := r.c.Leases(t.Context())
	must(t, err)
	n := 0
	for _, ls := range resp.Leases {
		if ttl, err := r.c.TimeToLive(t.Context(), ls.ID); err == nil && ttl.GrantedTTL == 77 {
			n++
		}
	}
	if n != 1 {
		t.Errorf("leases of ten tries that failed: got %d, want 1", n)
	}
	unlock(t, le)
}

// brokenOwnLease: the lease of one lock that an operator has broken ends with the release that finds that, and serves
// no other lock: a late copy of a request may put something under it yet.
func brokenOwnLease(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	req := request("x", 1, 30*time.Second)
	req.Auto = false
	h := hold(t, d, req)
	id := r.lease(t, "x")
	must(t, r.driver(t, r.url()).Break(t.Context(), "x"))
	want(t, "Release", d.Release(t.Context(), h), backend.ErrLost)
	await(t, 5*time.Second, "its lease is over", func() bool {
		ttl, err := r.c.TimeToLive(t.Context(), id)
		must(t, err)
		return ttl.TTL < 0
	})
	next := request("x", 2, 30*time.Second)
	next.Auto = false
	hold(t, d, next)
	if again := r.lease(t, "x"); again == id {
		t.Error("the next lock is under the lease that has ended")
	}
}

// grantedTTL: whole seconds, rounded up, grace included; the holder trusts what it asked for.
func grantedTTL(t *testing.T, r *rig) {
	l := open(t, r.url())
	for name, tt := range map[string]struct {
		opts []fencelock.Option
		want int64
	}{
		"whole": {[]fencelock.Option{fencelock.WithTTL(7 * time.Second)}, 7},
		"part":  {[]fencelock.Option{fencelock.WithTTL(7300 * time.Millisecond)}, 8},
		"grace": {
			[]fencelock.Option{
				fencelock.WithTTL(7 * time.Second), fencelock.WithGrace(2500 * time.Millisecond),
			},
			10,
		},
		"server": {[]fencelock.Option{fencelock.WithTTL(time.Second)}, 2}, // the least that a server grants
	} {
		le := lock(t, l.Mutex(name, tt.opts...))
		ttl, err := r.c.TimeToLive(t.Context(), r.lease(t, name))
		must(t, err)
		if ttl.GrantedTTL != tt.want {
			t.Errorf("%s: granted TTL: got %d s, want %d", name, ttl.GrantedTTL, tt.want)
		}
		if left := time.Until(le.Deadline()); left > time.Duration(tt.want)*time.Second {
			t.Errorf("%s: the Deadline is %v away", name, left)
		}
		unlock(t, le)
	}
}

// lastSecond: what is held under a lease expires, also when less than a second of it is left.
func lastSecond(t *testing.T, r *rig) {
	l := open(t, r.url())
	session, err := r.c.Grant(t.Context(), 2)
	must(t, err)
	_, err = r.c.Put(t.Context(), r.prefix+"~lock/x/0", "held:5:somebody", clientv3.WithLease(session.ID))
	must(t, err)
	await(t, 20*time.Second, "it is over", func() bool {
		info, err := l.Inspect(t.Context(), "x")
		must(t, err)
		if info.Held && info.ExpiresIn <= 0 {
			t.Fatalf("Inspect of a lock under a lease: got it without expiry: %+v", info)
		}
		return !info.Held
	})
}

// sharedDeadline: a lock put under a lease that is there already is trusted from that lease's last renewal only.
func sharedDeadline(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	began := backend.Now()
	first := request("a", 1, 20*time.Second)
	g1, err := d.Acquire(t.Context(), first)
	must(t, err)
	if g1.Asked.Sub(began) < 0 {
		t.Error("the first grant counts from before it was asked for")
	}
	after := backend.Now()
	g2, err := d.Acquire(t.Context(), request("b", 2, 20*time.Second))
	must(t, err)
	if g2.Asked.Sub(after) >= 0 {
		t.Error("the second grant counts from its own request, which did not set the expiry of the lease")
	}
	if g2.Asked.Sub(g1.Asked) != 0 {
		t.Errorf("the second grant counts from %v after the first, want from the same moment", g2.Asked.Sub(g1.Asked))
	}
	must(t, d.Renew(t.Context(), []*core.Hold{{Request: first, Grant: g1}})[0])
	g3, err := d.Acquire(t.Context(), request("c", 3, 20*time.Second))
	must(t, err)
	if g3.Asked.Sub(after) <= 0 {
		t.Error("a grant after a renewal of the lease counts from before it")
	}
}

// shortest: a TTL that is shorter than what the server grants, for a holder and for a waiter whose lease was renewed
// some time before the grant.
func shortest(t *testing.T, r *rig) {
	l := open(t, r.url(), fencelock.WithTTL(time.Second))
	other := open(t, r.url(), fencelock.WithTTL(time.Second))
	for round := range 3 {
		le := lock(t, l.Mutex("x"))
		wait := r.wait(t, other.Mutex("x"), 2)
		<-time.After(time.Duration(300+400*round) * time.Millisecond)
		must(t, le.Err())
		unlock(t, le)
		next := wait.Granted(t, 2*time.Second)
		if left := next.Deadline().Sub(wait.At); left <= 0 || left > time.Second {
			t.Errorf("round %d: a grant with %v left of its TTL of a second", round, left)
		}
		unlock(t, next)
	}
}

// manyOwn: leases of one lock each are renewed over a few streams.
func manyOwn(t *testing.T, r *rig) {
	l, n := r.counted(t, fencelock.WithTTL(4*time.Second), fencelock.WithGrace(time.Second))
	leases := make([]*fencelock.Lease, 100)
	for i := range leases {
		leases[i] = lock(t, l.Mutex(fmt.Sprint("x", i)))
	}
	n.take()
	<-time.After(5 * time.Second)
	for _, le := range leases {
		must(t, le.Err())
	}
	t.Logf("calls in 5s with %d locks under leases of their own: %v", len(leases), n.take())
}

// sessionRevoked: the lease is ended behind the library's back. All its locks are lost; the next lock has a new lease.
func sessionRevoked(t *testing.T, r *rig) {
	l := open(t, r.url())
	var last fencelock.Token
	for round := range 3 {
		a, b := lock(t, l.Mutex("a")), lock(t, l.Mutex("b"))
		rising(t, "after a revoked session", last, a.Token())
		last = b.Token()
		old := r.lease(t, "a")
		_, err := r.c.Revoke(t.Context(), old)
		must(t, err)
		for _, le := range []*fencelock.Lease{a, b} {
			lost(t, le, 2*time.Second, fencelock.Revoked, fencelock.SessionLost)
			want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrLost)
		}
		again := lock(t, l.Mutex("a"))
		if id := r.lease(t, "a"); id == old {
			t.Errorf("round %d: the lock is under the lease that was revoked", round)
		}
		rising(t, "after a revoked session", a.Token(), again.Token())
		unlock(t, again)
	}
}

// leaseOverRestore: an older state of the store has an entry of a lock that was released since. It ends, though its
// process goes on to hold another one that was under the same lease. The store shows that by a lower revision or, where
// the restore has raised that, by a lower term.
func leaseOverRestore(t *testing.T, r *rig) {
	for what, header := range map[string]func(*pb.ResponseHeader){
		"Revision": func(h *pb.ResponseHeader) { h.Revision = 1 },
		"Term":     func(h *pb.ResponseHeader) { h.RaftTerm = 0; h.Revision += 1e9 },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			leaseOverRestoreBy(t, &rig{r.e, client(t, r.e), r.prefix + what}, header)
		})
	}
}

func leaseOverRestoreBy(t *testing.T, r *rig, header func(*pb.ResponseHeader)) {
	var back atomic.Bool
	l, _ := r.between(t, func(
		ctx context.Context, _ *pb.TxnRequest, resp *pb.TxnResponse, send func(context.Context) error,
	) error {
		err := send(ctx)
		if err == nil && back.CompareAndSwap(true, false) {
			header(resp.Header)
		}
		return err
	}, fencelock.WithTTL(4*time.Second))
	own := l.Mutex("own", fencelock.WithManualRenew())
	le := lock(t, own)
	spare := r.lease(t, "own") // is left over for the next such lock
	unlock(t, le)
	kept := lock(t, l.Mutex("kept"))
	_, err := r.c.Put(t.Context(), r.prefix+"~lock/x/released", "held::somebody",
		clientv3.WithLease(r.lease(t, "kept")))
	must(t, err)
	must(t, kept.Renew(t.Context()))
	r.noted(t, "kept")
	back.Store(true)
	must(t, kept.Renew(t.Context()))
	le = lock(t, own)
	if r.lease(t, "own") == spare {
		t.Error("a lease of before is used for another lock")
	}
	unlock(t, le)
	next, err := open(t, r.url()).Mutex("x").Lock(within(t, 20*time.Second))
	must(t, err)
	must(t, kept.Err())
	unlock(t, next)
	unlock(t, kept)
}

// backOff: leases that die at once are replaced more and more slowly.
func backOff(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	n := 0
	for began := time.Now(); time.Since(began) < 1500*time.Millisecond; n++ {
		req := request("x", n+1, 30*time.Second)
		_, err := d.Acquire(within(t, 10*time.Second), req)
		must(t, err)
		_, err = r.c.Revoke(t.Context(), r.lease(t, "x"))
		must(t, err)
	}
	if n > 8 {
		t.Errorf("leases in 1.5s, each of which died at once: got %d, want at most 8", n)
	}
}

// waiterSessionRevoked: a waiter whose session ended queues again, behind those who were behind it.
func waiterSessionRevoked(t *testing.T, r *rig) {
	le := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, open(t, r.url()).Mutex("x"), 2)
	behind := r.wait(t, open(t, r.url()).Mutex("x"), 3)
	resp, err := r.c.Get(t.Context(), r.prefix+"~lock/x/"+r.queue(t, "x")[1])
	must(t, err)
	_, err = r.c.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
	must(t, err)
	await(t, 2*time.Second, "it is in the queue again", func() bool { return len(r.queue(t, "x")) == 3 })
	if behind.Over() || wait.Over() {
		t.Fatal("a waiter came back while the lock is held")
	}
	must(t, le.Err())
	unlock(t, le)
	unlock(t, behind.Granted(t, 2*time.Second))
	unlock(t, wait.Granted(t, 2*time.Second))
}

// waiterSessionEndsFirst: a waiter whose session ends as its first request is under way queues under another one.
func waiterSessionEndsFirst(t *testing.T, r *rig) {
	le := lock(t, open(t, r.url()).Mutex("x"))
	var session atomic.Int64 // to be revoked
	l := r.seen(t, func(_ string, req any) func() {
		if txn, ok := req.(*pb.TxnRequest); ok && strings.Contains(txn.String(), "lock/x/") {
			if id := session.Swap(0); id != 0 {
				_, err := r.c.Revoke(t.Context(), clientv3.LeaseID(id))
				must(t, err)
			}
		}
		return func() {}
	})
	before := r.wait(t, l.Mutex("x"), 2)
	resp, err := r.c.Get(t.Context(), r.prefix+"~lock/x/"+r.queue(t, "x")[1])
	must(t, err)
	before.Cancel()
	await(t, time.Second, "it has left", func() bool { return len(r.queue(t, "x")) == 1 })
	session.Store(resp.Kvs[0].Lease)
	wait := r.wait(t, l.Mutex("x"), 2)
	if session.Load() != 0 {
		t.Error("nothing was sent before the session ended")
	}
	unlock(t, le)
	unlock(t, wait.Granted(t, 2*time.Second))
}

// waiterEntryDeleted: the same for one whose entry alone was deleted, time and again.
func waiterEntryDeleted(t *testing.T, r *rig) {
	le := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, open(t, r.url()).Mutex("x"), 2)
	for range 3 {
		_, err := r.c.Delete(t.Context(), r.prefix+"~lock/x/"+r.queue(t, "x")[1])
		must(t, err)
		await(t, 3*time.Second, "it is in the queue again", func() bool { return len(r.queue(t, "x")) == 2 })
	}
	must(t, le.Err())
	unlock(t, le)
	unlock(t, wait.Granted(t, 2*time.Second))
	r.awaitFree(t, "x")
}

// middleWaiterDies: the one behind it waits on for the holder.
func middleWaiterDies(t *testing.T, r *rig) {
	le := lock(t, open(t, r.url()).Mutex("x"))
	session, err := r.c.Grant(t.Context(), 60)
	must(t, err)
	_, err = r.c.Put(t.Context(), r.prefix+"~lock/x/dying", "wait::nobody", clientv3.WithLease(session.ID))
	must(t, err)
	behind := r.wait(t, open(t, r.url()).Mutex("x"), 3)
	_, err = r.c.Revoke(t.Context(), session.ID)
	must(t, err)
	select {
	case <-behind.Done:
		t.Fatalf("the waiter behind a dead one came back while the lock is held: %v", behind.Err)
	case <-time.After(500 * time.Millisecond):
	}
	unlock(t, le)
	unlock(t, behind.Granted(t, 2*time.Second))
}

// deletedTogether: entries that one request deletes are told of at once, and each of them counts.
func deletedTogether(t *testing.T, r *rig) {
	session, err := r.c.Grant(t.Context(), 60)
	must(t, err)
	front := r.prefix + "~lock/x/0"
	for i, v := range []string{"held:5:nobody", "wait::nobody", "wait::nobody"} {
		_, err := r.c.Put(t.Context(), fmt.Sprint(front, i), v, clientv3.WithLease(session.ID))
		must(t, err)
	}
	behind := r.wait(t, open(t, r.url()).Mutex("x"), 4)
	_, err = r.c.Delete(t.Context(), front, clientv3.WithPrefix())
	must(t, err)
	unlock(t, behind.Granted(t, 2*time.Second)) // before it would look for itself
}

// twoMutexes of one process, even of one driver, exclude each other.
func twoMutexes(t *testing.T, r *rig) {
	l := open(t, r.url())
	one, two := l.Mutex("x"), l.Mutex("x")
	le := lock(t, one)
	_, err := two.TryLock(t.Context())
	want(t, "TryLock of another Mutex", err, fencelock.ErrLocked)
	unlock(t, le)
	d := r.driver(t, r.url()) // below the engine's local queue
	g, err := d.Acquire(t.Context(), request("x", 1, 20*time.Second))
	must(t, err)
	_, err = d.Acquire(t.Context(), request("x", 2, 20*time.Second))
	want(t, "Acquire of another request", err, backend.ErrLocked)
	waiter := request("x", 3, 20*time.Second)
	waiter.Wait = true
	_, err = d.Acquire(within(t, 300*time.Millisecond), waiter)
	want(t, "Acquire of a waiter", err, context.DeadlineExceeded)
	want(t, "Acquire of a waiter", err, backend.ErrLocked)
	must(t, d.Release(t.Context(), &core.Hold{Request: request("x", 1, 20*time.Second), Grant: g}))
	g2, err := d.Acquire(within(t, 2*time.Second), waiter)
	must(t, err)
	rising(t, "of the waiter", g.Token, g2.Token)
	must(t, d.Release(t.Context(), &core.Hold{Request: waiter, Grant: g2}))
}

// noLeasesLeft: a closed Locker leaves no lease behind, whatever it did.
func noLeasesLeft(t *testing.T, r *rig) {
	const odd = 4711 * time.Second // tells our leases from those of the other tests
	ours := func() (n int) {
		resp, err := r.c.Leases(t.Context())
		must(t, err)
		for _, ls := range resp.Leases {
			if ttl, err := r.c.TimeToLive(t.Context(), ls.ID); err == nil &&
				ttl.GrantedTTL >= 4711 && ttl.GrantedTTL < 4720 {
				n++
			}
		}
		return n
	}
	a := open(t, r.url(), fencelock.WithTTL(odd))
	b := open(t, r.url(), fencelock.WithTTL(odd), fencelock.WithManualRenew())
	for range 5 {
		held := lock(t, a.Mutex("x"))
		wait := r.wait(t, b.Mutex("x"), 2)
		unlock(t, held)
		next := wait.Granted(t, 2*time.Second)
		_, err := a.Mutex("x").TryLock(t.Context())
		want(t, "TryLock", err, fencelock.ErrLocked)
		unlock(t, next)
	}
	lock(t, a.Mutex("kept until Close"))
	lock(t, b.Mutex("kept until Close too"))
	if n := ours(); n == 0 || n > 4 {
		t.Errorf("leases in use: got %d, want a few", n)
	}
	must(t, a.Close())
	must(t, b.Close())
	await(t, 3*time.Second, "no lease is left", func() bool { return ours() == 0 })
	if keys := slices.DeleteFunc(r.keys(t), func(k string) bool { return tombs([]string{k}) > 0 }); len(keys) > 0 {
		t.Errorf("left: %q", keys)
	}
}
