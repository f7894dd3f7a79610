package etcd

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// Release implements backend.Driver: one transaction, which compares the entry's
// create revision, so that it can touch no other holder, and leaves its nonce at
// the key ~last, so that its repetition can tell whether it was applied.
func (d *Driver) Release(ctx context.Context, h *backend.Hold) error {
	hd, err := handle(h)
	if err != nil {
		return err
	}
	if d.ledger.wasReleased(h.Nonce) {
		return nil
	}
	tomb, err := d.tombstone(ctx, h.Request)
	if err != nil {
		return err
	}
	applied, err := d.release(ctx, h.Nonce, hd, tomb)
	if err == nil && !applied {
		if applied, err = d.wasOurs(ctx, h.Nonce, hd); err == nil && !applied {
			err = backend.ErrLost
		}
	}
	switch {
	case err == nil:
		d.ledger.setReleased(h.Nonce)
		if len(tomb) == 0 {
			d.ids.give(hd.queue, h.Nonce)
		}
		d.settle(h.Nonce, hd, len(tomb) > 0)
	case errors.Is(err, backend.ErrLost):
		d.settle(h.Nonce, hd, true)
	}
	return err
}

// handle returns the driver's handle of a hold.
func handle(h *backend.Hold) (*hold, error) {
	hd, ok := h.Handle.(*hold)
	if !ok {
		return nil, backend.Invalid("the hold of %q has the handle %T: want the one that this driver's Acquire returned", h.Name, h.Handle)
	}
	return hd, nil
}

// release deletes the entry, and reports whether it was there.
func (d *Driver) release(ctx context.Context, nonce string, hd *hold, tomb []clientv3.Op) (bool, error) {
	resp, err := d.batches.commit(ctx, &part{
		queue: hd.queue,
		ifs:   []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(hd.key), "=", hd.rev)},
		then:  append([]clientv3.Op{clientv3.OpDelete(hd.key)}, tomb...), els: tomb, freed: nonce,
		unsure: func() {
			hd.mu.Lock()
			defer hd.mu.Unlock()
			hd.sent = true
		},
	})
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

// wasOurs reports whether an entry that is gone was deleted by a release of ours
// whose answer was lost: then, and only then, the key ~last was written with its
// nonce at the very revision of the deletion.
func (d *Driver) wasOurs(ctx context.Context, nonce string, hd *hold) (bool, error) {
	hd.mu.Lock()
	sent := hd.sent
	hd.mu.Unlock()
	if !sent {
		return false, nil
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	deleted := int64(0)
	for resp := range d.client.Watch(watching, hd.key, clientv3.WithRev(hd.rev+1), clientv3.WithFilterPut()) {
		if err := resp.Err(); err != nil {
			return false, err
		}
		if len(resp.Events) > 0 {
			deleted = resp.Events[0].Kv.ModRevision
			break
		}
	}
	if deleted == 0 {
		return false, ctx.Err()
	}
	resp, err := d.get(ctx, d.keys.last(), clientv3.WithRev(deleted))
	if err != nil {
		return false, err
	}
	return len(resp.Kvs) > 0 && resp.Kvs[0].ModRevision == deleted && holdsNonce(resp.Kvs[0].Value, nonce), nil
}

// Abandon implements backend.Driver.
func (d *Driver) Abandon(ctx context.Context, r *backend.Request) error {
	tomb, err := d.tombstone(ctx, r)
	if err != nil {
		return err
	}
	ops := tomb
	if id, open := d.ids.of(r.Nonce); open {
		ops = append([]clientv3.Op{clientv3.OpDelete(d.keys.queue(r.Name) + id)}, tomb...)
	}
	if len(ops) > 0 {
		if _, err := d.commit(ctx, nil, ops, nil); err != nil {
			return err
		}
	}
	d.settle(r.Nonce, d.ledger.heldBy(r.Nonce), len(tomb) > 0)
	return nil
}

// tombstone returns the operation that leaves a tombstone, where a request that
// creates the entry went unanswered and may still be under way.
func (d *Driver) tombstone(ctx context.Context, r *backend.Request) ([]clientv3.Op, error) {
	if !d.ledger.inDoubt(r.Nonce) {
		return nil, nil
	}
	secs := max(seconds(tombTTL), 2*seconds(r.TTL+r.Grace))
	k := slotKey{tombs, secs}
	l, err := d.leases.get(ctx, k, tombTTL/2)
	if err != nil {
		return nil, err
	}
	return []clientv3.Op{clientv3.OpPut(d.keys.gone(r.Nonce), "", clientv3.WithLease(l.id))}, nil
}

// settle ends the memory of an acquisition that left nothing in the store. Its own
// lease goes to the next lock, or ends if something may still be put under it.
func (d *Driver) settle(nonce string, hd *hold, end bool) {
	d.ledger.forget(nonce)
	d.ids.drop(nonce)
	switch {
	case hd == nil || hd.secs == 0:
	case end:
		d.leases.revoke(hd.lease)
	default:
		d.leases.give(hd.secs, hd.lease)
	}
}

// Break implements backend.Driver. A first waiter that has not taken the free lock yet is left alone.
func (d *Driver) Break(ctx context.Context, name string) error {
	resp, err := d.get(ctx, d.keys.queue(name), clientv3.WithFirstCreate()...)
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	first := resp.Kvs[0]
	if v, ok := parse(string(first.Value)); ok && !v.held && first.Lease != 0 {
		return nil
	}
	key := string(first.Key)
	_, err = d.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", first.CreateRevision)},
		[]clientv3.Op{clientv3.OpDelete(key)}, nil)
	return err
}
