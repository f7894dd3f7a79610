package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

const (
	// promptMost bounds the first request before a wait, which has its own patience.
	promptMost = time.Second
	// floorTimer is how long a waiter waits for a push at the most.
	floorTimer = 5 * time.Second
)

// errPlace says that a waiter's entry is gone. It ends the wait.
var errPlace = fmt.Errorf("the etcd lease of this waiter ended, and with it its place in the queue: %w", backend.ErrLost)

// attempt is one acquisition.
type attempt struct {
	d          *Driver
	r          *backend.Request
	key, queue string
	w          *waiter

	rev, mod int64   // of the own entry, once it is there
	holds    bool    // it is a holder's: an earlier send was granted the lock
	entry    int64   // the lease that the own entry is under
	own      *lease  // a lease of its own, granted for this attempt
	seen     []ahead // the entries in front of the own one at listed
	listed   int64   // the revision of that
	locked   bool    // the store's last answer: another holds it
	grant    backend.Grant
}

// ahead is an entry in front of the own one.
type ahead struct {
	key string
	rev int64
}

// Acquire implements backend.Driver: one transaction if the lock is free and the
// lease for it is at hand.
func (d *Driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if h := d.ledger.heldBy(r.Nonce); h != nil {
		return d.again(ctx, r, h)
	}
	queue := d.keys.queue(r.Name)
	a := &attempt{d: d, r: r, key: queue + d.ids.take(queue, r.Nonce), queue: queue}
	granted, err := a.first(ctx)
	if !granted && r.Wait && (err == nil || !backend.Final(err)) {
		if err = a.wait(ctx); ctx.Err() != nil && a.locked && err != nil && !errors.Is(err, backend.ErrLocked) {
			err = fmt.Errorf("%w (%w)", err, backend.ErrLocked)
		}
		granted = err == nil
	}
	if granted {
		return a.grant, nil
	}
	if err == nil {
		err = backend.ErrLocked
	}
	a.leave(err)
	if !r.Wait && errors.Is(err, backend.ErrLocked) {
		if gone := d.refuse(ctx, a); gone != nil {
			return backend.Grant{}, gone
		}
	}
	if errors.Is(err, errPlace) {
		err = backend.Unavailable(errors.New("the etcd lease of this waiter ended, and with it its place in the queue"))
	}
	return backend.Grant{}, err
}

// refuse ends a try that found the lock held.
func (d *Driver) refuse(ctx context.Context, a *attempt) error {
	if d.ledger.inDoubt(a.r.Nonce) { // a first send of this request may come yet
		return d.Abandon(ctx, a.r)
	}
	if a.key == a.queue+a.r.Nonce || a.rev > 0 { // it was never there, or a deletion of it may be under way
		d.ids.drop(a.r.Nonce)
	} else {
		d.ids.give(a.queue, a.r.Nonce)
	}
	return nil
}

// first asks for a lock that is probably free.
func (a *attempt) first(ctx context.Context) (granted bool, err error) {
	if !a.r.Wait {
		granted, err = a.ask(ctx, nil)
		if err == nil && !granted && a.rev > 0 {
			return a.repeatedTry(ctx)
		}
		return granted, err
	}
	limited, cancel := context.WithTimeout(ctx, promptMost)
	defer cancel()
	session := a.d.leases.peek(waitSlot, sessionAge)
	if session != nil && a.d.hubs.open(a.queue) {
		return false, nil // others of this process wait for it just now
	}
	return a.ask(limited, session)
}

// repeatedTry is a try that was sent again: its entry is there, for it was put into an empty queue.
func (a *attempt) repeatedTry(ctx context.Context) (bool, error) {
	for range 2 {
		granted, err := a.confirm(ctx)
		if granted || err != nil {
			return granted, err
		}
	}
	_, err := a.d.commit(ctx, nil, []clientv3.Op{clientv3.OpDelete(a.key)}, nil)
	return false, err
}

// leave gives up what the attempt has of its own.
func (a *attempt) leave(err error) {
	if !errors.Is(err, backend.ErrLocked) && a.rev == 0 && !backend.Final(err) {
		a.d.ledger.setDoubt(a.r.Nonce)
	}
	switch {
	case a.own == nil:
	case a.rev == 0 && errors.Is(err, backend.ErrLocked) && !a.d.ledger.inDoubt(a.r.Nonce):
		a.d.leases.give(a.secs(), a.own)
	default:
		a.d.leases.revoke(a.own) // and with it what a late request may still put under it
	}
	a.own = nil
}

// secs is the TTL of the store's lease.
func (a *attempt) secs() int64 { return seconds(a.r.TTL + a.r.Grace) }

// sessionAge is how old the last confirmation of the waiters' lease may be when a
// waiter relies on it; the keeper renews it at once.
const sessionAge = waitTTL / 2

var waitSlot = slotKey{waits, int64(waitTTL / time.Second)}

// slot is the place of the lease that the lock shares, if it shares one.
func (a *attempt) slot() slotKey { return slotKey{shared, a.secs()} }

// lease returns the lease for the lock, confirmed at most age ago if it is a
// shared one, and just now if not: the Deadline counts from that.
func (a *attempt) lease(ctx context.Context, age time.Duration) (*lease, error) {
	if a.r.Auto {
		return a.d.leases.get(ctx, a.slot(), age)
	}
	l, err := a.d.leases.take(ctx, a.secs(), a.own)
	if err == nil {
		a.own = l
	}
	return l, err
}

// ask puts the own entry under the lock's lease if the queue is empty, which is a
// grant. Otherwise it joins the queue, under the waiters' lease, if there is one.
// An entry that is there already is found. It does neither if the gates refuse the request.
func (a *attempt) ask(ctx context.Context, session *lease) (granted bool, err error) {
	for range gateTries {
		p := a.d.history.now()
		s := a.d.gates.get(p)
		if _, refusal := backend.Admit(s.list, a.r); refusal != nil {
			err = a.lookAgain(ctx, p, s)
		} else {
			granted, err = a.askWith(ctx, s, session)
		}
		if !errors.Is(err, errGates) {
			break
		}
	}
	return granted, err
}

// lookAgain looks whether gates that refuse the request are still as they are known.
func (a *attempt) lookAgain(ctx context.Context, p point, s gateSet) error {
	resp, err := a.d.commit(ctx, nil, a.looks(), nil)
	if err != nil {
		return err
	}
	a.d.history.see(p, resp.Header)
	return a.looked(p, resp.Header, resp.Responses, s)
}

// askWith is ask with the gates as they are known.
func (a *attempt) askWith(ctx context.Context, s gateSet, session *lease) (granted bool, err error) {
	for range 2 {
		var l *lease
		if l, err = a.lease(ctx, a.r.TTL/8); err != nil {
			return false, err
		}
		granted, err = a.askUnder(ctx, s, l, session)
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			break
		}
		// Nothing was done. A lease ended between its confirmation and now: see which.
		if err := a.d.leases.verify(ctx, l, session); err != nil {
			return false, err
		}
		if session != nil {
			if session, err = a.d.leases.get(ctx, waitSlot, sessionAge); err != nil {
				return false, err
			}
		}
	}
	return granted, err
}

func (a *attempt) askUnder(ctx context.Context, s gateSet, l, session *lease) (bool, error) {
	k := a.d.keys
	tomb := clientv3.Compare(clientv3.CreateRevision(k.gone(a.r.Nonce)), "=", 0)
	empty := clientv3.Compare(clientv3.CreateRevision(a.queue), "=", 0).WithPrefix()
	p, began := a.d.history.now(), backend.Now()
	c := a.claim(p)
	one := &part{queue: a.queue, gates: &s, ifs: []clientv3.Cmp{tomb, empty}, els: a.looks(), base: true}
	if a.r.Floor == 0 && a.r.Reserve == 0 { // nothing that only the one who is granted the lock may ask for
		one.anchor, c = p.due, claim{}
	}
	one.then = a.grantOps(c, p.rev, l)
	// It may arrive late, whatever becomes of a second send.
	one.unsure = func() { a.d.ledger.setDoubt(a.r.Nonce) }
	if session != nil {
		absent := clientv3.Compare(clientv3.CreateRevision(a.key), "=", 0)
		one.els = []clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{tomb, absent, s.same(k)}, []clientv3.Op{a.put(a.waits(), session), a.list()}, one.els)}
	}
	send := a.d.batches.commit
	if c.least > 0 {
		send = a.d.batches.single // for it writes the base
	}
	resp, err := send(ctx, one)
	if err != nil {
		return false, err
	}
	if resp.Succeeded {
		a.rev, a.mod = resp.Header.Revision, resp.Header.Revision
		err := a.granted(ctx, s, l, p, c, began, resp)
		return err == nil, err
	}
	a.d.history.see(p, resp.Header)
	answers := resp.Responses
	if session != nil {
		inner := resp.Responses[0].GetResponseTxn()
		answers = inner.Responses
		if inner.Succeeded {
			a.rev, a.mod, a.entry = resp.Header.Revision, resp.Header.Revision, int64(session.id)
			a.listedAt(resp.Header.Revision, answers[1].GetResponseRange().GetKvs())
			return false, nil
		}
	}
	return false, a.looked(p, resp.Header, answers, s)
}

// looks are the reads of a request that is not granted; looked takes in the answers to them. It returns the refusal of the
// gates if they refuse the request now, and errGates if they do not, and have changed since they were s.
func (a *attempt) looks() []clientv3.Op {
	k := a.d.keys
	return []clientv3.Op{clientv3.OpGet(a.key), a.list(), clientv3.OpGet(k.gone(a.r.Nonce), clientv3.WithCountOnly()), clientv3.OpGet(k.gates())}
}

func (a *attempt) looked(p point, hd *pb.ResponseHeader, answers []*pb.ResponseOp, s gateSet) error {
	if answers[2].GetResponseRange().GetCount() > 0 {
		return fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	}
	a.found(hd.Revision, answers[0].GetResponseRange().GetKvs(), answers[1].GetResponseRange().GetKvs())
	now, err := a.d.gates.see(p, hd, answers[3].GetResponseRange().GetKvs())
	if a.rev > 0 {
		return nil // the gates are asked when its turn has come
	}
	if err == nil {
		_, err = backend.Admit(now.list, a.r)
	}
	if err == nil && now.rev != s.rev {
		err = errGates
	}
	return err
}

// put writes the own entry; where it is there already it moves to another lease and stays where it is in the queue.
func (a *attempt) put(v value, l *lease) clientv3.Op {
	return clientv3.OpPut(a.key, v.String(), clientv3.WithLease(l.id))
}

// waits is what the own entry holds until it is granted.
func (a *attempt) waits() value { return value{owner: a.r.Owner} }

// grantOps are the operations of a grant: they put the own entry under lease l, and raise the base as c says. The base is to be read
// after that. rev is the create revision, or one below it.
func (a *attempt) grantOps(c claim, rev int64, l *lease) []clientv3.Op {
	v := holding(a.r)
	v.reserve = c.reserve
	ops := []clientv3.Op{a.put(v, l)}
	if c.least > 0 {
		ops = append(ops, a.d.raiseBase(c, rev))
	}
	return ops
}

// list reads the queue's keys.
func (a *attempt) list() clientv3.Op {
	return clientv3.OpGet(a.queue, clientv3.WithPrefix(), clientv3.WithKeysOnly())
}

// found takes in what is in the queue; me is the own entry, if it is there.
func (a *attempt) found(rev int64, me, queue []*mvccpb.KeyValue) {
	a.rev, a.mod, a.holds = 0, 0, false
	if len(me) > 0 {
		a.rev, a.mod, a.entry = me[0].CreateRevision, me[0].ModRevision, me[0].Lease
		v, _ := parse(string(me[0].Value))
		a.holds = v.held
	}
	a.listedAt(rev, queue)
}

// listedAt takes in which entries are in front of the own one.
func (a *attempt) listedAt(rev int64, queue []*mvccpb.KeyValue) {
	a.seen, a.listed, a.locked = a.seen[:0], rev, true
	for _, kv := range queue {
		if kv.CreateRevision < a.rev {
			a.seen = append(a.seen, ahead{string(kv.Key), kv.CreateRevision})
		}
	}
	if a.w != nil {
		a.w.expect(a.key, a.listed, a.seen)
	}
}

// granted makes the grant of an entry that is first in the queue, under lease l, with the gates s.
func (a *attempt) granted(ctx context.Context, s gateSet, l *lease, p point, c claim, began backend.Instant, resp *clientv3.TxnResponse) error {
	token, reserved, err := a.d.token(ctx, a, p, c, began.Time(), resp)
	if err != nil {
		return err
	}
	gated, _ := backend.Admit(s.list, a.r)
	h := &hold{key: a.key, queue: a.queue, rev: a.rev, lease: l, value: holding(a.r), reserved: reserved, ungated: a.r.Move != "" && !gated}
	h.token = token
	if a.own != nil {
		h.secs, a.own = a.secs(), nil
	}
	a.d.ledger.setHeld(a.r.Nonce, h)
	asked := l.confirmed()
	a.grant = backend.Grant{Token: token, Reserved: reserved, Asked: asked, Sent: max(began.Sub(asked), 0), Ungated: h.ungated, Handle: h}
	if l.granted < a.r.TTL+a.r.Grace {
		a.grant.Max = max(l.granted-a.r.Grace, time.Nanosecond)
	}
	return nil
}

// again answers a request that was granted before, and is sent again.
func (d *Driver) again(ctx context.Context, r *backend.Request, h *hold) (backend.Grant, error) {
	if err := d.Renew(ctx, []*backend.Hold{{Request: r, Grant: backend.Grant{Handle: h}}})[0]; err != nil {
		return backend.Grant{}, err
	}
	return backend.Grant{Token: h.token, Reserved: h.reserved, Asked: h.lease.confirmed(), Ungated: h.ungated, Handle: h}, nil
}
