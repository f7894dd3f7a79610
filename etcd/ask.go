package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

const (
	// floorTimer is how long a waiter waits for a push at the most.
	floorTimer = 5 * time.Second
	// requeuePause is what lies between two of a waiter's entries that were taken out of the queue,
	// after the first: whoever takes it out may be about it yet.
	requeuePause = time.Second
)

// errPlace says that the own entry is gone: its etcd lease has ended, or somebody has deleted it.
var errPlace = errors.New("the entry of this request is gone from the queue")

// place is what the store remembers of a claim.
type place struct {
	c     *backend.Claim
	queue string
	key   string // "": none, or it may be another's; the same for as long as the place listens
	own   *lease // a lease of its own
	hold  *hold  // what it was granted

	rev, mod int64 // of the own entry, once it is there
	holds    bool  // it is a holder's: an earlier send was granted the lock
	locked   bool  // the store has said that another holds it

	watch    *watch // nil: it does not listen
	session  *lease // that its entry waits under
	requeued time.Time

	// Guarded by push.mu:
	listed int64            // the revision of the last list of the queue
	front  map[string]bool  // the entries in front that are there yet; the own one: to be looked at
	gone   map[string]int64 // the deletions that the list did not know of, with their revisions
}

func (s *store) place(c *backend.Claim) *place {
	p, ok := c.Place.(*place)
	if !ok {
		p = &place{c: c, queue: s.keys.queue(c.Name)}
		if c.Leaving { // this driver was not asked for it: it is another's entry that is to go
			p.key = p.queue + c.Nonce
		}
		c.Place = p
	}
	return p
}

// secs is the TTL of the store's lease.
func secs(r *backend.Request) int64 { return seconds(r.TTL + r.Grace) }

// slotOf is the place of the lease that a lock shares, if it shares one.
func slotOf(r *backend.Request) slotKey { return slotKey{kind: shared, secs: secs(r)} }

// Ask implements backend.Driver: claims that need no more than one transaction share one, and each
// of the others has requests of its own beside it.
func (s *store) Ask(ctx context.Context, cs []*backend.Claim) {
	if len(cs) == 1 {
		s.alone(ctx, cs[0])
		return
	}
	var wg sync.WaitGroup
	var parts []*part
	taken := make(map[string]bool, len(cs))
	for _, c := range cs {
		// All compares of a transaction are made before anything of it is done.
		if p := s.place(c); !taken[p.queue] {
			if one := s.share(c, p); one != nil {
				taken[p.queue] = true
				parts = append(parts, one)
				continue
			}
		}
		wg.Go(func() { s.alone(ctx, c) })
	}
	s.together(ctx, parts)
	wg.Wait()
}

// Leave implements backend.Driver. It is not called, since Ask takes leaves too.
func (s *store) Leave(ctx context.Context, cs []*backend.Claim) { s.Ask(ctx, cs) }

// alone asks about one claim.
func (s *store) alone(ctx context.Context, c *backend.Claim) {
	if c.Leaving {
		c.Err = word(s.leave(ctx, c))
		return
	}
	c.Err = word(s.ask(ctx, c))
}

// share returns the transaction of a claim that needs nothing else, or nil.
func (s *store) share(c *backend.Claim, p *place) *part {
	switch {
	case c.Unsure:
		return nil
	case c.Leaving:
		return s.leaving(c, nil)
	case p.hold != nil || p.rev != 0 || c.Floor != 0 || c.Reserve != 0:
		return nil
	}
	l := p.own
	switch {
	case c.Auto:
		l = s.leases.peek(slotOf(c.Request), c.TTL/8)
	case l == nil:
		l = s.leases.left(secs(c.Request), true)
		p.own = l
	case !l.fresh():
		l = nil
	}
	if l == nil {
		return nil
	}
	return s.first(c, p, l)
}

// ask tries a claim.
func (s *store) ask(ctx context.Context, c *backend.Claim) error {
	p := s.place(c)
	if h := p.hold; h != nil {
		if err := s.Keep(ctx, []*backend.Claim{c}, true)[0]; err != nil {
			return err
		}
		c.Grant = h.grant(c.Request)
		return nil
	}
	if c.Floor > 0 {
		if err := s.checkFloor(ctx, c.Floor); err != nil {
			return err
		}
	}
	if p.rev > 0 {
		return s.look(ctx, c, p)
	}
	age := c.TTL / 8
	if c.Unsure { // a member is silent: the fewer requests the better, and the engine renews at once
		age = c.TTL / 2
	}
	l, err := s.lease(ctx, c, p, age)
	if err != nil {
		return err
	}
	return s.send(ctx, s.first(c, p, l))
}

// lease returns the lease for the lock, confirmed at most age ago if it is a
// shared one, and just now if not: the Deadline counts from that.
func (s *store) lease(
	ctx context.Context, c *backend.Claim, p *place, age time.Duration,
) (*lease, error) {
	if c.Auto {
		return s.leases.get(ctx, slotOf(c.Request), age)
	}
	l, err := s.leases.take(ctx, secs(c.Request), p.own)
	if err == nil {
		p.own = l
	}
	return l, err
}

// first puts the own entry under the lock's lease if the queue is empty, which is a grant.
// Otherwise it joins the queue, under the waiters' lease, if the claim listens. An entry that is
// there already is found. It does neither if the gates are not those of the claim.
func (s *store) first(c *backend.Claim, p *place, l *lease) *part {
	if p.key == "" {
		p.key = p.queue + s.ids.take(p.queue, c.Nonce)
	}
	s.listen(p)
	k, pt, began := s.keys, s.history.now(), backend.Now()
	tomb := clientv3.Compare(clientv3.CreateRevision(k.gone(c.Nonce)), "=", 0)
	empty := clientv3.Compare(clientv3.CreateRevision(p.queue), "=", 0).WithPrefix()
	due := s.due(c.Request, pt)
	one := &part{
		c: c, ifs: []clientv3.Cmp{tomb, empty}, then: []clientv3.Op{p.putHeld(due, l)}, els: s.looks(c, p),
		gated: true, due: due, rev: pt.rev, base: true,
	}
	var session *lease
	if p.watch != nil {
		session = p.session
		absent := clientv3.Compare(clientv3.CreateRevision(p.key), "=", 0)
		one.els = []clientv3.Op{clientv3.OpTxn(
			[]clientv3.Cmp{tomb, absent, s.sameGates(c.Gates)},
			[]clientv3.Op{p.put(value{owner: c.Owner}, session), p.list()}, one.els)}
	}
	one.take = func(ctx context.Context, resp *clientv3.TxnResponse, err error) error {
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			// Nothing was done. A lease ended between its confirmation and now: see which.
			if session != nil {
				return errors.Join(err, s.leases.verify(ctx, l, session))
			}
			l.die()
			return err
		case err != nil:
			return err
		case resp.Succeeded:
			p.rev, p.mod = resp.Header.Revision, resp.Header.Revision
			return s.granted(c, p, l, pt, due, began, resp)
		}
		s.history.see(pt, resp.Header)
		answers := resp.Responses
		if session != nil {
			inner := answers[0].GetResponseTxn()
			answers = inner.Responses
			if inner.Succeeded {
				p.rev, p.mod = resp.Header.Revision, resp.Header.Revision
				s.push.list(p, p.rev, answers[1].GetResponseRange().GetKvs())
				if !s.push.blocked(p) { // the watch has told of deletions since
					c.Wake(0)
				}
				return queued(c, p)
			}
		}
		switch err := s.looked(c, p, resp.Header.Revision, answers); {
		case err != nil:
			return err
		case p.rev > 0: // of an earlier send
			return s.look(ctx, c, p)
		}
		return s.refuse(c, p)
	}
	return one
}

// refuse ends an Ask of a claim that is not in the queue.
func (s *store) refuse(c *backend.Claim, p *place) error {
	switch {
	case c.Wait:
		c.Next = time.Nanosecond // it enters now
	case !c.Unsure: // the entry was never there, and never will be
		s.settle(p, p.own, true)
	}
	return backend.ErrLocked
}

// settle ends what a claim has of its own. sure: nothing of it is in the store, nor under way.
func (s *store) settle(p *place, own *lease, sure bool) {
	if sure && p.key != "" {
		s.ids.give(p.queue, strings.TrimPrefix(p.key, p.queue))
	}
	switch {
	case own == nil:
	case sure:
		s.leases.give(own)
	default:
		s.leases.revoke(own) // and with it what a late request may still put under it
	}
	p.key, p.rev, p.own, p.hold = "", 0, nil, nil
}

// queued ends an Ask of a claim whose entry is in the queue.
func queued(c *backend.Claim, p *place) error {
	switch {
	case !c.Wait: // it was put into an empty queue
		return backend.Refusal(errPlace)
	case p.watch == nil:
		c.Next = time.Nanosecond
	default:
		c.Queued, c.Next = true, floorTimer
	}
	return backend.ErrLocked
}

// requeue ends an Ask of a claim whose entry is gone: the next one queues again, with the same key:
// a late copy of an earlier request finds that key where it is, or is found there.
func requeue(c *backend.Claim, p *place) error {
	if !c.Wait {
		return backend.Refusal(errPlace)
	}
	c.Next = time.Nanosecond
	if time.Since(p.requeued) < requeuePause {
		c.Next = requeuePause
	}
	p.requeued = time.Now()
	return backend.ErrLocked
}

// looks are the reads of a request that is not granted; looked takes in the answers to them.
func (s *store) looks(c *backend.Claim, p *place) []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpGet(p.key), p.list(),
		clientv3.OpGet(s.keys.gone(c.Nonce), clientv3.WithCountOnly()), clientv3.OpGet(s.keys.gates()),
	}
}

// looked returns ErrGates if the gates are others, unless the own entry is in the queue: they are
// asked when its turn has come.
func (s *store) looked(c *backend.Claim, p *place, rev int64, answers []*pb.ResponseOp) error {
	p.locked = true
	if answers[2].GetResponseRange().GetCount() > 0 {
		return fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
	}
	p.rev, p.mod, p.holds = 0, 0, false
	if me := answers[0].GetResponseRange().GetKvs(); len(me) > 0 {
		p.rev, p.mod = me[0].CreateRevision, me[0].ModRevision
		v, _ := parse(string(me[0].Value))
		p.holds = v.held
	}
	s.push.list(p, rev, answers[1].GetResponseRange().GetKvs())
	if p.rev > 0 {
		return nil
	}
	return shown(c, answers[3].GetResponseRange().GetKvs())
}

// put writes the own entry; where it is there already it moves to another lease and stays where it
// is in the queue.
func (p *place) put(v value, l *lease) clientv3.Op {
	return clientv3.OpPut(p.key, v.String(), clientv3.WithLease(l.id))
}

// putHeld makes the own entry that of a holder, under the lock's lease.
func (p *place) putHeld(due rise, l *lease) clientv3.Op {
	v := holding(p.c.Request)
	v.reserve = due.reserve
	return p.put(v, l)
}

// list reads the queue's keys.
func (p *place) list() clientv3.Op {
	return clientv3.OpGet(p.queue, clientv3.WithPrefix(), clientv3.WithKeysOnly())
}

// look looks at the queue if somebody is known to be in front of the own entry, or may be, and
// takes the lock if nobody is.
func (s *store) look(ctx context.Context, c *backend.Claim, p *place) error {
	// A holder's entry stays one: what was granted is not to be refused when it is sent again.
	if !p.holds && s.push.stale(p) {
		pt := s.history.now()
		resp, err := s.txn(ctx, nil, s.looks(c, p), nil)
		if err != nil {
			return err
		}
		s.history.see(pt, resp.Header)
		if err := s.looked(c, p, resp.Header.Revision, resp.Responses); err != nil {
			return err
		}
	}
	if p.rev > 0 && !s.push.blocked(p) {
		if granted, err := s.turn(ctx, c, p); granted || err != nil {
			return err
		}
		if p.rev > 0 && !s.push.blocked(p) {
			c.Wake(0) // an answer was lost: take the turn from what was seen now
		}
	}
	if p.rev == 0 {
		return requeue(c, p)
	}
	return queued(c, p)
}

// turn moves the own entry under the lock's lease if it is first in the queue, which is the grant.
// Otherwise it looks who is in front. The gates are compared unless the entry is a holder's, and it
// is only the answer that was lost.
func (s *store) turn(ctx context.Context, c *backend.Claim, p *place) (bool, error) {
	// A shared lease may have half the TTL behind it: the engine renews at once then.
	l, err := s.lease(ctx, c, p, c.TTL/2)
	if err != nil {
		return false, err
	}
	pt, began := s.history.now(), backend.Now()
	ifs := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(p.key), "=", p.mod),
		clientv3.Compare(clientv3.CreateRevision(p.queue), ">", p.rev-1).WithPrefix(),
	}
	if !p.holds {
		ifs = append(ifs, s.sameGates(c.Gates))
	}
	due := s.due(c.Request, pt)
	then := []clientv3.Op{p.putHeld(due, l)}
	if due.least > 0 {
		then = append(then, s.raiseBase(due, p.rev))
	}
	resp, err := s.txn(ctx, ifs, append(then, clientv3.OpGet(s.keys.base())), s.looks(c, p))
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		l.die()
		return false, err
	case err != nil:
		return false, err
	case resp.Succeeded:
		p.mod = resp.Header.Revision
		err := s.granted(c, p, l, pt, due, began, resp)
		return err == nil, err
	}
	s.history.see(pt, resp.Header)
	err = s.looked(c, p, resp.Header.Revision, resp.Responses)
	if err == nil && !p.holds && !s.push.blocked(p) {
		err = shown(c, resp.Responses[3].GetResponseRange().GetKvs())
	}
	return false, err
}

// granted makes the grant of an entry that is first in the queue, under lease l.
func (s *store) granted(
	c *backend.Claim, p *place, l *lease, pt point, due rise, began backend.Instant,
	resp *clientv3.TxnResponse,
) error {
	token, reserved, err := s.token(c, p, pt, due, began.Time(), resp)
	if err != nil {
		return err
	}
	h := &hold{
		key: p.key, rev: p.rev, lease: l, own: p.own != nil, value: holding(c.Request),
		reserved: reserved,
	}
	h.token = token
	p.hold = h
	c.Grant = h.grant(c.Request)
	c.Sent = max(began.Sub(c.Asked), 0)
	s.push.remove(p)
	return nil
}
