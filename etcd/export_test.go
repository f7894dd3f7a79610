package etcd

import (
	"context"
	"errors"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Watches is how many queues a driver watches, for the tests of package etcd_test.
func (d *Driver) Watches() int {
	d.store.push.mu.Lock()
	defer d.store.push.mu.Unlock()
	return len(d.store.push.watches)
}

// Told is how many deletions the watches have told of that no list of a claim knows yet.
func (d *Driver) Told() (n int) {
	d.store.push.mu.Lock()
	defer d.store.push.mu.Unlock()
	for _, w := range d.store.push.watches {
		for p := range w.places {
			n += len(p.gone)
		}
	}
	return n
}

// TooOld is the error of a version.
func TooOld(version string) error { return tooOld(version) }

// Do is do.
func Do(ctx context.Context, send func(context.Context) (int, error)) (int, error) {
	return do(ctx, send)
}

// ShareLogins is what a client's Auth becomes.
func ShareLogins(a clientv3.Auth) clientv3.Auth { return &logins{Auth: a} }

// KeepAlives returns what makes every renewal of a lease fail from then on. It is called before d is used.
func (d *Driver) KeepAlives() (cut func()) {
	l := &cutLeases{LeaseClient: d.store.leases.lc}
	d.store.leases.lc = l
	return func() {
		l.cut.Store(true)
		d.store.leases.hangUp()
	}
}

type cutLeases struct {
	pb.LeaseClient
	cut atomic.Bool
}

func (l *cutLeases) LeaseKeepAlive(
	ctx context.Context, opts ...grpc.CallOption,
) (pb.Lease_LeaseKeepAliveClient, error) {
	if l.cut.Load() {
		return nil, errors.New("cut")
	}
	return l.LeaseClient.LeaseKeepAlive(ctx, opts...)
}

// Opening is the context under which a stream is opened.
func Opening(ctx context.Context) context.Context { return opening(ctx) }
