package etcd

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Transactions are made as the messages that go to the server. clientv3 makes the same of its Op and Cmp, of which it
// copies each several times: for a lock and its unlock that cost as much as all else that the driver does.

const (
	equal   = pb.Compare_EQUAL
	less    = pb.Compare_LESS
	greater = pb.Compare_GREATER
)

func created(key string, is pb.Compare_CompareResult, rev int64) *pb.Compare {
	c := new(struct {
		pb.Compare
		rev pb.Compare_CreateRevision
	})
	c.Key, c.Result, c.Target = []byte(key), is, pb.Compare_CREATE
	c.rev.CreateRevision, c.TargetUnion = rev, &c.rev
	return &c.Compare
}

// modified compares the revision of the last write of a key.
func modified(key string, is pb.Compare_CompareResult, rev int64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(key), Result: is, Target: pb.Compare_MOD,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev},
	}
}

// says compares what a key holds.
func says(key string, is pb.Compare_CompareResult, text string) *pb.Compare {
	return &pb.Compare{
		Key: []byte(key), Result: is, Target: pb.Compare_VALUE,
		TargetUnion: &pb.Compare_Value{Value: []byte(text)},
	}
}

// under is true where a key is under that lease.
func under(key string, l clientv3.LeaseID) *pb.Compare {
	return &pb.Compare{
		Key: []byte(key), Result: equal, Target: pb.Compare_LEASE, TargetUnion: &pb.Compare_Lease{Lease: int64(l)},
	}
}

// createdAt is true where the key's create revision is that; 0: where there is no such key.
func createdAt(key string, rev int64) *pb.Compare { return created(key, equal, rev) }

// none is true where no key begins so.
func none(prefix string) *pb.Compare { return allUnder(createdAt(prefix, 0)) }

// upTo makes a compare one of all keys from its own to before end.
func upTo(end string, c *pb.Compare) *pb.Compare {
	c.RangeEnd = []byte(end)
	return c
}

// allUnder makes a compare one of all keys that begin with its own.
func allUnder(c *pb.Compare) *pb.Compare { return upTo(clientv3.GetPrefixRangeEnd(string(c.Key)), c) }

// opPut writes a key, under a lease unless that is 0.
func opPut(key, text string, under clientv3.LeaseID) *pb.RequestOp {
	op := new(struct {
		pb.RequestOp
		in  pb.RequestOp_RequestPut
		put pb.PutRequest
	})
	op.put.Key, op.put.Value, op.put.Lease = []byte(key), []byte(text), int64(under)
	op.in.RequestPut, op.Request = &op.put, &op.in
	return &op.RequestOp
}

func opGet(key string) *pb.RequestOp { return opRange(key, "") }

// opList reads the keys that begin so.
func opList(prefix string, keysOnly bool) *pb.RequestOp {
	op := opRange(prefix, clientv3.GetPrefixRangeEnd(prefix))
	op.GetRequestRange().KeysOnly = keysOnly
	return op
}

func opRange(key, end string) *pb.RequestOp {
	op := new(struct {
		pb.RequestOp
		in  pb.RequestOp_RequestRange
		get pb.RangeRequest
	})
	op.get.Key = []byte(key)
	if end != "" {
		op.get.RangeEnd = []byte(end)
	}
	op.in.RequestRange, op.Request = &op.get, &op.in
	return &op.RequestOp
}

// opKey reads whether there is a key.
func opKey(key string) *pb.RequestOp {
	op := opRange(key, "")
	op.GetRequestRange().KeysOnly = true
	return op
}

func opDelete(key string) *pb.RequestOp {
	op := new(struct {
		pb.RequestOp
		in  pb.RequestOp_RequestDeleteRange
		del pb.DeleteRangeRequest
	})
	op.del.Key = []byte(key)
	op.in.RequestDeleteRange, op.Request = &op.del, &op.in
	return &op.RequestOp
}

// opTxn is a transaction inside one.
func opTxn(ifs []*pb.Compare, then, els []*pb.RequestOp) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{
		RequestTxn: &pb.TxnRequest{Compare: ifs, Success: then, Failure: els},
	}}
}

// committer sends transactions over a client.
type committer func(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error)

// committerOf returns the committer of a client. If the program has put a KV of its own into the client, such as a
// namespace's, transactions go through that: it knows where the keys are.
func committerOf(client *clientv3.Client) committer {
	var own callOptions
	plain := clientv3.NewKVFromKVClient(&own, client)
	if reflect.TypeOf(client.KV) != reflect.TypeOf(plain) {
		return func(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
			resp, err := client.Txn(ctx).If(cmps(r.Compare)...).Then(ops(r.Success)...).Else(ops(r.Failure)...).Commit()
			return (*pb.TxnResponse)(resp), err
		}
	}
	_, _ = plain.Txn(context.Background()).Commit()
	kv, all := clientv3.RetryKVClient(client), slices.Clip(own.all)
	return func(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
		c := &call{Context: ctx}
		resp, err := kv.Txn(c, r, append(all, grpc.OnFinish(c.ended))...)
		if err = clientv3.ContextError(ctx, err); c.copied.Load() && known(err) {
			return nil, errCopied
		}
		return resp, err
	}
}

// errCopied is the error of a transaction that the client has sent again by itself, as it does where the answer is that
// it was cancelled (clientv3 3.7). The first copy may come later than the answer to the second one.
var errCopied = errors.New("the client has sent the request again: a copy of it may be under way")

// call is the ctx of one transaction, and how its sends ended.
type call struct {
	context.Context
	open   atomic.Bool // the last send may be under way yet, or was done
	copied atomic.Bool // another send followed one that may be
}

// Deadline implements context.Context: the server is told of none. It would set a timer with each request, and hears of
// the end of ctx without.
func (c *call) Deadline() (time.Time, bool) { return time.Time{}, false }

// ended takes in how a send ended.
func (c *call) ended(err error) {
	if c.open.Swap(err == nil || !answered(rpctypes.Error(err))) {
		c.copied.Store(true)
	}
}

// callOptions learns the call options of a client.
type callOptions struct {
	pb.KVClient
	all []grpc.CallOption
}

// Txn implements pb.KVClient.
func (o *callOptions) Txn(
	_ context.Context, _ *pb.TxnRequest, opts ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	o.all = opts
	return nil, nil
}

// cmps are what clientv3 makes such compares of.
func cmps(all []*pb.Compare) []clientv3.Cmp {
	res := make([]clientv3.Cmp, len(all))
	for i, c := range all {
		res[i] = clientv3.FromCompare(c)
	}
	return res
}

// ops are what clientv3 makes such operations of.
func ops(all []*pb.RequestOp) []clientv3.Op {
	res := make([]clientv3.Op, len(all))
	for i, op := range all {
		var opts []clientv3.OpOption
		option := func(is bool, o clientv3.OpOption) {
			if is {
				opts = append(opts, o)
			}
		}
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			put := r.RequestPut
			option(put.Lease != 0, clientv3.WithLease(clientv3.LeaseID(put.Lease)))
			option(put.IgnoreLease, clientv3.WithIgnoreLease())
			res[i] = clientv3.OpPut(string(put.Key), string(put.Value), opts...)
		case *pb.RequestOp_RequestRange:
			get := r.RequestRange
			option(get.RangeEnd != nil, clientv3.WithRange(string(get.RangeEnd)))
			option(get.KeysOnly, clientv3.WithKeysOnly())
			option(get.Limit > 0, clientv3.WithLimit(get.Limit))
			res[i] = clientv3.OpGet(string(get.Key), opts...)
		case *pb.RequestOp_RequestDeleteRange:
			res[i] = clientv3.OpDelete(string(r.RequestDeleteRange.Key))
		case *pb.RequestOp_RequestTxn:
			t := r.RequestTxn
			res[i] = clientv3.OpTxn(cmps(t.Compare), ops(t.Success), ops(t.Failure))
		}
	}
	return res
}
