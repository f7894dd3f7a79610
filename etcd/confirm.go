package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// confirm moves the own entry under the lock's lease if it is first in the queue,
// which is the grant, and from which its Deadline counts. Otherwise it looks who is in front. If the gates refuse the
// request it leaves the queue; not if the entry is a holder's, and it is only the answer that was lost.
func (a *attempt) confirm(ctx context.Context) (bool, error) {
	s := a.d.gates.get(a.d.history.now())
	if _, refusal := backend.Admit(s.list, a.r); refusal != nil && !a.holds {
		return false, a.refused(ctx, s, refusal)
	}
	// A shared lease may have half the TTL behind it: the engine renews at once then.
	l, err := a.lease(ctx, a.r.TTL/2)
	if err != nil {
		return false, err
	}
	p, began := a.d.history.now(), backend.Now()
	c := a.claim(p)
	resp, err := a.d.commit(ctx, a.turn(s), append(a.grantOps(c, a.rev, l), clientv3.OpGet(a.d.keys.base())), a.looks())
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		l.die()
		return false, nil
	case err != nil:
		return false, err
	case resp.Succeeded:
		a.mod = resp.Header.Revision
		err := a.granted(ctx, s, l, p, c, began, resp)
		return err == nil, err
	}
	return false, a.notYet(p, resp)
}

// turn is true as long as the own entry is first in the queue and the gates are those of s.
func (a *attempt) turn(s gateSet) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(a.key), "=", a.mod),
		clientv3.Compare(clientv3.CreateRevision(a.queue), ">", a.rev-1).WithPrefix(),
		s.same(a.d.keys),
	}
}

// notYet takes in the answer to looks of an entry that was in the queue.
func (a *attempt) notYet(p point, resp *clientv3.TxnResponse) error {
	a.d.history.see(p, resp.Header)
	kvs := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().GetKvs() }
	a.found(resp.Header.Revision, kvs(0), kvs(1))
	if _, err := a.d.gates.see(p, resp.Header, kvs(3)); err != nil {
		return err
	}
	if a.rev == 0 {
		return errPlace
	}
	return nil
}

// refused takes the own entry, which is first, out of the queue, as the gates s refuse the request.
func (a *attempt) refused(ctx context.Context, s gateSet, refusal error) error {
	p := a.d.history.now()
	resp, err := a.d.commit(ctx, a.turn(s), []clientv3.Op{clientv3.OpDelete(a.key)}, a.looks())
	switch {
	case err != nil:
		return err
	case resp.Succeeded:
		a.rev = 0
		return refusal
	}
	if err = a.notYet(p, resp); errors.Is(err, errPlace) && a.d.gates.get(p).rev == s.rev {
		err = refusal // an earlier send took it out
	}
	return err
}
