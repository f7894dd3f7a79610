package etcd

import (
	"context"
	"errors"

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

// CutKeepAlives makes every renewal of a lease fail from now on.
func (d *Driver) CutKeepAlives() {
	d.store.leases.lc = cutLeases{d.store.leases.lc}
	d.store.leases.hangUp()
}

type cutLeases struct{ pb.LeaseClient }

func (cutLeases) LeaseKeepAlive(
	context.Context, ...grpc.CallOption,
) (pb.Lease_LeaseKeepAliveClient, error) {
	return nil, errors.New("cut")
}

// Opening is the context under which a stream is opened.
func Opening(ctx context.Context) context.Context { return opening(ctx) }
