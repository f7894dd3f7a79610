package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/fencelock/fencelock/backend"
)

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
	case p.hold != nil || p.rev != 0 || c.Floor != 0 || c.Reserve != 0 || c.Mode != backend.Exclusive:
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
		s.push.remove(p) // a holder listens for nothing
		if err := s.Keep(ctx, []*backend.Claim{c}, true)[0]; err != nil {
			return err
		}
		c.Grant = h.grant()
		return nil
	}
	if c.Floor > 0 {
		if err := s.checkFloor(ctx, c.Floor); err != nil {
			return err
		}
	}
	if c.Mode != backend.Exclusive {
		return s.beside(ctx, c, p)
	}
	if p.rev > 0 {
		if t, told := s.inherits(c, p); told {
			s.inherit(c, p, t)
			return nil
		}
		return s.look(ctx, c, p, false)
	}
	l, err := s.leaseOf(ctx, c, p)
	if err != nil {
		return err
	}
	return s.send(ctx, s.first(c, p, l))
}

// leaseOf returns the lease for the lock. A lease of its own was confirmed just now, for the Deadline counts from that.
// Where an answer is missing, half the TTL may have passed since, for a member that is silent or slow is to get few
// requests. So it may of a shared lease for a waiter whose turn has come: the engine renews that at once.
func (s *store) leaseOf(ctx context.Context, c *backend.Claim, p *place) (*lease, error) {
	age := c.TTL / 8
	if c.Unsure || p.rev > 0 {
		age = c.TTL / 2
	}
	if c.Auto {
		return s.leases.get(ctx, slotOf(c.Request), age)
	}
	if !c.Unsure {
		age = 0
	}
	l, err := s.leases.take(ctx, secs(c.Request), p.own, age)
	if err == nil {
		p.own = l
	}
	return l, err
}

// first puts the own entry under the lock's lease if the queue is empty, which is a grant.
// Otherwise it joins the queue, under the waiters' lease, if the claim listens. An entry that is
// there already is found. It does neither if the claim was judged by other gates.
func (s *store) first(c *backend.Claim, p *place, l *lease) *part {
	s.prepare(p)
	k, pt, began := s.keys, s.history.now(), backend.Now()
	tomb := createdAt(k.gone(c.Nonce), 0)
	empty := none(p.queue)
	due := s.due(c.Request, pt)
	one := &part{
		c: c, ifs: []*pb.Compare{tomb, empty}, then: []*pb.RequestOp{p.putHeld(due, l)},
		els: func(bool) []*pb.RequestOp { return s.looks(c, p) }, gated: true, due: due, rev: pt.rev,
	}
	var session *lease
	if p.watch != nil {
		session = p.session
		one.els = func(anchors bool) []*pb.RequestOp {
			return []*pb.RequestOp{opTxn(
				[]*pb.Compare{tomb, createdAt(p.key, 0), s.sameGates(c.Gates)},
				s.stands(c, p, pt, anchors), s.looks(c, p))}
		}
	}
	one.take = func(ctx context.Context, resp *pb.TxnResponse, err error) error {
		switch {
		case err != nil:
			return s.unleased(ctx, err, l, session)
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
				if err := s.stood(p, pt, began.Time(), answers[2:]); err != nil {
					return err
				}
				s.push.list(p, p.rev, answers[1].GetResponseRange().GetKvs())
				if !s.push.blocked(p) { // the watch has told of deletions since
					c.Wake(0)
				}
				return s.push.queued(c, p)
			}
		}
		switch err := s.looked(c, p, resp.Header.Revision, answers); {
		case err != nil:
			return err
		case p.rev > 0: // of an earlier send
			return s.look(ctx, c, p, true)
		}
		return s.refuse(c, p)
	}
	return one
}

// unleased takes in the error of a transaction that puts an entry under the lease l, or under session
// if that is not nil. If a lease ended between its confirmation and now, it finds out which.
func (s *store) unleased(ctx context.Context, err error, l, session *lease) error {
	switch {
	case !errors.Is(err, rpctypes.ErrLeaseNotFound): // else nothing was done
	case session != nil:
		s.leases.keepAlive(ctx, []*lease{l, session})
	default:
		l.die()
	}
	return err
}

// looks are the reads of a request that is not granted; looked takes in the answers to them.
func (s *store) looks(c *backend.Claim, p *place) []*pb.RequestOp {
	ops := []*pb.RequestOp{
		opGet(p.key), p.list(), opKey(s.keys.gone(c.Nonce)), s.getGates,
	}
	if c.Mode != backend.Exclusive {
		ops = append(ops, s.getBase)
	}
	return ops
}

// looked returns ErrGates if the gates are others, unless the own entry is in the queue: they are
// asked when its turn has come, and of a holder's not at all.
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
	if c.Mode != backend.Exclusive {
		if err := s.see(p, rev, answers); err != nil {
			return err
		}
	}
	if p.rev > 0 && (p.holds || s.push.blocked(p)) {
		return nil
	}
	return shown(c, answers[3].GetResponseRange().GetKvs())
}

// look looks at the queue if somebody is known to be in front of the own entry, or may be, and
// takes the lock if nobody is. listed: it was read just now.
func (s *store) look(ctx context.Context, c *backend.Claim, p *place, listed bool) error {
	// A holder's entry stays one: a grant is not to be refused when the request is sent again.
	if !p.holds && s.push.stale(p, listed) {
		if _, err := s.read(ctx, c, p); err != nil {
			return err
		}
	}
	// Of a holder's entry the compares decide: it may be gone.
	if p.rev > 0 && (p.holds || !s.push.blocked(p)) {
		granted, err := s.turn(ctx, c, p)
		if granted || err != nil {
			return err
		}
		if p.rev > 0 && !s.push.blocked(p) {
			c.Wake(0) // an answer was lost: take the turn by the list that was read now
		}
	}
	if p.rev == 0 {
		return requeue(c)
	}
	return s.push.queued(c, p)
}

// turn moves the own entry under the lock's lease if it is first in the queue, which is the grant.
// Otherwise it lists the queue. The gates are compared unless the entry is a holder's: then only the
// answer was lost.
func (s *store) turn(ctx context.Context, c *backend.Claim, p *place) (bool, error) {
	l, err := s.leaseOf(ctx, c, p)
	if err != nil {
		return false, err
	}
	pt, began := s.history.now(), backend.Now()
	ifs := []*pb.Compare{
		modified(p.key, equal, p.mod),
		allUnder(created(p.queue, greater, p.rev-1)),
	}
	if !p.holds {
		ifs = append(ifs, s.sameGates(c.Gates))
	}
	due := s.due(c.Request, pt)
	then := []*pb.RequestOp{p.putHeld(due, l)}
	if due.least > 0 {
		then = append(then, s.raiseBase(due, p.rev))
	}
	heir, _ := s.inherits(c, p)
	if heir > 0 {
		then = []*pb.RequestOp{opTxn([]*pb.Compare{s.sameBase(p, heir)}, nil, then)}
	}
	resp, err := s.txn(ctx, ifs, append(then, s.getBase), s.looks(c, p))
	switch {
	case err != nil:
		return false, s.unleased(ctx, err, l, nil)
	case resp.Succeeded && heir > 0 && resp.Responses[0].GetResponseTxn().GetSucceeded():
		if s.history.see(pt, resp.Header) {
			return false, backend.Refusal(errBase)
		}
		s.inherit(c, p, heir)
		return true, nil
	case resp.Succeeded:
		p.mod = resp.Header.Revision
		err := s.granted(c, p, l, pt, due, began, resp)
		return err == nil, err
	}
	s.history.see(pt, resp.Header)
	return false, s.looked(c, p, resp.Header.Revision, resp.Responses)
}

// granted makes the grant of an entry that is first in the queue, under lease l.
func (s *store) granted(
	c *backend.Claim, p *place, l *lease, pt point, due rise, began backend.Instant,
	resp *pb.TxnResponse,
) error {
	token, reserved, err := s.token(c, p, pt, due, began.Time(), resp)
	if err != nil {
		return err
	}
	v := holding(c.Request)
	v.token, v.reserve = token, reserved
	s.held(c, p, newHold(l, v), began)
	return nil
}

// held makes h the hold of a claim whose entry is there, and was asked for at began.
func (s *store) held(c *backend.Claim, p *place, h *hold, began backend.Instant) {
	h.key, h.rev = p.key, p.rev
	p.hold = h
	c.Grant = h.grant()
	c.Sent = max(began.Sub(c.Asked), 0)
	h.seen.Store(max(p.mod, s.push.seen(p)))
	s.push.remove(p)
}
