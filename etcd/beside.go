package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// Readers and permits. Whether an entry may hold the lock depends on the entries in front of it, which
// only vanish: once it may, it may for good. A grant also chooses a token and a slot. It chooses them
// from the queue as it was read at one revision, and its transaction compares that they are still right.
// Package tests/models/etcd is a model of this, with the compares left out one by one.

const (
	// races is how often one call chooses again because others were granted the lock meanwhile.
	races = 20
	// slackLeast and slackMost bound by how much the base is raised beyond what was read, in µs, once
	// others have raised it meanwhile.
	slackLeast, slackMost = 256, 1 << 17
)

var errRaces = errors.New("others were granted the lock each time before this request was")

// seen is a queue as it was read at one revision, for a claim of a mode that several may hold in. The
// zero value is the guess that nobody is in it.
type seen struct {
	rev   int64
	there []*backend.Request // the entries in front, all where there is no own one
	slots map[int]bool       // the slots of the permits that hold
	// era is the greatest token of the readers that hold, and keeper the entry that has it.
	era    backend.Token
	keeper *mvccpb.KeyValue
	// first is the first entry in front that has not had its turn; nil: there is none.
	first *mvccpb.KeyValue
	own   value // of the own entry
	base  backend.Token
	bare  bool // there is no base
}

// see takes in the answers to looks.
func (s *store) see(p *place, rev int64, answers []*pb.ResponseOp) error {
	q := &seen{rev: rev, slots: map[int]bool{}, bare: true}
	for _, kv := range answers[4].GetResponseRange().GetKvs() {
		base, err := readNumber(kv)
		if err != nil {
			return err
		}
		if q.base, q.bare = base, false; p.tried > 0 && base > p.tried {
			p.slack = min(max(2*p.slack, slackLeast), slackMost)
		}
		s.base.Store(base)
	}
	for _, kv := range answers[1].GetResponseRange().GetKvs() {
		v, _ := parse(string(kv.Value))
		if string(kv.Key) == p.key {
			q.own = v
			continue
		}
		front := p.rev == 0 || kv.CreateRevision < p.rev
		if front {
			q.there = append(q.there, asks(strings.TrimPrefix(string(kv.Key), p.queue), string(kv.Value)))
		}
		switch {
		case v.held:
			q.slots[v.slot] = true
			if t := v.tokenOf(kv.CreateRevision); t > q.era {
				q.era, q.keeper = t, kv
			}
		case front && (q.first == nil || kv.CreateRevision < q.first.CreateRevision):
			q.first = kv
		}
	}
	p.seen = q
	return nil
}

// beside asks for a lock that others may hold too. It first guesses that the queue is empty; where that
// is wrong the answer lists the queue.
func (s *store) beside(ctx context.Context, c *backend.Claim, p *place) error {
	queues := p.rev > 0 // it had an entry
	if p.rev == 0 && !p.locked {
		p.seen = &seen{base: s.base.Load()}
	}
	most := races
	if c.Wait { // its calls end, and it is asked again
		most = 3
	}
	for range most {
		q := p.seen
		p.seen = nil
		var err error
		done := false
		switch {
		case q == nil && p.rev == 0 && p.watch != nil:
			err = s.join(ctx, c, p)
		case q == nil:
			waits := false
			if waits, err = s.read(ctx, c, p); waits {
				return s.push.queued(c, p)
			}
		case p.rev == 0 && queues:
			return requeue(c)
		case p.holds && !c.Admits(q.there): // they were not there, but in an older state of the store
			return fmt.Errorf("the store has gone back: %w", backend.ErrLost)
		case c.Admits(q.there):
			done, err = s.choose(ctx, c, p, q)
		case p.rev > 0 && s.push.blocked(p):
			return s.push.queued(c, p)
		case p.rev > 0: // the watch has told of more than was read
		case p.watch == nil:
			return s.refuse(c, p)
		default:
			err = s.join(ctx, c, p)
		}
		if done || err != nil {
			return err
		}
	}
	if c.Wait { // the store is well: it is no reason to give up
		c.Next = time.Millisecond + rand.N(9*time.Millisecond)
		return backend.ErrLocked
	}
	return backend.Refusal(errRaces)
}

// read looks at the queue: at the own entry and the last one in front and, where these are not as they were, at all.
// So many waiters do not list each other again and again.
func (s *store) read(ctx context.Context, c *backend.Claim, p *place) (waits bool, err error) {
	s.prepare(p)
	pt, same := s.history.now(), s.push.behind(p)
	then, els := s.looks(c, p), []*pb.RequestOp(nil)
	if same != nil {
		then, els = nil, then
	}
	resp, err := s.txn(ctx, same, then, els)
	if err != nil {
		return false, err
	}
	s.history.see(pt, resp.Header)
	if same != nil && resp.Succeeded {
		s.push.stays(p, resp.Header.Revision)
		return true, nil
	}
	return false, s.looked(c, p, resp.Header.Revision, resp.Responses)
}

// joining puts the own entry into the queue, under the waiters' lease, unless it is there, the claim was
// given up or has seen other gates, and looks.
func (s *store) joining(c *backend.Claim, p *place) *pb.RequestOp {
	looks := s.looks(c, p)
	return opTxn([]*pb.Compare{
		createdAt(s.keys.gone(c.Nonce), 0), createdAt(p.key, 0), s.sameGates(c.Gates),
	}, append([]*pb.RequestOp{p.put(value{owner: c.Owner}, p.session)}, looks...), looks)
}

// joined takes in the answer to joining.
func (s *store) joined(c *backend.Claim, p *place, rev int64, answer *pb.ResponseOp) error {
	inner := answer.GetResponseTxn()
	answers := inner.GetResponses()
	if inner.GetSucceeded() {
		answers = answers[1:]
	}
	return s.looked(c, p, rev, answers)
}

// join queues.
func (s *store) join(ctx context.Context, c *backend.Claim, p *place) error {
	pt := s.history.now()
	resp, err := s.txn(ctx, nil, []*pb.RequestOp{s.joining(c, p)}, nil)
	if err != nil {
		return s.unleased(ctx, err, p.session, nil)
	}
	s.history.see(pt, resp.Header)
	return s.joined(c, p, resp.Header.Revision, resp.Responses[0])
}

// choose takes the lock by the queue as it was read, if that is still right: done. Otherwise it has
// read the queue again, and joined it if it listens.
func (s *store) choose(ctx context.Context, c *backend.Claim, p *place, q *seen) (done bool, err error) {
	l, err := s.leaseOf(ctx, c, p)
	if err != nil {
		return true, err
	}
	joins := false
	if p.rev == 0 {
		s.prepare(p)
		joins = p.watch != nil
	}
	pt, began := s.history.now(), backend.Now()
	v, ifs, then := s.turnOf(c, p, q, pt)
	els := s.looks(c, p)
	var session *lease
	if joins {
		session, els = p.session, []*pb.RequestOp{s.joining(c, p)}
	}
	resp, err := s.txn(ctx, ifs, append(then, p.keep(v, l)), els)
	switch {
	case err != nil:
		return true, s.unleased(ctx, err, l, session)
	case resp.Succeeded:
		if p.rev == 0 {
			p.rev = resp.Header.Revision
		}
		p.mod = resp.Header.Revision
		return true, s.chosen(c, p, l, pt, began, v, resp)
	}
	s.history.see(pt, resp.Header)
	if joins {
		return false, s.joined(c, p, resp.Header.Revision, resp.Responses[0])
	}
	return false, s.looked(c, p, resp.Header.Revision, resp.Responses)
}

// turnOf returns what the entry of a holder is to say, and the transaction that makes it that but for
// the put of the entry itself.
func (s *store) turnOf(
	c *backend.Claim, p *place, q *seen, pt point,
) (v value, ifs []*pb.Compare, then []*pb.RequestOp) {
	floor := max(c.Floor, p.above)
	if p.rev > 0 {
		ifs = append(ifs, modified(p.key, equal, p.mod))
		if p.holds && q.own.tokenOf(p.rev) > floor {
			return q.own, ifs, nil // it is only the answer that was lost
		}
	} else {
		ifs = append(ifs, createdAt(s.keys.gone(c.Nonce), 0), createdAt(p.key, 0))
	}
	if !p.holds {
		ifs = append(ifs, s.sameGates(c.Gates))
	}
	v = holding(c.Request)
	from, end := kin(p.queue, c.Request)
	if c.Mode == backend.Reader && q.era > floor {
		v.token = q.era
		ifs = append(ifs, still(q.keeper))
		if p.rev == 0 { // nobody but readers is there
			last := clientv3.GetPrefixRangeEnd(p.queue)
			ifs = append(ifs, upTo(from, createdAt(p.queue, 0)), upTo(last, createdAt(end, 0)))
		}
		return v, ifs, nil
	}
	same := allUnder(modified(p.queue, less, q.rev+1))
	if p.rev > 0 { // a later entry matters only if it has had its turn
		same = upTo(end, modified(from, less, q.rev+1))
	}
	ifs = append(ifs, same)
	if c.Mode == backend.Permit {
		for q.slots[v.slot] {
			v.slot++
		}
	}
	return s.draw(p, q, pt, floor, v, ifs)
}

// still is true as long as an entry is there.
func still(kv *mvccpb.KeyValue) *pb.Compare {
	return createdAt(string(kv.Key), kv.CreateRevision)
}

// draw gives v a token of its own: the create revision of its entry plus a base that is not lower than
// the store's, and becomes the store's. Every later grant has a greater token, for its entry was created
// later. An entry in front that has not had its turn was not: then the token is the one that this entry
// would have, and the base is raised by one more, so that this entry has a greater one.
func (s *store) draw(
	p *place, q *seen, pt point, floor backend.Token, v value, ifs []*pb.Compare,
) (value, []*pb.Compare, []*pb.RequestOp) {
	at, room, rev := p.rev, backend.Token(0), p.rev
	if q.first != nil {
		at, rev, room = q.first.CreateRevision, q.first.CreateRevision, 1
		ifs = append(ifs, still(q.first))
	} else if rev == 0 {
		rev = pt.rev // or greater
	}
	key := s.keys.base()
	p.tried = max(wanted(floor, true, time.Now())-rev, q.base+p.slack, 0)
	if v.token = p.tried + at; at == 0 {
		v.token, v.base, v.counted = 0, p.tried, true
	}
	lower := says(key, less, number(p.tried+1))
	if q.bare {
		lower = createdAt(key, 0)
	}
	return v, append(ifs, lower), []*pb.RequestOp{opPut(key, number(p.tried+room), 0)}
}

// chosen makes the grant of an entry that says v. Where the store has gone back the grant does not count
// yet, for the queue was another one: the next Ask finds the entry, looks at the entries in front, and
// draws another token.
func (s *store) chosen(
	c *backend.Claim, p *place, l *lease, pt point, began backend.Instant, v value,
	resp *pb.TxnResponse,
) error {
	back, t := s.history.see(pt, resp.Header), v.tokenOf(p.rev)
	switch {
	case back || t <= c.Floor:
		p.holds, p.above = true, t
		return backend.Refusal(errBase)
	case t >= maxToken:
		return backend.Invalid("the token would be %d: it must stay below 2^53; "+
			"a floor or a clock was far ahead", t)
	}
	h := newHold(l, v)
	h.token, h.counted = t, false
	h.written.Store(true)
	s.held(c, p, h, began)
	return nil
}
