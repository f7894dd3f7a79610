package etcd_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/etcd"
)

// calls counts what a client asks of its server, by method.
type calls struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *calls) add(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[method[strings.LastIndexByte(method, '/')+1:]]++
}

// take returns the counts since it was last called.
func (c *calls) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = nil
	return n
}

// counted returns a Locker over a client of its own whose calls are counted.
func (r *rig) counted(t *testing.T, opts ...fencelock.Option) (*fencelock.Locker, *calls) {
	t.Helper()
	var n calls
	return r.seen(t, func(method string, _ any) func() { n.add(method); return func() {} }, opts...), &n
}

// seen returns a Locker over a client of its own whose calls are shown before they are sent, with the request where it
// is no stream. What see returns is called with its answer, before the driver has it.
func (r *rig) seen(
	t *testing.T, see func(method string, req any) (answered func()), opts ...fencelock.Option,
) *fencelock.Locker {
	t.Helper()
	l, _ := r.seenDriver(t, see, opts...)
	return l
}

// seenDriver is seen, and returns the Locker's driver, too.
func (r *rig) seenDriver(
	t *testing.T, see func(method string, req any) (answered func()), opts ...fencelock.Option,
) (*fencelock.Locker, *etcd.Driver) {
	t.Helper()
	c := clientOf(t, clientv3.Config{Endpoints: r.e.Addrs(), DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			defer see(method, req)()
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			stream grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			defer see(method, nil)()
			return stream(ctx, desc, cc, method, opts...)
		}),
	}})
	return r.over(t, c, opts...)
}

// quick reports whether what is done takes less time than after which a request is sent once more, or a hold looked at.
func quick(do func()) bool {
	began := time.Now()
	do()
	return time.Since(began) < 500*time.Millisecond
}

// roundTrips: an uncontended lock costs one transaction, its release another; a try on a held lock one.
func roundTrips(t *testing.T, r *rig) {
	l, n := r.counted(t, fencelock.WithTTL(10*time.Minute))
	unlock(t, lock(t, l.Mutex("x")))
	const cycles = 20
	for range cycles {
		n.take()
		is := quick(func() { unlock(t, lock(t, l.Mutex("x"))) })
		if got := n.take(); is && (got["Txn"] != 2 || len(got) != 1) {
			t.Errorf("calls for an uncontended cycle: got %v, want 2 Txn", got)
		}
	}
	le := lock(t, open(t, r.url()).Mutex("x"))
	slow := 0 // tries that took so long that the engine cleans up behind them, each with a transaction
	for range cycles {
		began := time.Now()
		_, err := l.Mutex("x").TryLock(t.Context())
		want(t, "TryLock", err, fencelock.ErrLocked)
		if time.Since(began) > 100*time.Millisecond {
			slow++
		}
	}
	if got := n.take(); got["Txn"] < cycles || got["Txn"] > cycles+slow || len(got) != 1 {
		t.Errorf("calls for %d tries on a held lock, %d of them slow: got %v, want a Txn for "+
			"each, and for a slow one one more", cycles, slow, got)
	}
	unlock(t, le)
}

// contendedCalls: a waiter whose process has waited for the lock before, be it long ago, asks once to queue, and
// inherits.
func contendedCalls(t *testing.T, r *rig) {
	l, n := r.counted(t, fencelock.WithTTL(10*time.Minute))
	other := open(t, r.url())
	for round := range 8 {
		if round == 1 {
			time.Sleep(3 * time.Second) // longer than a watch may take to begin, shorter than one is kept
		}
		le := lock(t, other.Mutex("x"))
		n.take()
		is := quick(func() {
			wait := r.wait(t, l.Mutex("x"), 2)
			unlock(t, le)
			unlock(t, wait.Granted(t, 3*time.Second))
		})
		if c := n.take(); is && round > 0 && (c["Txn"] > 3 || c["Range"] > 0 || c["Watch"] > 0) {
			t.Errorf("round %d: calls for a lock that was waited for: got %v, want 2 Txn with "+
				"the release, or 3 where the session was old", round, c)
		}
	}
}

// manyHeld: locks of one TTL are renewed by one keep-alive, and looked at many at a time.
func manyHeld(t *testing.T, r *rig) {
	l, n := r.counted(t, fencelock.WithTTL(6*time.Second))
	const held = 250
	leases := make([]*fencelock.Lease, held)
	for i := range leases {
		leases[i] = lock(t, l.Mutex(fmt.Sprint("x", i)))
	}
	n.take()
	const span = 3 * time.Second
	<-time.After(span)
	got := n.take()
	// Checks every 0.6 s and a renewal or two, in batches over the time that the locking took; one
	// by one it would be 1,500.
	if got["Txn"] > 150 || got["LeaseKeepAlive"] > 60 {
		t.Errorf("calls in %v with %d locks held: got %v, want them in batches", span, held, got)
	}
	for _, le := range leases {
		must(t, le.Err())
	}
	t.Logf("calls in %v with %d locks held: %v", span, held, got)
}

// longQueue: neither a try nor a waiter that looks reads the whole queue.
func longQueue(t *testing.T, r *rig) {
	var told atomic.Int64 // the length of the longest answer
	l, d := r.between(t, func(
		ctx context.Context, _ *pb.TxnRequest, resp *pb.TxnResponse, send func(context.Context) error,
	) error {
		err := send(ctx)
		if err == nil {
			told.Store(max(told.Load(), int64(len(resp.String()))))
		}
		return err
	})
	session, err := r.c.Grant(t.Context(), 60)
	must(t, err)
	front := r.prefix + "~lock/x/0"
	for i := range 100 {
		key := fmt.Sprintf("%s%03d", front, i)
		_, err := r.c.Put(t.Context(), key, "wait::somebody", clientv3.WithLease(session.ID))
		must(t, err)
	}
	_, err = l.Mutex("x").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrLocked)
	const most = 1500
	if n := told.Load(); n > most {
		t.Errorf("the answer to a try has %d bytes", n)
	}
	req := request("x", 1, 20*time.Second)
	req.Wait = true
	c := &backend.Claim{Request: req, Waker: ignores{}}
	ask := func() error {
		told.Store(0)
		c.Err, c.Queued = nil, false
		d.Ask(t.Context(), []*backend.Claim{c})
		return c.Err
	}
	want(t, "the first request", ask(), backend.ErrLocked)
	must(t, d.Enter(t.Context(), c))
	want(t, "the one that queues", ask(), backend.ErrLocked)
	want(t, "a look", ask(), backend.ErrLocked)
	if n := told.Load(); n > most || !c.Queued {
		t.Errorf("the answer to a waiter that looks has %d bytes; queued: %v", n, c.Queued)
	}
	_, err = r.c.Delete(t.Context(), front, clientv3.WithPrefix())
	must(t, err)
	await(t, 5*time.Second, "it is granted the lock", func() bool { return ask() == nil })
	c.Held, c.Leaving = true, true
	must(t, ask())
}

// ignores is the Waker of a claim that is asked for without one.
type ignores struct{}

func (ignores) Wake(time.Duration) {}

// fewWatches: however many names a process has waited for, it keeps few watches.
func fewWatches(t *testing.T, r *rig) {
	d := r.driver(t, r.url())
	l, err := fencelock.New(d)
	must(t, err)
	other := open(t, r.url())
	var waits []*pending
	var held []*fencelock.Lease
	for i := range 100 {
		held = append(held, lock(t, other.Mutex(fmt.Sprint("x", i))))
		waits = append(waits, start(t, l.Mutex(fmt.Sprint("x", i))))
	}
	await(t, 10*time.Second, "a watch for each name", func() bool { return d.Watches() == 100 })
	for i, le := range held {
		unlock(t, le)
		unlock(t, waits[i].Granted(t, 5*time.Second))
	}
	await(t, 3*time.Second, "few watches are kept", func() bool { return d.Watches() <= 64 })
	must(t, l.Close())
	if n := d.Watches(); n != 0 {
		t.Errorf("watches after Close: got %d", n)
	}
}
