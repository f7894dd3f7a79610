package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// backUp keeps the data of a server. What it returns puts them back, as if nothing had happened since.
func backUp(t *testing.T, e *servers.EtcdCluster) (restore func()) {
	t.Helper()
	s := e.Servers()[0]
	if s.Kind() != "local" {
		t.Skip("the data of a container is not at hand")
	}
	data, backup := filepath.Join(s.Dir(), "data"), filepath.Join(t.TempDir(), "data")
	must(t, s.Stop())
	must(t, os.CopyFS(backup, os.DirFS(data)))
	must(t, s.Start())
	return func() {
		t.Helper()
		must(t, s.Kill())
		must(t, os.RemoveAll(data))
		must(t, os.CopyFS(data, os.DirFS(backup)))
		must(t, s.Start())
	}
}

// A waiter that was there before its store was put back to an older state hears of releases at once, although the
// revisions of its watch are ahead.
func TestWaiterOverRestore(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	r := on(t, e, "waiter:")
	session, err := r.c.Grant(t.Context(), 600)
	must(t, err)
	front := r.prefix + "~lock/x/0"
	_, err = r.c.Put(t.Context(), front, "held:5:somebody", clientv3.WithLease(session.ID))
	must(t, err)
	restore := backUp(t, e)
	r = on(t, e, r.prefix)
	l := open(t, r.url())
	for range 100 { // revisions that the older state does not have
		unlock(t, lock(t, l.Mutex("y")))
	}
	wait := r.wait(t, l.Mutex("x"), 2) // its watch begins after them
	restore()
	unlock(t, lock(t, l.Mutex("y"))) // which tells the driver
	if wait.Over() {                 // the outage was too long for it
		wait = start(t, l.Mutex("x"))
	}
	r = on(t, e, r.prefix)
	await(t, 20*time.Second, "the waiter is in the queue again", func() bool { return len(r.queue(t, "x")) == 2 })
	_, err = r.c.Delete(t.Context(), front)
	must(t, err)
	unlock(t, wait.Granted(t, 3*time.Second)) // before it would look for itself
}

// A release that is sent again, after the store was put back to a state from before the grant, says that the lock was
// lost. The older state knows nothing of a deletion.
func TestReleaseOverRestore(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	restore := backUp(t, e)
	r := on(t, e, "release:")
	p, url := r.proxied(t)
	for i := range 20 { // revisions that the older state does not have
		_, err := r.c.Put(t.Context(), r.prefix+"any", fmt.Sprint(i))
		must(t, err)
	}
	d := r.driver(t, url)
	h := hold(t, d, request("x", 1, time.Minute))
	p.Set(faultproxy.BlackHole)
	if err := d.Release(within(t, 300*time.Millisecond), h); err == nil {
		t.Fatal("Release without any answer: got nil")
	}
	restore()
	p.Cut()
	p.Set(faultproxy.Mode{})
	var err error
	for range 3 { // the driver connects anew
		if err = d.Release(within(t, 5*time.Second), h); errors.Is(err, backend.ErrLost) {
			break
		}
	}
	want(t, "Release after the restore", err, backend.ErrLost)
}

// A permit that was chosen from the queue of one state of the store, and reaches an older one in which another holds
// the lock, is not granted beside that one; nor is it by the next request, if the answer is lost.
func TestPermitOverRestore(t *testing.T) {
	t.Parallel()
	t.Run("Answered", func(t *testing.T) { t.Parallel(); permitOverRestore(t, false) })
	t.Run("Unanswered", func(t *testing.T) { t.Parallel(); permitOverRestore(t, true) })
}

func permitOverRestore(t *testing.T, unanswered bool) {
	e := servers.Etcd(t, servers.EtcdOptions{})
	r := on(t, e, "permit:")
	const ttl = 10 * time.Minute
	asks, chosen, restored := 0, make(chan bool), make(chan bool)
	client := clientOf(t, clientv3.Config{
		Endpoints: e.Addrs(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			txn, _ := req.(*pb.TxnRequest)
			second := false
			for _, op := range txn.GetSuccess() {
				if strings.Contains(string(op.GetRequestPut().GetKey()), "/+p") {
					asks++ // one after the other; the first is the guess that nobody is there
					second = asks == 2
				}
			}
			if !second {
				return invoke(ctx, method, req, reply, cc, opts...)
			}
			close(chosen)
			select {
			case <-restored:
			case <-ctx.Done():
			}
			err := invoke(ctx, method, req, reply, cc, opts...)
			if err == nil && unanswered {
				err = status.Error(codes.Unavailable, "the answer is lost")
			}
			return err
		})},
	})
	l, d := r.over(t, client, fencelock.WithTTL(ttl))
	unlock(t, lock(t, l.Mutex("warm"))) // its lease is in the older state
	ahead(t, r)                         // so that the next holder leaves the base as it is
	restore := backUp(t, e)
	r = on(t, e, r.prefix)
	for i := range 100 { // revisions that the older state does not have
		_, err := r.c.Put(t.Context(), r.prefix+"any", fmt.Sprint(i))
		must(t, err)
	}
	permit := func(nonce int) *backend.Request {
		req := request("x", nonce, ttl)
		req.Mode, req.Limit = backend.Permit, 3
		return req
	}
	hold(t, r.driver(t, r.url()), permit(2))
	connected := func() bool { _, err := client.Get(within(t, time.Second), "any"); return err == nil }
	await(t, 20*time.Second, "it is connected", connected)
	c := &backend.Claim{Request: permit(3)}
	done := make(chan bool)
	go func() { // as the engine does, but with more time than a restore takes
		defer close(done)
		ctx := within(t, time.Minute)
		for d.Ask(ctx, []*backend.Claim{c}); c.Err != nil && !backend.Final(c.Err) && ctx.Err() == nil; {
			c.Unsure = c.Unsure || !backend.Refused(c.Err)
			d.Ask(ctx, []*backend.Claim{c})
		}
	}()
	select {
	case <-chosen:
	case <-done:
		t.Fatalf("it has not chosen: %v", c.Err)
	}
	restore()
	other := r.driver(t, r.url())
	h := hold(t, other, request("x", 4, ttl))
	await(t, 20*time.Second, "it is connected again", connected)
	close(restored)
	<-done
	want(t, "a permit beside an exclusive holder", c.Err, backend.ErrLost)
	must(t, other.Check(t.Context(), []*core.Hold{h})[0])
	c.Leaving = true
	d.Leave(t.Context(), []*backend.Claim{c})
	must(t, c.Err)
	r = on(t, e, r.prefix)
	if left := r.queue(t, "x"); len(left) != 1 {
		t.Errorf("in the queue: got %q, want the holder", left)
	}
}
