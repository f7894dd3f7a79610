package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// gateTries is how often a request that grants is sent while others change the gates.
const gateTries = 4

// errGates: the gates have changed since they were last read, and nothing was done.
var errGates = errors.New("the gates of the keyspace change all the time")

// gates is what a driver knows of the gates of its keyspace: one key has them all. Each transaction that
// grants compares the revision at which that key was last written with the one known, so it is done only if what is known
// is true. Nothing is asked before the first gate is there.
type gates struct {
	mu  sync.Mutex
	now gateSet
	at  int64 // the revision of the answer that it comes from
}

// gateSet are the gates as of one change of them.
type gateSet struct {
	rev  int64 // of that change; 0: there has been none
	cuts int   // how often the store had gone back by then
	list []backend.Gate
}

// get returns what is known at p. What the store said before it went back is not true any more.
func (gs *gates) get(p point) gateSet {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.now.cuts != p.cuts {
		return gateSet{cuts: p.cuts}
	}
	return gs.now
}

// see takes in the answer to a read of the key that was sent at p, and returns what it says.
func (gs *gates) see(p point, hd *pb.ResponseHeader, kvs []*mvccpb.KeyValue) (gateSet, error) {
	set := gateSet{cuts: p.cuts}
	if len(kvs) > 0 {
		var err error
		if set.list, err = backend.DecodeGates(kvs[0].Value); err != nil {
			return set, fmt.Errorf("the key %q: %w", kvs[0].Key, err)
		}
		set.rev = kvs[0].ModRevision
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if set.cuts > gs.now.cuts || set.cuts == gs.now.cuts && hd.Revision >= gs.at {
		gs.now, gs.at = set, hd.Revision
	}
	return set, nil
}

// same is the compare that is true as long as the gates are those of s.
func (s gateSet) same(k keys) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(k.gates()), "=", s.rev)
}

// readGates asks the store for the gates.
func (d *Driver) readGates(ctx context.Context) (gateSet, error) {
	p := d.history.now()
	resp, err := d.get(ctx, d.keys.gates())
	if err != nil {
		return gateSet{}, err
	}
	d.history.see(p, resp.Header)
	return d.gates.see(p, resp.Header, resp.Kvs)
}

// Gates implements backend.Gater.
func (d *Driver) Gates(ctx context.Context) ([]backend.Gate, error) {
	s, err := d.readGates(ctx)
	return slices.Clone(s.list), err
}

// SetGate implements backend.Gater. All gates are in one key, so a gate of the etcd backend is never Torn.
func (d *Driver) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if err := backend.CheckGate(g); err != nil {
		return err
	}
	for {
		s, err := d.readGates(ctx)
		if err != nil {
			return err
		}
		next, changed, err := backend.ChangeGate(s.list, g, was)
		if !changed {
			return err
		}
		put := clientv3.OpPut(d.keys.gates(), string(backend.EncodeGates(next)))
		resp, err := d.commit(ctx, []clientv3.Cmp{s.same(d.keys)}, []clientv3.Op{put}, nil)
		if err != nil || resp.Succeeded {
			return err
		}
		// Somebody has changed this gate or another one, or our first send was done.
	}
}

// Undrained implements backend.Gater. A grant that is under way compares the gates, so once the gate stands no entry
// becomes a holder's that it would not admit, and the pages of the scan need not be of one moment.
func (d *Driver) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	var infos []backend.Info
	left := map[int64]time.Duration{}
	err := d.scan(ctx, "", func(name string, queue []*mvccpb.KeyValue) (bool, error) {
		if !g.Scope.Moves(name) || !slices.ContainsFunc(queue, func(kv *mvccpb.KeyValue) bool { return outside(g, kv) }) {
			return true, nil
		}
		i, err := d.describe(ctx, name, queue, left)
		i.Held = true // if only by a stranger's key that waits behind ours
		infos = append(infos, i)
		return len(infos) < undrainedMost, err
	})
	return infos, err
}

// undrainedMost is how many locks Undrained describes.
const undrainedMost = 100

// outside reports whether an entry is that of a holder whom g would not admit. A stranger's key becomes
// a holder's by itself, when it is first.
func outside(g backend.Gate, kv *mvccpb.KeyValue) bool {
	v, known := parse(string(kv.Value))
	switch {
	case !known:
		return true
	case !v.held:
		return false
	case v.both:
		return !g.Admits(v.move, backend.PhaseBoth)
	}
	return !g.Admits("", "")
}
