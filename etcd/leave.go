package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// leave gives up a claim that shares no transaction.
func (s *store) leave(ctx context.Context, c *backend.Claim) error {
	var tomb []clientv3.Op
	var l *lease  // that the tombstone is under
	if c.Unsure { // a request that creates the entry may still be under way
		if !c.Held && s.leases.peek(tombSlot(c.Request), tombAge) == nil {
			// The deletion waits for nothing that a tombstone needs and a full server has not.
			if err := s.delete(ctx, s.entry(c)); err != nil {
				return err
			}
		}
		var err error
		l, err = s.leases.get(ctx, tombSlot(c.Request), tombAge)
		switch {
		case err == nil:
			put := clientv3.OpPut(s.keys.gone(c.Nonce), "", clientv3.WithLease(l.id))
			tomb = []clientv3.Op{put}
		case !c.Held || !errors.Is(err, rpctypes.ErrNoSpace): // a server that is full refuses the late copy too
			return err
		}
	}
	one := s.leaving(c, tomb)
	if one == nil {
		return nil
	}
	err := s.single(ctx, one)
	if l != nil && errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.die() // somebody has revoked it: the engine sends again
	}
	return err
}

// leaving returns the transaction that gives up a claim, or nil if nothing of it is left. A release
// compares the entry's create revision, so that it can touch no other holder, and leaves its nonce
// at the key ~last, so that its repetition can tell whether it was applied.
func (s *store) leaving(c *backend.Claim, tomb []clientv3.Op) *part {
	s.quiet(c)
	if c.Held {
		return s.releasing(c, tomb)
	}
	ops := slices.Concat(s.entry(c), tomb)
	if len(ops) == 0 {
		return nil
	}
	return &part{c: c, then: ops, take: func(ctx context.Context, _ *clientv3.TxnResponse, err error) error {
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return errors.Join(err, s.delete(ctx, s.entry(c)))
		}
		if err == nil {
			p := s.place(c)
			p.key = "" // the key is not used again: a copy of this may be under way
			s.settle(c, p, p.own, !c.Unsure)
		}
		return err
	}}
}

// entry returns the operation that deletes the entry of a claim, which may be there.
func (s *store) entry(c *backend.Claim) []clientv3.Op {
	_, known := c.Place.(*place)
	p := s.place(c)
	switch {
	case p.key != "":
		return []clientv3.Op{clientv3.OpDelete(p.key)}
	case known:
		return nil
	}
	return []clientv3.Op{clientv3.OpDelete(p.queue + c.Nonce)} // of whoever had the claim before
}

// delete sends operations by themselves.
func (s *store) delete(ctx context.Context, ops []clientv3.Op) error {
	if len(ops) == 0 {
		return nil
	}
	_, err := s.txn(ctx, nil, ops, nil)
	return err
}

func (s *store) releasing(c *backend.Claim, tomb []clientv3.Op) *part {
	one := &part{c: c, els: tomb, freed: c.Nonce}
	h, err := holdOf(c)
	if err != nil {
		one.freed, one.els = "", nil
		one.take = func(context.Context, *clientv3.TxnResponse, error) error { return err }
		return one
	}
	if h.released {
		return nil
	}
	one.ifs = []clientv3.Cmp{h.same()}
	one.then = append([]clientv3.Op{clientv3.OpDelete(h.key)}, tomb...)
	one.unsure = func() { h.sent = true }
	one.take = func(ctx context.Context, resp *clientv3.TxnResponse, err error) error {
		if errors.Is(err, rpctypes.ErrNoSpace) {
			resp, err = s.releaseBare(ctx, h)
		}
		if err != nil {
			return err
		}
		ours := resp.Succeeded
		if !ours && h.sent {
			if ours, err = s.wasOurs(ctx, c.Nonce, h); err != nil {
				return err
			}
		}
		p := s.place(c)
		p.key, p.hold = h.key, h
		h.released = ours
		own := h.lease
		if h.secs == 0 {
			own = nil
		}
		s.settle(c, p, own, ours && !c.Unsure)
		if !ours {
			return backend.ErrLost
		}
		return nil
	}
	return one
}

// same is true as long as the entry is there, and is that of the hold.
func (h *hold) same() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.rev)
}

// releaseBare deletes the entry and writes nothing, for a server that is full.
func (s *store) releaseBare(ctx context.Context, h *hold) (*clientv3.TxnResponse, error) {
	resp, err := s.txn(ctx, []clientv3.Cmp{h.same()}, []clientv3.Op{clientv3.OpDelete(h.key)}, nil)
	if err != nil && !answered(err) {
		h.bare = true
	}
	return resp, err
}

// errBare: nothing tells a release of ours that left no mark from the deletion by another.
var errBare = errors.New("etcd was full when a release went unanswered: whether the lock was " +
	"ours until then cannot be told")

var errWatch = errors.New("the watch of the entry's history ended without an answer")

// wasOurs reports whether an entry that is gone was deleted by a release of ours
// whose answer was lost: then, and only then, the key ~last was written with its
// nonce at the very revision of the deletion.
func (s *store) wasOurs(ctx context.Context, nonce string, h *hold) (bool, error) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	deleted := int64(0)
	for resp := range s.client.Watch(watching, h.key, clientv3.WithRev(h.rev+1), clientv3.WithFilterPut()) {
		if err := resp.Err(); err != nil {
			return false, err
		}
		if len(resp.Events) > 0 {
			deleted = resp.Events[0].Kv.ModRevision
			break
		}
	}
	if deleted == 0 {
		return false, errors.Join(ctx.Err(), errWatch)
	}
	resp, err := s.get(ctx, s.keys.last(), clientv3.WithRev(deleted))
	switch {
	case err != nil:
		return false, err
	case len(resp.Kvs) > 0 && resp.Kvs[0].ModRevision == deleted &&
		slices.Contains(strings.Split(string(resp.Kvs[0].Value), " "), nonce):
		return true, nil
	case h.bare:
		return false, errBare
	}
	return false, nil
}

// tombAge is how old the lease of a tombstone may be, which is never renewed.
const tombAge = tombTTL / 2

// tombSlot is the place of the lease that the tombstone of a request is under.
func tombSlot(r *backend.Request) slotKey {
	return slotKey{kind: tombs, secs: max(seconds(tombTTL), 2*secs(r))}
}

// Break implements backend.Driver. A first waiter that has not taken the free lock yet is left alone.
func (s *store) Break(ctx context.Context, name string) error {
	resp, err := s.get(ctx, s.keys.queue(name), clientv3.WithFirstCreate()...)
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	first := resp.Kvs[0]
	if v, ok := parse(string(first.Value)); ok && !v.held && first.Lease != 0 {
		return nil
	}
	key := string(first.Key)
	_, err = s.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", first.CreateRevision)},
		[]clientv3.Op{clientv3.OpDelete(key)}, nil)
	return err
}
