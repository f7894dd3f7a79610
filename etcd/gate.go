package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
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
		if set.list, err = readGates(kvs[0]); err != nil {
			return set, err
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

// find returns the gate of a migration.
func (s gateSet) find(move string) (g backend.Gate, ok bool) {
	if i := slices.IndexFunc(s.list, func(g backend.Gate) bool { return g.Move == move }); i >= 0 {
		return s.list[i], true
	}
	return g, false
}

// with returns the text of s with g in the place of the gate of the same migration.
func (s gateSet) with(g backend.Gate) (string, error) {
	list := slices.DeleteFunc(slices.Clone(s.list), func(o backend.Gate) bool { return o.Move == g.Move })
	g.Torn = false
	text, err := json.Marshal(append(list, g))
	return string(text), err
}

// readGates reads what with wrote. What it does not understand lets nobody in.
func readGates(kv *mvccpb.KeyValue) ([]backend.Gate, error) {
	var list []backend.Gate
	dec := json.NewDecoder(bytes.NewReader(kv.Value))
	dec.DisallowUnknownFields()
	err := dec.Decode(&list)
	if _, more := dec.Token(); err == nil && !errors.Is(more, io.EOF) {
		err = errors.New("something follows the list")
	}
	if err == nil && list == nil {
		err = errors.New("there is no list")
	}
	known := map[string]bool{}
	for _, g := range list {
		if err == nil {
			err = backend.CheckGate(g)
		}
		if err == nil && known[g.Move] {
			err = errors.New("a migration has two gates")
		}
		known[g.Move] = true
	}
	if err != nil {
		return nil, backend.Invalid("the key %q holds %.40q, which is no list of gates (%v): some other program, or a newer version, has written it", kv.Key, kv.Value, err)
	}
	return list, nil
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
		old, there := s.find(g.Move)
		switch {
		case there && old.State == g.State && old.Epoch == g.Epoch && slices.Equal(old.Scope, g.Scope):
			return nil
		case was == backend.Lower && old.Epoch >= g.Epoch, was != backend.Lower && old.Epoch != was:
			return backend.ErrGateMoved
		}
		text, err := s.with(g)
		if err != nil {
			return err
		}
		resp, err := d.commit(ctx, []clientv3.Cmp{s.same(d.keys)}, []clientv3.Op{clientv3.OpPut(d.keys.gates(), text)}, nil)
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
