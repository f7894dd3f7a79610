package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/etcd"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// nth matches the nth chunk that the clients send from now on.
func nth(n int) func([]byte) bool {
	seen := 0
	return func([]byte) bool { seen++; return seen == n }
}

// with matches chunks that contain all of the words.
func with(words ...string) func([]byte) bool {
	return func(request []byte) bool {
		for _, w := range words {
			if !bytes.Contains(request, []byte(w)) {
				return false
			}
		}
		return true
	}
}

// lostReplies loses the answer to each chunk of a lock's life in turn.
func lostReplies(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	l, other := open(t, url), open(t, r.url())
	var last fencelock.Token
	const least = 3 // chunks: Lock, Renew and Unlock have one each at least
	for n := 1; n <= 9; n++ {
		unlock(t, lock(t, l.Mutex("warm")))
		before := p.Counts().LostReplies
		p.LoseReplyTo(1, nth(n))
		le, err := l.Mutex("x").Lock(within(t, 10*time.Second))
		must(t, err)
		rising(t, "after a lost reply", last, le.Token())
		last = le.Token()
		must(t, le.Renew(t.Context()))
		if _, err := other.Mutex("x").TryLock(t.Context()); !errors.Is(err, fencelock.ErrLocked) {
			t.Errorf("lost reply %d: TryLock of another: got %v, want ErrLocked", n, err)
		}
		if err := le.Unlock(t.Context()); err != nil {
			want(t, "Unlock", err, fencelock.ErrUnavailable)
			unlock(t, le)
		}
		p.LoseReplyTo(0, nil)
		next := lock(t, other.Mutex("x")) // nothing is left in its way
		rising(t, "of the next", last, next.Token())
		last = next.Token()
		want(t, "Unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
		must(t, next.Renew(t.Context()))
		unlock(t, next)
		if n <= least && p.Counts().LostReplies == before {
			t.Errorf("no reply was lost to the chunk number %d", n)
		}
	}
	r.awaitFree(t, "x")
}

// lostRepliesOfWaiter loses the answer to each chunk of a waiter in turn.
func lostRepliesOfWaiter(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	l, other := open(t, url), open(t, r.url())
	var last fencelock.Token
	for n := 1; n <= 8; n++ {
		le := lock(t, other.Mutex("x"))
		rising(t, "of the holder", last, le.Token())
		p.LoseReplyTo(1, nth(n))
		wait := r.wait(t, l.Mutex("x"), 2)
		third := r.wait(t, open(t, r.url()).Mutex("x"), 3)
		unlock(t, le)
		got := wait.Granted(t, 8*time.Second)
		rising(t, "of the waiter", le.Token(), got.Token())
		if third.Over() {
			t.Errorf("lost reply %d: two were granted the lock", n)
		}
		p.LoseReplyTo(0, nil)
		unlock(t, got)
		got2 := third.Granted(t, 5*time.Second)
		last = got2.Token()
		unlock(t, got2)
	}
	r.awaitFree(t, "x")
}

// turnPassed: a waiter whose entry is deleted while the request that takes its turn is under way is
// not granted the lock beside the next.
func turnPassed(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	le := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, open(t, url).Mutex("x", fencelock.WithManualRenew()), 2) // its grant is its turn
	third := r.wait(t, open(t, r.url()).Mutex("x"), 3)
	own := r.queue(t, "x")[1]
	p.Set(faultproxy.Mode{HoldRequests: true})
	unlock(t, le)
	await(t, 2*time.Second, "it asks", func() bool { return p.Counts().HeldRequests > 0 })
	_, err := r.c.Delete(t.Context(), r.prefix+"~lock/x/"+own)
	must(t, err)
	next := third.Granted(t, 5*time.Second)
	p.Set(faultproxy.Mode{})
	select {
	case <-wait.Done:
		t.Errorf("the waiter whose turn had passed came back while the lock is held: %v", wait.Err)
	case <-time.After(500 * time.Millisecond):
	}
	must(t, next.Err())
	unlock(t, next)
	unlock(t, wait.Granted(t, 5*time.Second))
}

// between returns a Locker over a client, and its driver, whose transactions are what do makes of them. send fills in
// resp.
func (r *rig) between(
	t *testing.T,
	do func(ctx context.Context, txn *pb.TxnRequest, resp *pb.TxnResponse, send func(context.Context) error) error,
	opts ...fencelock.Option,
) (*fencelock.Locker, *etcd.Driver) {
	t.Helper()
	return r.over(t, clientOf(t, clientv3.Config{
		Endpoints: r.e.Addrs(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			send := func(ctx context.Context) error { return invoke(ctx, method, req, reply, cc, opts...) }
			if txn, ok := req.(*pb.TxnRequest); ok {
				return do(ctx, txn, reply.(*pb.TxnResponse), send)
			}
			return send(ctx)
		})},
	}), opts...)
}

// answering is between, where the transactions are answered by what answer makes of the error that they have.
func (r *rig) answering(
	t *testing.T, answer func(txn *pb.TxnRequest, err error) error,
) (*fencelock.Locker, *etcd.Driver) {
	t.Helper()
	return r.between(t, func(
		ctx context.Context, txn *pb.TxnRequest, _ *pb.TxnResponse, send func(context.Context) error,
	) error {
		return answer(txn, send(ctx))
	})
}

// turnAndEntryLost: the answer that grants a waiter the lock is lost, and its entry goes while it asks again. It queues
// once more.
func turnAndEntryLost(t *testing.T, r *rig) {
	turns, again, gone := 0, make(chan bool), make(chan bool)
	turn := func(cmp *pb.Compare) bool {
		return cmp.Target == pb.Compare_MOD && strings.Contains(string(cmp.Key), "~lock/x/")
	}
	l, d := r.answering(t, func(txn *pb.TxnRequest, err error) error {
		if !slices.ContainsFunc(txn.Compare, turn) {
			return err
		}
		switch turns++; turns { // one after the other
		case 1:
			return status.Error(codes.Unavailable, "the answer is lost")
		case 2:
			close(again)
			<-gone
		}
		return err
	})
	le := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, l.Mutex("x", fencelock.WithManualRenew()), 2) // its grant is its turn
	unlock(t, le)
	select {
	case <-again:
	case <-time.After(10 * time.Second):
		t.Fatal("the waiter does not ask again")
	}
	told := d.Told()
	_, err := r.c.Delete(t.Context(), r.prefix+"~lock/x/"+r.queue(t, "x")[0])
	must(t, err)
	await(t, 10*time.Second, "the watch tells of it", func() bool { return d.Told() > told })
	close(gone)
	unlock(t, wait.Granted(t, 15*time.Second))
}

// lateTurn: the answer that grants a waiter the lock is lost. The request that finds it granted writes nothing, so that
// another copy finds the same.
func lateTurn(t *testing.T, r *rig) {
	turns := 0
	l, _ := r.answering(t, func(txn *pb.TxnRequest, err error) error {
		if slices.ContainsFunc(txn.Compare, func(c *pb.Compare) bool { return c.Target == pb.Compare_MOD }) {
			if turns++; turns == 1 { // one after the other
				err = status.Error(codes.Unavailable, "the answer is lost")
			}
		}
		return err
	})
	le := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, l.Mutex("x", fencelock.WithManualRenew()), 2) // its grant is its turn
	unlock(t, le)
	got := wait.Granted(t, 3*time.Second) // before it would look for itself
	resp, err := r.c.Get(t.Context(), r.prefix+"~lock/x/"+r.queue(t, "x")[0])
	must(t, err)
	if n := resp.Kvs[0].Version; n != 2 || turns < 2 {
		t.Errorf("in %d turns the entry was written %d times, want 2 times: for its place, and for the lock", turns, n)
	}
	unlock(t, got)
}

// lateJoin: the answer that tells a waiter of its place is lost. The next one shows who is in front: that is not asked
// again.
func lateJoin(t *testing.T, r *rig) {
	var joins, reads atomic.Int64
	l, _ := r.answering(t, func(txn *pb.TxnRequest, err error) error {
		if strings.Contains(txn.String(), "~lock/x/") {
			switch {
			case len(txn.Compare) == 0:
				reads.Add(1)
			case len(txn.Failure) == 1 && joins.Add(1) == 1: // it queues
				err = status.Error(codes.Unavailable, "the answer is lost")
			}
		}
		return err
	})
	le := lock(t, open(t, r.url()).Mutex("x"))
	wait := r.wait(t, l.Mutex("x"), 2)
	await(t, 10*time.Second, "it has asked again", func() bool { return joins.Load() == 2 })
	unlock(t, le)
	unlock(t, wait.Granted(t, 5*time.Second))
	if n := reads.Load(); n > 0 {
		t.Errorf("the queue was read %d times more", n)
	}
}

// frees reports whether a transaction releases the lock x.
func frees(txn *pb.TxnRequest) bool {
	return slices.ContainsFunc(txn.Success, func(op *pb.RequestOp) bool {
		return strings.Contains(string(op.GetRequestDeleteRange().GetKey()), "~lock/x/")
	})
}

// failing returns a Locker over a client whose first release of the lock x is done, and answered by an error of this
// code; and the number of transactions that were answered.
func (r *rig) failing(t *testing.T, code codes.Code) (*fencelock.Locker, *atomic.Int64) {
	t.Helper()
	var once sync.Once
	answered := new(atomic.Int64)
	l, _ := r.answering(t, func(txn *pb.TxnRequest, err error) error {
		if err == nil {
			if frees(txn) {
				once.Do(func() { err = status.Error(code, "the answer is lost") })
			}
			answered.Add(1)
		}
		return err
	})
	return l, answered
}

// releaseCancelled: etcd's client sends a release again by itself that was done, and answered as cancelled.
func releaseCancelled(t *testing.T, r *rig) {
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded} {
		l, _ := r.failing(t, code)
		unlock(t, lock(t, l.Mutex("x")))
	}
}

// copiedByTheClient: etcd's client sends a request again by itself that was answered as cancelled. Nothing comes of the
// first copy, which arrives when all is over.
func copiedByTheClient(t *testing.T, r *rig) {
	var withhold atomic.Bool
	var first atomic.Pointer[pb.TxnRequest]
	l, _ := r.between(t, func(
		ctx context.Context, txn *pb.TxnRequest, _ *pb.TxnResponse, send func(context.Context) error,
	) error {
		if withhold.CompareAndSwap(true, false) {
			first.Store(txn)
			over, cancel := context.WithCancel(ctx)
			cancel()
			ctx = over
		}
		return send(ctx)
	})
	other := open(t, r.url())
	unlock(t, lock(t, l.Mutex("warm")))
	for _, of := range []struct {
		what  string
		cycle func()
	}{
		{"a lock", func() { unlock(t, lock(t, l.Mutex("x"))) }},
		{"a try", func() {
			le := lock(t, other.Mutex("x"))
			_, err := l.Mutex("x").TryLock(t.Context())
			want(t, "TryLock", err, fencelock.ErrLocked)
			unlock(t, le)
		}},
		{"a reader", func() { unlock(t, get(t, l.RWMutex("x").RLock)) }},
	} {
		withhold.Store(true)
		of.cycle()
		_, err := pb.NewKVClient(r.c.ActiveConnection()).Txn(t.Context(), first.Load())
		must(t, err)
		if q := r.queue(t, "x"); len(q) > 0 {
			t.Fatalf("the first copy of %s has left %q", of.what, q)
		}
	}
}

// A release whose answer was lost is told apart from a loss although the store has forgotten the time of the grant.
func TestReleaseAfterCompaction(t *testing.T) {
	t.Parallel()
	r := on(t, servers.Etcd(t, servers.EtcdOptions{}), "compacted:")
	l, answered := r.failing(t, codes.Unavailable)
	le := lock(t, l.Mutex("x"))
	for range 3 {
		resp, err := r.c.Put(t.Context(), r.prefix+"any", "")
		must(t, err)
		_, err = r.c.Compact(t.Context(), resp.Header.Revision)
		must(t, err)
	}
	n := answered.Load()
	await(t, 20*time.Second, "it has looked again", func() bool { return answered.Load() >= n+3 })
	unlock(t, le)
}

// silentStore: what operators ask has an end where nobody answers, though neither the caller's ctx nor the client sets
// one.
func silentStore(t *testing.T, r *rig) {
	p, _ := r.proxied(t)
	l, d := r.over(t, clientOf(t, clientv3.Config{Endpoints: []string{p.Addr()}}))
	must(t, l.Break(t.Context(), "x"))
	p.Set(faultproxy.BlackHole)
	defer p.Set(faultproxy.Mode{})
	asks := map[string]func() error{
		"Inspect": func() error { _, err := l.Inspect(t.Context(), "x"); return err },
		"Break":   func() error { return l.Break(t.Context(), "x") },
		"List": func() (err error) {
			for _, err = range l.List(t.Context(), "") {
			}
			return err
		},
		"the driver's Source": func() error { // which has no bound of the engine's
			_, err := d.Source(t.Context())
			if err != nil {
				err = backend.Unavailable(err)
			}
			return err
		},
	}
	errs := make(map[string]chan error)
	for what, ask := range asks {
		told := make(chan error, 1)
		errs[what] = told
		go func() { told <- ask() }()
	}
	late := time.After(20 * time.Second)
	for what, err := range errs {
		select {
		case err := <-err:
			want(t, what, err, fencelock.ErrUnavailable)
		case <-late:
			t.Fatalf("%s has no end", what)
		}
	}
}

// tryWithoutAnswer: a try whose first send went unanswered, and whose second is refused, leaves no chance to the first.
func tryWithoutAnswer(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	l, other := open(t, url), open(t, r.url())
	unlock(t, lock(t, l.Mutex("warm")))
	le := lock(t, other.Mutex("x"))
	p.LoseReplyTo(1, with("~lock/x/"))
	_, err := l.Mutex("x").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrLocked)
	if n := tombs(r.keys(t)); n != 1 {
		t.Errorf("tombstones: got %d, want 1", n)
	}
	unlock(t, le)
	r.awaitFree(t, "x")
}

// renewalWithoutItsToken: a renewal does not wait for the transaction that writes the token into the entry.
func renewalWithoutItsToken(t *testing.T, r *rig) {
	_, plain := r.between(t, func(
		ctx context.Context, txn *pb.TxnRequest, _ *pb.TxnResponse, send func(context.Context) error,
	) error {
		for _, op := range txn.Success {
			if inner := op.GetRequestTxn().GetSuccess(); len(inner) > 0 && inner[0].GetRequestPut().GetIgnoreLease() {
				<-ctx.Done()
				return ctx.Err()
			}
		}
		return send(ctx)
	})
	d := call(plain)
	h := hold(t, d, request("x", 1, 20*time.Second))
	must(t, d.Renew(within(t, 3*time.Second), []*core.Hold{h})[0])
	must(t, d.Release(t.Context(), h))
}

// tombstoneLeaseRevoked: the lease of the tombstones ends behind the library's back. The next tombstone has another.
func tombstoneLeaseRevoked(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	d := r.driver(t, url)
	for n := 1; n <= 2; n++ {
		req := request("x", n, 30*time.Second)
		p.LoseReplyTo(1, with("~lock/x/", "~base"))
		must(t, d.Release(t.Context(), hold(t, d, req)))
		gone, err := r.c.Get(t.Context(), r.prefix+"~gone/"+req.Nonce)
		must(t, err)
		if len(gone.Kvs) != 1 {
			t.Fatalf("the tombstones of request %d: got %v, want one", n, gone.Kvs)
		}
		_, err = r.c.Revoke(t.Context(), clientv3.LeaseID(gone.Kvs[0].Lease))
		must(t, err)
	}
}

// releaseWithoutAnswer: a release that was applied, and is sent again after the next grant, is nil and frees nobody.
func releaseWithoutAnswer(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	l, other := open(t, url), open(t, r.url())
	le := lock(t, l.Mutex("x"))
	m := faultproxy.Mode{HoldReplies: true}
	p.Set(m) // it arrives, no answer comes
	ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
	defer cancel()
	if err := le.Unlock(ctx); err == nil {
		t.Fatal("Unlock without any answer: got nil")
	}
	p.Cut()
	p.Set(faultproxy.Mode{})
	next := lock(t, other.Mutex("x"))
	must(t, le.Unlock(t.Context()))
	want(t, "Unlock after that", le.Unlock(t.Context()), fencelock.ErrReleased)
	must(t, next.Renew(t.Context()))
	unlock(t, next)
}

// releaseAfterSilence: an Unlock is sent again and again within its 5 s, also after two sends that no answer came to.
func releaseAfterSilence(t *testing.T, r *rig) {
	sends := 0
	l, _ := r.between(t, func(
		ctx context.Context, txn *pb.TxnRequest, _ *pb.TxnResponse, send func(context.Context) error,
	) error {
		err := send(ctx)
		if frees(txn) {
			if sends++; sends < 3 { // one after the other
				<-ctx.Done()
				err = ctx.Err()
			}
		}
		return err
	})
	unlock(t, lock(t, l.Mutex("x")))
	if sends != 3 {
		t.Errorf("it was sent %d times, want 3", sends)
	}
	r.awaitFree(t, "x")
}

// slowWay: a lease of three seconds is renewed where each answer takes 600 ms, and a claim that had no answer is given
// up by three requests one after the other, where each takes 250.
func slowWay(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	l, d := open(t, url, fencelock.WithTTL(3*time.Second)), r.driver(t, url)
	hold(t, d, request("warm", 1, 30*time.Second))
	p.Set(faultproxy.BlackHole)
	req := request("doubtful", 2, 30*time.Second)
	_, err := d.Acquire(within(t, 100*time.Millisecond), req)
	want(t, "Acquire without any answer", err, context.DeadlineExceeded)
	p.Set(faultproxy.Mode{Delay: 125 * time.Millisecond})
	must(t, d.Abandon(within(t, 5*time.Second), req))
	p.Set(faultproxy.Mode{})
	le := lock(t, l.Mutex("x"))
	p.Set(faultproxy.Mode{Delay: 300 * time.Millisecond})
	select {
	case <-le.Done():
		t.Error(le.Err())
	case <-time.After(7 * time.Second):
	}
	p.Set(faultproxy.Mode{})
	unlock(t, le)
}

// releaseAfterRawDelete: an entry that somebody else deleted, just when a release went unanswered,
// was not ours any more.
func releaseAfterRawDelete(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	d := r.driver(t, url)
	req := request("x", 1, 30*time.Second)
	g, err := d.Acquire(t.Context(), req)
	must(t, err)
	h := &core.Hold{Request: req, Grant: g}
	p.Set(faultproxy.BlackHole) // the release does not arrive
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := d.Release(short, h); err == nil {
		t.Fatal("Release without any answer: got nil")
	}
	_, err = r.c.Delete(t.Context(), r.prefix+"~lock/x/"+req.Nonce)
	must(t, err)
	p.Cut()
	p.Set(faultproxy.Mode{})
	want(t, "Release of what another has deleted", d.Release(within(t, 5*time.Second), h), backend.ErrLost)
}

// lateAcquire: a request that was given up and arrives after its Abandon finds the tombstone, which
// ends with its lease.
func lateAcquire(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	d := r.driver(t, url)
	warm := request("warm", 1, 30*time.Second)
	g, err := d.Acquire(t.Context(), warm)
	must(t, err)
	must(t, d.Release(t.Context(), &core.Hold{Request: warm, Grant: g}))
	req := request("x", 2, 30*time.Second)
	p.Set(faultproxy.Mode{HoldRequests: true})
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err = d.Acquire(short, req); err == nil {
		t.Fatal("Acquire through a dead link: got a grant")
	}
	p.Cut()
	p.Set(faultproxy.Mode{})
	await(t, 5*time.Second, "Abandon", func() bool { return d.Abandon(t.Context(), req) == nil })
	_, err = d.Acquire(t.Context(), req)
	want(t, "Acquire after its Abandon", err, backend.ErrLost)
	if n := tombs(r.keys(t)); n != 1 {
		t.Errorf("tombstones: got %d, want 1", n)
	}
	gone, err := r.c.Get(t.Context(), r.prefix+"~gone/"+req.Nonce)
	must(t, err)
	if len(gone.Kvs) != 1 || gone.Kvs[0].Lease == 0 {
		t.Fatalf("the tombstone: got %v, want one under a lease", gone.Kvs)
	}
	if len(r.queue(t, "x")) > 0 {
		t.Error("the late request left an entry")
	}
}

// lateAcquireAfterRelease: of a request that was sent twice, one is granted and released; the other arrives after that.
func lateAcquireAfterRelease(t *testing.T, r *rig) {
	p, url := r.proxied(t)
	d := r.driver(t, url)
	req := request("x", 1, 30*time.Second)
	p.LoseReplyTo(1, with("~lock/x/", "~base"))
	g, err := d.Acquire(within(t, 5*time.Second), req)
	must(t, err)
	must(t, d.Release(t.Context(), &core.Hold{Request: req, Grant: g}))
	if n := tombs(r.keys(t)); n != 1 {
		t.Errorf("tombstones after the release of a request that was sent twice: got %d, want 1", n)
	}
	_, err = d.Acquire(t.Context(), req)
	want(t, "Acquire that arrives after its release", err, backend.ErrLost)
	must(t, d.Abandon(t.Context(), req))
	r.awaitFree(t, "x")
}

// abandonWithoutDoubt: where every answer came no tombstone is needed.
func abandonWithoutDoubt(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	req := request("x", 1, 30*time.Second)
	_, err := d.Acquire(t.Context(), req)
	must(t, err)
	must(t, d.Abandon(t.Context(), req))
	must(t, d.Abandon(t.Context(), req))
	if keys := r.keys(t); len(keys) > 0 {
		t.Errorf("left: %q", keys)
	}
}

// cancelledWaiter: it is out of the queue at once, and the next goes on.
func cancelledWaiter(t *testing.T, r *rig) {
	le := lock(t, open(t, r.url()).Mutex("x"))
	first := r.wait(t, open(t, r.url()).Mutex("x"), 2)
	second := r.wait(t, open(t, r.url()).Mutex("x"), 3)
	first.Cancel()
	<-first.Done
	want(t, "a cancelled wait", first.Err, context.Canceled)
	want(t, "a cancelled wait", first.Err, fencelock.ErrLocked)
	await(t, time.Second, "it has left the queue", func() bool { return len(r.queue(t, "x")) == 2 })
	unlock(t, le)
	unlock(t, second.Granted(t, 3*time.Second)) // before it would look for itself
	if keys := r.keys(t); len(keys) > 0 {
		t.Errorf("left: %q", keys)
	}
}
