package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/fence"
)

// A Guard keeps the greatest fencing token that it has seen for each resource in
// etcd, one key each, which is never deleted. What is protected lies in the same
// etcd, and is read and written through [Guard.Do], or in the program's own
// transaction with [Guard.Compare]: then the check and the access are one step.
type Guard struct {
	kv   clientv3.KV
	keys keys
}

var _ fence.Guard = (*Guard)(nil)

// NewGuard returns a guard over a client, or another clientv3.KV. Its keys are
// the prefix of opts, which may be nil, ~token/ and the resource. It has nothing to close.
func NewGuard(kv clientv3.KV, opts *Options) (*Guard, error) {
	if kv == nil {
		return nil, backend.Invalid("the etcd client is nil")
	}
	prefix, err := opts.prefix()
	if err != nil {
		return nil, err
	}
	return &Guard{kv, keysOf(prefix)}, nil
}

// CheckToken is Check of a guard with the default prefix: nil for a token that is
// equal to the greatest that the resource has seen or greater, which it records, and a
// *backend.StaleError, which matches ErrStale, for a lower one.
func CheckToken(ctx context.Context, kv clientv3.KV, resource string, t backend.Token) error {
	g, err := NewGuard(kv, nil)
	if err != nil {
		return err
	}
	return g.Check(ctx, resource, t)
}

// Check implements fence.Guard. By itself it is not atomic with an access that
// follows: use Do, or Compare in the transaction of the access.
func (g *Guard) Check(ctx context.Context, resource string, t backend.Token) error {
	_, err := g.Do(ctx, resource, t)
	return err
}

// Do checks the token, records it, and runs access, reads or writes, in one transaction. The
// answers to access stand in the response's Responses. Of the operations that the server allows in
// a transaction, 128 by default, the guard needs two. If the token is stale nothing was done, and
// the error is a *backend.StaleError. A token that no store can have granted yet, for it is more
// than an hour ahead of the clock and of the locks of the guard's prefix, is ErrInvalid: once
// recorded it would keep every holder out for good. Any other error, but ErrInvalid, leaves open
// whether it was done.
func (g *Guard) Do(
	ctx context.Context, resource string, t backend.Token, access ...clientv3.Op,
) (*clientv3.TxnResponse, error) {
	if t <= 0 || t >= maxToken {
		return nil, backend.Invalid("token %d: want a positive one below 2^53", t)
	}
	if err := g.near(ctx, t); err != nil {
		return nil, err
	}
	key := g.keys.token(resource)
	newer := clientv3.Compare(clientv3.Value(key), ">", number(t)) // false where there is none
	same := clientv3.Compare(clientv3.Value(key), "=", number(t))
	record := clientv3.OpTxn([]clientv3.Cmp{same}, nil, []clientv3.Op{clientv3.OpPut(key, number(t))})
	resp, err := g.kv.Txn(ctx).If(newer).Then(clientv3.OpGet(key)).
		Else(append([]clientv3.Op{record}, access...)...).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return nil, &refused{
			fmt.Sprintf("an access of %d operations: with two of the guard's that is more than "+
				"the server's --max-txn-ops, 128 by default", len(access)),
			err,
		}
	case err != nil:
		return nil, meaning(ctx, err)
	case !resp.Succeeded:
		// The guard's own answer is none of the access.
		resp.Succeeded, resp.Responses = true, resp.Responses[1:]
		return resp, nil
	}
	seen, err := readNumber(resp.Responses[0].GetResponseRange().GetKvs()[0])
	if err != nil {
		return nil, err
	}
	return nil, &backend.StaleError{Max: seen}
}

// near returns nil for a token that may have been granted.
func (g *Guard) near(ctx context.Context, t backend.Token) error {
	now := time.Now().UnixMicro()
	if t <= now+backend.FloorAhead {
		return nil
	}
	resp, err := g.kv.Get(ctx, g.keys.base())
	if err != nil {
		return meaning(ctx, err)
	}
	if len(resp.Kvs) > 0 {
		base, err := readNumber(resp.Kvs[0])
		if err != nil {
			return err
		}
		now = max(now, base+resp.Header.Revision)
	}
	if t > now+backend.FloorAhead {
		return backend.Invalid("token %d: want at most an hour in µs above %d, "+
			"the clock or the tokens of this prefix", t, now)
	}
	return nil
}

// Compare returns the compare that is true as long as t is the greatest token that
// the resource has seen: for the If of the program's own transactions, reads included, after
// one Check has recorded t. A transaction that it refuses was overtaken: Check says by which token.
func (g *Guard) Compare(resource string, t backend.Token) clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(g.keys.token(resource)), "=", number(t))
}

// Held returns the compare that is true as long as the lock of a lease is held by that lease, for
// the If of a transaction of the program on the same etcd: it refuses from the moment at which the
// lock is lost, before any other holder has done anything. h is a *fencelock.Lease; ok is false if
// its lock is not in etcd, or its Unlock has left it to another lease of the process.
func Held(h backend.Handler) (cmp clientv3.Cmp, ok bool) {
	hd, ok := h.Handle().(*hold)
	if !ok {
		return clientv3.Cmp{}, false
	}
	return clientv3.FromCompare(hd.same()), true
}
