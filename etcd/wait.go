package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// wait waits in the queue until the lock is granted.
func (a *attempt) wait(ctx context.Context) error {
	a.w = newWaiter(a.d)
	if a.rev > 0 {
		a.w.expect(a.key, a.listed, a.seen)
	}
	var interest slotKey
	if a.r.Auto {
		interest = a.slot()
	}
	a.d.keeper.add(a.w, interest)
	defer a.d.keeper.remove(a.w)
	defer a.w.leave()
	var granted bool
	return backend.Wait(ctx, a.w.wake, func(ctx context.Context) (bool, time.Duration, error) {
		err := a.look(ctx, &granted)
		return granted, floorTimer, err
	})
}

// look is one look of a waiter: it joins the queue, listens to it, and takes the
// lock when nobody is in front any more.
func (a *attempt) look(ctx context.Context, granted *bool) (err error) {
	fresh := a.rev == 0
	if fresh {
		if *granted, err = a.enqueue(ctx); *granted || err != nil {
			return err
		}
	}
	since, err := a.w.join(ctx, a.queue)
	if err != nil {
		return err
	}
	// A holder's entry stays one: what was granted is not to be refused when it is sent again.
	if !a.holds && (a.listed < since || !fresh && a.w.blocked()) {
		if err := a.relist(ctx); err != nil {
			return err
		}
	}
	for range 2 { // the second if the first finds that an answer was lost
		if a.w.blocked() {
			return nil
		}
		if *granted, err = a.confirm(ctx); *granted || err != nil {
			return err
		}
	}
	a.w.poke() // something is odd: look again
	return nil
}

// enqueue takes a place in the queue, or the lock if it is free after all.
func (a *attempt) enqueue(ctx context.Context) (bool, error) {
	session, err := a.d.leases.get(ctx, waitSlot, sessionAge)
	if err != nil {
		return false, err
	}
	if a.d.hubs.open(a.queue) { // listen first: then the list of the ask is enough
		if _, err := a.w.join(ctx, a.queue); err != nil {
			return false, err
		}
	}
	return a.ask(ctx, session)
}

// relist looks at the queue, and takes care that the own entry is under the waiters' lease.
func (a *attempt) relist(ctx context.Context) error {
	session, err := a.d.leases.get(ctx, waitSlot, sessionAge)
	if err != nil {
		return err
	}
	var ifs []clientv3.Cmp
	then := []clientv3.Op{clientv3.OpGet(a.key), a.list()}
	if a.entry != int64(session.id) {
		// Of an earlier send of this request, or of a session that was replaced.
		ifs = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(a.key), "=", a.mod)}
		then = append([]clientv3.Op{a.put(a.waits(), session)}, then...)
	}
	p := a.d.history.now()
	resp, err := a.d.commit(ctx, ifs, then, []clientv3.Op{clientv3.OpGet(a.key), a.list()})
	if err != nil {
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			session.die()
		}
		return err
	}
	a.d.history.see(p, resp.Header)
	n := len(resp.Responses)
	a.found(resp.Header.Revision, resp.Responses[n-2].GetResponseRange().GetKvs(), resp.Responses[n-1].GetResponseRange().GetKvs())
	if a.rev == 0 {
		return errPlace
	}
	return nil
}
