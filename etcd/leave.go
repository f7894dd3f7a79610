package etcd

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// leave gives up a claim that shares no transaction.
func (s *store) leave(ctx context.Context, c *backend.Claim) error {
	if !c.Unsure {
		return s.send(ctx, s.leaving(c, nil))
	}
	p := s.place(c)
	if p.others && c.Mode == backend.Permit {
		if err := s.find(ctx, p); err != nil {
			return err
		}
	}
	// A request that creates the entry may still be under way: a tombstone is to refuse it.
	l, err := s.leases.get(ctx, tombSlot(c.Request), tombAge)
	switch {
	case c.Held && errors.Is(err, rpctypes.ErrNoSpace): // then the late copy is refused, too
		return s.send(ctx, s.leaving(c, nil))
	case err != nil:
		return err
	}
	put := opPut(s.keys.gone(c.Nonce), "", l.id)
	err = s.send(ctx, s.leaving(c, []*pb.RequestOp{put}))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.die() // somebody has revoked it: the engine sends again
	}
	return err
}

// find finds the key of a permit that another program holds: its limit is in the key.
func (s *store) find(ctx context.Context, p *place) error {
	resp, err := s.get(ctx, p.queue+"+p", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	for _, kv := range resp.Kvs {
		if key := string(kv.Key); idOf(key) == p.c.Nonce {
			p.key = key
		}
	}
	return nil
}

// leaving returns the transaction that gives up a claim, or nil if nothing of it is left.
func (s *store) leaving(c *backend.Claim, tomb []*pb.RequestOp) *part {
	p := s.place(c)
	s.push.remove(p)
	if c.Held {
		return s.releasing(c, p, tomb)
	}
	ops := tomb
	if p.key != "" {
		ops = append(ops, opDelete(p.key))
	}
	if len(ops) == 0 {
		return nil
	}
	one := &part{c: c, then: ops}
	one.take = func(_ context.Context, _ *pb.TxnResponse, err error) error {
		switch {
		case err == nil:
			p.key = "" // the key is not used again: a copy of this may be under way
			s.settle(p, p.own, !c.Unsure)
		case p.session != nil && backend.Final(err): // nobody asks again: it goes with its lease, which is not renewed
			p.session.die()
		}
		return err
	}
	return one
}

// releasing returns the transaction of a release. It compares the entry's create revision, so that
// it can touch no other holder, and leaves its nonce at the key ~last, so that its repetition can
// tell whether it was applied.
func (s *store) releasing(c *backend.Claim, p *place, tomb []*pb.RequestOp) *part {
	h, err := holdOf(c)
	if err != nil {
		return &part{c: c, take: func(context.Context, *pb.TxnResponse, error) error { return err }}
	}
	if h.released {
		return nil
	}
	again := h.sent
	h.sent = true
	one := &part{c: c, ifs: []*pb.Compare{h.same()}, freed: c.Nonce}
	one.then = append([]*pb.RequestOp{opDelete(h.key)}, tomb...)
	if tomb != nil { // a late copy may have put the entry again after a Break; no other claim has the key
		one.els = func(bool) []*pb.RequestOp { return one.then }
	}
	one.take = func(ctx context.Context, resp *pb.TxnResponse, err error) error {
		if errors.Is(err, rpctypes.ErrNoSpace) { // the server answers that to a request that it has done, too
			again = true
			resp, err = s.releaseBare(ctx, p, h)
		}
		if err != nil {
			return err
		}
		ours := resp.Succeeded
		if !ours { // also at the first send: the client repeats a request that the server says was cancelled
			ours, err = s.wasOurs(ctx, c.Nonce, h, resp.Header.Revision)
			if err != nil && (again || !errors.Is(err, rpctypes.ErrCompacted)) {
				return err
			}
		}
		own := h.lease.Load()
		if own.kind != single {
			own = nil
		}
		p.key, h.released = h.key, ours
		s.settle(p, own, ours && !c.Unsure)
		if !ours {
			return backend.ErrLost
		}
		return nil
	}
	return one
}

// same is true as long as the entry is there and belongs to the hold.
func (h *hold) same() *pb.Compare {
	return createdAt(h.key, h.rev)
}

// releaseBare deletes the entry and writes nothing, for a server that is full. The heirs go too: their first renewal
// would have no space.
func (s *store) releaseBare(ctx context.Context, p *place, h *hold) (*pb.TxnResponse, error) {
	there, err := s.get(ctx, p.queue, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	if _, err := s.outOf(ctx, h.same(), heirsOf(there.Kvs, h.key, math.MaxInt64)); err != nil {
		return nil, err
	}
	resp, err := s.txn(ctx, []*pb.Compare{h.same()}, []*pb.RequestOp{opDelete(h.key)}, nil)
	if err != nil && !answered(err) {
		h.bare = true
	}
	return resp, err
}

// errBare: nothing tells a release of ours that left no mark from the deletion by another.
var errBare = errors.New("etcd was full when a release went unanswered: whether the lock was " +
	"ours until then cannot be told")

// wasOurs reports whether an entry that is gone at the revision now was deleted by a release of ours
// whose answer was lost: then, and only then, the key ~last was written with its nonce at the very
// revision of the deletion.
func (s *store) wasOurs(ctx context.Context, nonce string, h *hold, now int64) (bool, error) {
	from := max(h.rev, h.seen.Load())
	if from > now { // the store has gone back
		from = h.rev
	}
	if from > now {
		return false, nil // to before the grant
	}
	there, err := s.get(ctx, h.key, clientv3.WithRev(from), clientv3.WithKeysOnly())
	if err != nil {
		return false, err
	}
	if len(there.Kvs) == 0 || there.Kvs[0].CreateRevision != h.rev {
		return false, nil // to before the grant, and there is more since
	}
	deleted, err := do(ctx, func(ctx context.Context) (int64, error) {
		// A stream of its own, which ends here: where one goes to a member that hangs, no other watch waits behind it.
		ctx, cancel := context.WithCancel(opening(ctx))
		defer cancel()
		stream := s.watcher("left " + nonce[:1]) // one of few, where the client's Watcher keeps them
		defer stream.Close()
		for resp := range stream.Watch(ctx, h.key, clientv3.WithRev(from+1), clientv3.WithFilterPut()) {
			if err := resp.Err(); err != nil {
				return 0, err
			}
			if len(resp.Events) > 0 {
				return resp.Events[0].Kv.ModRevision, nil
			}
		}
		return 0, errors.Join(ctx.Err(), errWatch)
	})
	if err != nil {
		return false, err
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

// Break implements backend.Driver. It ends the holds that it finds. Waiters that may hold and have not taken
// their turn yet are left alone.
func (s *store) Break(ctx context.Context, name string) error {
	resp, err := s.get(ctx, s.keys.queue(name), clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	first := firstOf(resp.Kvs)
	var ops []*pb.RequestOp
	for _, kv := range resp.Kvs {
		v, known := parse(string(kv.Value))
		if kv == first && (!known || v.next || kv.Lease == 0) || v.held {
			ops = append(ops, opTxn([]*pb.Compare{still(kv)}, []*pb.RequestOp{
				opDelete(string(kv.Key)),
			}, nil))
		}
	}
	for part := range slices.Chunk(ops, perTxn) {
		_, failed := s.commit(ctx, nil, part, nil)
		err = errors.Join(err, failed)
	}
	return err
}
