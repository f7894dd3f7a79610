package etcd

import (
	"context"
	"errors"
	"iter"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// page is how many entries a step of List reads.
const page = 1000

// Inspect implements backend.Driver. The token of a lock whose holder has not
// renewed it yet is read from the base as it was at the grant; it is 0 if the
// store has compacted that moment.
func (d *Driver) Inspect(ctx context.Context, name string) (backend.Info, error) {
	resp, err := d.get(ctx, d.keys.queue(name), clientv3.WithPrefix())
	if err != nil {
		return backend.Info{}, err
	}
	return d.describe(ctx, name, resp.Kvs, map[int64]time.Duration{})
}

func (d *Driver) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	var resp *clientv3.GetResponse
	err := d.do(ctx, func(ctx context.Context) (err error) {
		resp, err = d.client.Get(ctx, key, opts...)
		return err
	})
	return resp, err
}

// describe makes the Info of one queue. left remembers what is left of the leases asked for.
func (d *Driver) describe(ctx context.Context, name string, queue []*mvccpb.KeyValue, left map[int64]time.Duration) (backend.Info, error) {
	i := backend.Info{Name: name}
	if len(queue) == 0 {
		return i, nil
	}
	first := queue[0]
	for _, kv := range queue {
		if kv.CreateRevision < first.CreateRevision {
			first = kv
		}
	}
	v, known := parse(string(first.Value))
	i.Waiters = len(queue)
	if known && !v.held {
		return i, nil // the lock is free for the first waiter, which has not taken it yet
	}
	i.Held, i.Waiters = true, len(queue)-1
	i.Leaked = first.Lease == 0
	if known {
		i.Owner, i.Token = v.owner, v.token
		if i.Token == 0 {
			var err error
			if i.Token, err = d.tokenOf(ctx, first, v); err != nil {
				return i, err
			}
		}
	}
	if i.Leaked {
		return i, nil
	}
	var err error
	if i.ExpiresIn, err = d.left(ctx, first.Lease, left); errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = nil // it is over just now
	}
	return i, err
}

// tokenOf returns the token of an entry that was last written by its grant, with the value v.
func (d *Driver) tokenOf(ctx context.Context, kv *mvccpb.KeyValue, v value) (backend.Token, error) {
	resp, err := d.get(ctx, d.keys.base(), clientv3.WithRev(kv.ModRevision))
	if errors.Is(err, rpctypes.ErrCompacted) {
		return 0, nil
	}
	if err != nil || len(resp.Kvs) == 0 {
		return 0, err
	}
	t, _, err := tokenAt(resp.Kvs[0], kv.CreateRevision, kv.ModRevision, v.reserve)
	return t, err
}

// left returns what is left of a lease, in whole seconds, rounded down.
func (d *Driver) left(ctx context.Context, id int64, known map[int64]time.Duration) (time.Duration, error) {
	if t, ok := known[id]; ok {
		return t, nil
	}
	var resp *clientv3.LeaseTimeToLiveResponse
	err := d.do(ctx, func(ctx context.Context) (err error) {
		resp, err = d.client.TimeToLive(ctx, clientv3.LeaseID(id))
		return err
	})
	if err != nil {
		return 0, err
	}
	known[id] = time.Duration(max(resp.TTL, 0)) * time.Second
	return known[id], nil
}

// List implements backend.Driver.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		left := map[int64]time.Duration{}
		err := d.scan(ctx, prefix, func(name string, queue []*mvccpb.KeyValue) (bool, error) {
			i, err := d.describe(ctx, name, queue, left)
			if err != nil {
				return false, err
			}
			return yield(i, nil), nil
		})
		if err != nil {
			yield(backend.Info{}, err)
		}
	}
}

// scan calls found with the queue of each name with this prefix until it says no.
func (d *Driver) scan(ctx context.Context, prefix string, found func(string, []*mvccpb.KeyValue) (bool, error)) error {
	from := d.keys.locks() + encode(prefix)
	end := clientv3.GetPrefixRangeEnd(from)
	var name string
	var queue []*mvccpb.KeyValue
	for more := true; more; {
		resp, err := d.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			n, _, ok := d.keys.split(string(kv.Key))
			if !ok {
				continue // not an entry of ours
			}
			if n != name && len(queue) > 0 {
				if ok, err := found(name, queue); !ok || err != nil {
					return err
				}
				queue = nil
			}
			name, queue = n, append(queue, kv)
		}
		if more = resp.More; more {
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
	if len(queue) > 0 {
		_, err := found(name, queue)
		return err
	}
	return nil
}
