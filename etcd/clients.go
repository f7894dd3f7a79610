package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// reports are the etcd leases that what this driver has reported is under, by key.
type reports struct {
	mu    sync.Mutex
	byKey map[string]report
}

type report struct {
	lease *lease
	secs  int64
}

// take takes the lease of a key out.
func (rs *reports) take(key string) (report, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rep, ok := rs.byKey[key]
	delete(rs.byKey, key)
	return rep, ok
}

func (rs *reports) put(key string, rep report) (old report, there bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byKey == nil {
		rs.byKey = map[string]report{}
	}
	old, there = rs.byKey[key]
	rs.byKey[key] = rep
	return old, there
}

// Report implements backend.Gater. keep is rounded up to seconds, and the server keeps the report no shorter than its
// shortest lease. The reports of one client share an etcd lease as long as keep is the same.
func (d *Driver) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	if keep <= 0 {
		return backend.Invalid("a report to be kept for %v: want more than 0", keep)
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	key, secs := d.keys.client(c), seconds(keep)
	old, known := d.reports.take(key)
	if known && old.secs != secs {
		defer d.leases.revoke(old.lease) // once the report is under another
		known = false
	}
	l := old.lease
	if !known {
		l = nil
	}
	for range 2 { // the second if the lease has just ended
		if l, err = d.reportLease(ctx, l, secs); err != nil {
			break
		}
		_, err = d.commit(ctx, nil, []clientv3.Op{clientv3.OpPut(key, string(text), clientv3.WithLease(l.id))}, nil)
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			break
		}
		l.die()
	}
	if l != nil && !l.isDead() {
		if other, there := d.reports.put(key, report{l, secs}); there && other.lease != l {
			d.leases.revoke(other.lease) // of a report of the same client at the same time
		}
	}
	return err
}

// reportLease returns l renewed, or a new lease if it is over or nil. On an error it returns l.
func (d *Driver) reportLease(ctx context.Context, l *lease, secs int64) (*lease, error) {
	if l != nil && !l.isDead() {
		if err := d.leases.keepAlive(ctx, []*lease{l})[0]; err == nil || !errors.Is(err, backend.ErrLost) {
			return l, err
		}
	}
	fresh, err := d.leases.grant(ctx, secs)
	if err != nil {
		return l, err
	}
	return fresh, nil
}

// Withdraw implements backend.Gater.
func (d *Driver) Withdraw(ctx context.Context, c backend.Client) error {
	key := d.keys.client(c)
	_, err := d.commit(ctx, nil, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	if last, known := d.reports.take(key); known {
		d.leases.revoke(last.lease)
	}
	return err
}

// Clients implements backend.Gater.
func (d *Driver) Clients(ctx context.Context, move string) ([]backend.Client, error) {
	resp, err := d.get(ctx, d.keys.clients(move), clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	cs := make([]backend.Client, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		if err := json.Unmarshal(kv.Value, &cs[i]); err != nil || d.keys.client(cs[i]) != string(kv.Key) {
			return nil, backend.Invalid("the key %q holds %.40q, which is no client's report: some other program has written it", kv.Key, kv.Value)
		}
	}
	return cs, nil
}
