package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// All gates of the keyspace are in one key, as a list. The version of the list, and of each gate,
// is its text.

// version is the version of the gates that a claim was judged by.
func version(r *backend.Record) string {
	if r == nil {
		return ""
	}
	return r.Version
}

// sameGates is true as long as the gates are those that a claim was judged by.
func (s *store) sameGates(r *backend.Record) *pb.Compare {
	if r == nil {
		return s.noGatesKey
	}
	return says(s.keys.gates(), equal, r.Version)
}

// readGates reads the key of the gates, and returns them also as the engine keeps them. A value that
// is no list of gates lets no request in.
func readGates(kvs []*mvccpb.KeyValue) ([]backend.Gate, *backend.Record, error) {
	if len(kvs) == 0 {
		return nil, nil, nil
	}
	gates, err := backend.DecodeGates(kvs[0].Value)
	if err != nil {
		return nil, nil, fmt.Errorf("the key %q: %w", kvs[0].Key, err)
	}
	return gates, &backend.Record{
		Key: backend.GateKey, Data: kvs[0].Value, Version: string(kvs[0].Value),
	}, nil
}

// shown takes in a read of the gates: ErrGates if the claim was judged by others.
func shown(c *backend.Claim, kvs []*mvccpb.KeyValue) error {
	_, is, err := readGates(kvs)
	if err != nil || version(is) == version(c.Gates) {
		return err
	}
	c.Gates = is
	return backend.ErrGates
}

// loadGates asks for the gates.
func (s *store) loadGates(ctx context.Context) ([]backend.Gate, *backend.Record, error) {
	resp, err := s.get(ctx, s.keys.gates())
	if err != nil {
		return nil, nil, err
	}
	return readGates(resp.Kvs)
}

// Load implements backend.Mover. The keyspace is one place.
func (s *store) Load(ctx context.Context, prefix string) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		all, err := s.load(ctx, prefix)
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
		if err != nil {
			yield(backend.Record{}, err)
		}
	}
}

func (s *store) load(ctx context.Context, prefix string) (all []backend.Record, err error) {
	if clients, ok := strings.CutPrefix(prefix, backend.ClientKey); ok {
		move, _, _ := strings.Cut(clients, "\x00")
		resp, err := s.get(ctx, s.keys.clients(move), clientv3.WithPrefix())
		if err != nil {
			return nil, err
		}
		for _, kv := range resp.Kvs {
			id, ok := decode(strings.TrimPrefix(string(kv.Key), s.keys.clients(move)))
			if !ok {
				return nil, backend.Invalid(
					"the key %q is no client's: some other program has written it", kv.Key)
			}
			all = append(all, backend.Record{
				Key: prefix + id, Data: kv.Value, Version: string(kv.Value),
			})
		}
		return all, nil
	}
	gates, _, err := s.loadGates(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range gates {
		text := textOf(g)
		all = append(all, backend.Record{
			Key: backend.GateKey + g.Move, Data: []byte(text), Version: text,
		})
	}
	if all == nil {
		all = []backend.Record{{Key: backend.GateKey}}
	}
	return all, nil
}

func textOf(g backend.Gate) string {
	text, _ := json.Marshal(g) // of strings and numbers: never fails
	return string(text)
}

// Swap implements backend.Mover.
func (s *store) Swap(ctx context.Context, rs []backend.Record, keep time.Duration) error {
	for _, r := range rs {
		var err error
		if client, ok := strings.CutPrefix(r.Key, backend.ClientKey); ok {
			move, id, _ := strings.Cut(client, "\x00")
			err = s.report(ctx, s.keys.clients(move)+encode(id), r.Data, keep)
		} else {
			err = s.swapGate(ctx, strings.TrimPrefix(r.Key, backend.GateKey), r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// swapGate replaces a gate. There are no heirs while there is the key of the gates. So before the first gate the key is
// written without any, and then the heirs from before it lose their places.
func (s *store) swapGate(ctx context.Context, move string, r backend.Record) error {
	gates, by, err := s.loadGates(ctx)
	if err != nil {
		return err
	}
	is, text := slices.IndexFunc(gates, func(g backend.Gate) bool { return g.Move == move }), ""
	if is >= 0 {
		text = textOf(gates[is])
		gates = slices.Delete(gates, is, is+1)
	}
	if r.Version != text && r.Version != backend.AnyVersion {
		return backend.ErrGates
	}
	if r.Data != nil {
		var g backend.Gate
		if err := json.Unmarshal(r.Data, &g); err != nil {
			return err
		}
		gates = append(gates, g)
	}
	if by == nil {
		if by, err = s.noGates(ctx); err != nil {
			return err
		}
	}
	if string(by.Data) == string(backend.EncodeGates(nil)) {
		if err := s.disinherit(ctx, math.MaxInt64); err != nil {
			return err
		}
	}
	put := opPut(s.keys.gates(), string(backend.EncodeGates(gates)), 0)
	resp, err := s.commit(ctx, []*pb.Compare{s.sameGates(by)}, []*pb.RequestOp{put}, nil)
	if err == nil && !resp.Succeeded { // others have changed one, or our first send was done
		err = backend.ErrGates
	}
	return err
}

// noGates makes the key of the gates, with none, and returns its record. ErrGates: others have made it.
func (s *store) noGates(ctx context.Context) (*backend.Record, error) {
	none := &backend.Record{Key: backend.GateKey, Data: backend.EncodeGates(nil)}
	none.Version = string(none.Data)
	put := opPut(s.keys.gates(), none.Version, 0)
	resp, err := s.commit(ctx, []*pb.Compare{s.sameGates(nil)}, []*pb.RequestOp{put}, nil)
	if err == nil && !resp.Succeeded {
		err = backend.ErrGates
	}
	return none, err
}

// report puts what a client reports under a lease of its own, of whole seconds, or deletes it. The
// server keeps the report no shorter than its shortest lease. The reports of one client share a
// lease as long as they are to be kept for the same time.
func (s *store) report(ctx context.Context, key string, data []byte, keep time.Duration) error {
	if data == nil {
		_, err := s.commit(ctx, nil, []*pb.RequestOp{opDelete(key)}, nil)
		s.leases.drop(key)
		return err
	}
	if keep <= 0 {
		return backend.Invalid("a report to be kept for %v: want more than 0", keep)
	}
	l, err := s.leases.get(ctx, slotKey{kind: report, secs: seconds(keep), of: key}, 0)
	if err != nil {
		return err
	}
	put := opPut(key, string(data), l.id)
	_, err = s.commit(ctx, nil, []*pb.RequestOp{put}, nil)
	return err
}
