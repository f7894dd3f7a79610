package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
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
	queue string
	key   string // "": none, or it may be another's
	own   *lease // a lease of its own
	hold  *hold  // what it was granted

	rev, mod int64    // of the own entry, once it is there
	holds    bool     // it is a holder's: an earlier send was granted the lock
	entry    int64    // the lease that the own entry is under
	front    []string // the entries in front of the own one at listed
	listed   int64    // the revision of that
	locked   bool     // the store has said that another holds it

	w        *waiter // once it listens to the queue
	since    int64   // the revision after which it does
	session  *lease  // that its entry waits under
	requeued time.Time
}

func (s *store) place(c *backend.Claim) *place {
	p, ok := c.Place.(*place)
	if !ok {
		p = &place{queue: s.keys.queue(c.Name)}
		c.Place = p
	}
	return p
}

// secs is the TTL of the store's lease.
func secs(r *backend.Request) int64 { return seconds(r.TTL + r.Grace) }

// slotOf is the place of the lease that a lock shares, if it shares one.
func slotOf(r *backend.Request) slotKey { return slotKey{kind: shared, secs: secs(r)} }

// Ask implements backend.Driver: what needs no more than one transaction shares one, and all else
// has requests of its own beside it.
func (s *store) Ask(ctx context.Context, cs []*backend.Claim) {
	if len(cs) == 1 {
		s.alone(ctx, cs[0])
		return
	}
	var wg sync.WaitGroup
	var parts []*part
	var bare []*backend.Claim // that have no lease yet
	taken := make(map[string]bool, len(cs))
	for _, c := range cs {
		// All compares of a transaction are made before anything of it is done.
		if queue := s.place(c).queue; s.simple(c) && !taken[queue] {
			taken[queue] = true
			if one := s.share(c); one != nil {
				parts = append(parts, one)
				continue
			}
			if !c.Leaving && !c.Auto {
				bare = append(bare, c)
				continue
			}
		}
		wg.Go(func() { s.alone(ctx, c) })
	}
	if len(bare) > 0 {
		wg.Go(func() { s.lend(ctx, bare) })
	}
	s.together(ctx, parts)
	wg.Wait()
}

// lend asks for claims that need leases of their own first.
func (s *store) lend(ctx context.Context, cs []*backend.Claim) {
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() { _, c.Err = s.lease(ctx, c, s.place(c), 0) })
	}
	wg.Wait()
	var parts []*part
	for _, c := range cs {
		if c.Err = word(c.Err); c.Err == nil {
			p := s.place(c)
			s.listen(c, p)
			parts = append(parts, s.first(c, p, p.own))
		}
	}
	s.together(ctx, parts)
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

// simple reports whether one transaction is all that a claim needs, once it has a lease.
func (s *store) simple(c *backend.Claim) bool {
	p := s.place(c)
	return !c.Unsure && (c.Leaving || p.hold == nil && p.rev == 0 && c.Floor == 0 && c.Reserve == 0)
}

// share returns that transaction, or nil if there is none, or the claim has no lease.
func (s *store) share(c *backend.Claim) *part {
	p := s.place(c)
	l := p.own
	switch {
	case c.Leaving:
		return s.leaving(c, nil)
	case c.Auto:
		l = s.leases.peek(slotOf(c.Request), c.TTL/8)
	case l == nil:
		l = s.leases.spare(secs(c.Request), true)
		p.own = l
	case !l.fresh():
		l = nil
	}
	if l == nil {
		return nil
	}
	s.listen(c, p)
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
	s.listen(c, p)
	if p.rev > 0 {
		return s.look(ctx, c, p)
	}
	age := c.TTL / 8
	if c.Unsure { // a member is silent: the fewer requests go out the better, and the engine renews at once
		age = c.TTL / 2
	}
	l, err := s.lease(ctx, c, p, age)
	if err != nil {
		return err
	}
	return s.single(ctx, s.first(c, p, l))
}

// lease returns the lease for the lock, confirmed at most age ago if it is a
// shared one, and just now if not: the Deadline counts from that.
func (s *store) lease(ctx context.Context, c *backend.Claim, p *place, age time.Duration) (*lease, error) {
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
	k, pt, began := s.keys, s.history.now(), backend.Now()
	tomb := clientv3.Compare(clientv3.CreateRevision(k.gone(c.Nonce)), "=", 0)
	empty := clientv3.Compare(clientv3.CreateRevision(p.queue), "=", 0).WithPrefix()
	one := &part{c: c, ifs: []clientv3.Cmp{tomb, empty}, els: s.looks(c, p), gated: true, base: true}
	due := s.due(c.Request, pt)
	if c.Floor == 0 && c.Reserve == 0 { // nothing that only the one who is granted the lock may ask for
		one.anchor, due = pt.due, rise{}
	}
	one.then = s.grantOps(c, p, due, pt.rev, l)
	session := p.session
	if p.w == nil {
		session = nil
	}
	if session != nil {
		absent := clientv3.Compare(clientv3.CreateRevision(p.key), "=", 0)
		one.els = []clientv3.Op{clientv3.OpTxn(
			[]clientv3.Cmp{tomb, absent, s.sameGates(c.Gates)},
			[]clientv3.Op{p.put(value{owner: c.Owner}, session), p.list()}, one.els)}
	}
	one.take = func(ctx context.Context, resp *clientv3.TxnResponse, err error) error {
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			// Nothing was done. A lease ended between its confirmation and now: see which.
			return errors.Join(err, s.leases.verify(ctx, l, session))
		case err != nil:
			return err
		case resp.Succeeded:
			p.rev, p.mod = resp.Header.Revision, resp.Header.Revision
			return s.granted(ctx, c, p, l, pt, due, began, resp)
		}
		s.history.see(pt, resp.Header)
		answers := resp.Responses
		if session != nil {
			inner := answers[0].GetResponseTxn()
			answers = inner.Responses
			if inner.Succeeded {
				p.rev, p.mod, p.entry = resp.Header.Revision, resp.Header.Revision, int64(session.id)
				p.listedAt(resp.Header.Revision, answers[1].GetResponseRange().GetKvs())
				if !p.blocked() { // the watch has told of deletions since
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
		s.settle(c, p, p.own, true)
	}
	return backend.ErrLocked
}

// settle ends what a claim has of its own. sure: nothing of it is in the store, nor under way.
func (s *store) settle(c *backend.Claim, p *place, own *lease, sure bool) {
	if id := strings.TrimPrefix(p.key, p.queue); sure && id != "" && (p.hold != nil || id != c.Nonce) {
		s.ids.give(p.queue, id)
	}
	switch {
	case own == nil:
	case sure:
		s.leases.give(secs(c.Request), own)
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
	case p.w == nil:
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
	p.found(rev, answers[0].GetResponseRange().GetKvs(), answers[1].GetResponseRange().GetKvs())
	if p.rev > 0 {
		return nil
	}
	return s.shown(c, answers[3].GetResponseRange().GetKvs())
}

// put writes the own entry; where it is there already it moves to another lease and stays where it
// is in the queue.
func (p *place) put(v value, l *lease) clientv3.Op {
	return clientv3.OpPut(p.key, v.String(), clientv3.WithLease(l.id))
}

// list reads the queue's keys.
func (p *place) list() clientv3.Op {
	return clientv3.OpGet(p.queue, clientv3.WithPrefix(), clientv3.WithKeysOnly())
}

// found takes in what is in the queue; me is the own entry, if it is there.
func (p *place) found(rev int64, me, queue []*mvccpb.KeyValue) {
	p.rev, p.mod, p.holds = 0, 0, false
	if len(me) > 0 {
		p.rev, p.mod, p.entry = me[0].CreateRevision, me[0].ModRevision, me[0].Lease
		v, _ := parse(string(me[0].Value))
		p.holds = v.held
	}
	p.listedAt(rev, queue)
}

// listedAt takes in which entries are in front of the own one.
func (p *place) listedAt(rev int64, queue []*mvccpb.KeyValue) {
	p.front, p.listed, p.locked = p.front[:0], rev, true
	for _, kv := range queue {
		if kv.CreateRevision < p.rev {
			p.front = append(p.front, string(kv.Key))
		}
	}
	if p.w != nil {
		p.w.expect(p.key, rev, p.front)
	}
}

// blocked reports whether somebody is in front of the own entry.
func (p *place) blocked() bool {
	if p.w != nil {
		return p.w.blocked()
	}
	return len(p.front) > 0
}

// look looks at the queue if somebody is known to be in front of the own entry, or may be, and takes
// the lock if nobody is.
func (s *store) look(ctx context.Context, c *backend.Claim, p *place) error {
	// A holder's entry stays one: what was granted is not to be refused when it is sent again.
	if p.w != nil && !p.holds && (p.listed < p.since || p.blocked()) {
		if err := s.relist(ctx, c, p); err != nil {
			return err
		}
	}
	for range 2 { // the second if the first finds that an answer was lost
		if p.rev == 0 {
			return requeue(c, p)
		}
		if p.blocked() {
			return queued(c, p)
		}
		if granted, err := s.turn(ctx, c, p); granted || err != nil {
			return err
		}
	}
	if p.rev == 0 {
		return requeue(c, p)
	}
	c.Wake(0) // something is odd: look again
	return queued(c, p)
}

// relist looks at the queue, and takes care that the own entry is under the waiters' lease.
func (s *store) relist(ctx context.Context, c *backend.Claim, p *place) error {
	var ifs []clientv3.Cmp
	reads := []clientv3.Op{clientv3.OpGet(p.key), p.list()}
	then := reads
	if p.entry != int64(p.session.id) {
		// Of an earlier send of this request, or of a session that was replaced.
		ifs = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(p.key), "=", p.mod)}
		then = append([]clientv3.Op{p.put(value{owner: c.Owner}, p.session)}, reads...)
	}
	pt := s.history.now()
	resp, err := s.txn(ctx, ifs, then, reads)
	if err != nil {
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			p.session.die()
		}
		return err
	}
	s.history.see(pt, resp.Header)
	n := len(resp.Responses)
	p.found(resp.Header.Revision, resp.Responses[n-2].GetResponseRange().GetKvs(),
		resp.Responses[n-1].GetResponseRange().GetKvs())
	return nil
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
	then := append(s.grantOps(c, p, due, p.rev, l), clientv3.OpGet(s.keys.base()))
	resp, err := s.txn(ctx, ifs, then, s.looks(c, p))
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		l.die()
		return false, err
	case err != nil:
		return false, err
	case resp.Succeeded:
		p.mod = resp.Header.Revision
		err := s.granted(ctx, c, p, l, pt, due, began, resp)
		return err == nil, err
	}
	s.history.see(pt, resp.Header)
	err = s.looked(c, p, resp.Header.Revision, resp.Responses)
	if err == nil && !p.holds && !p.blocked() {
		err = s.shown(c, resp.Responses[3].GetResponseRange().GetKvs())
	}
	return false, err
}

// grantOps are the operations of a grant: they put the own entry under lease l, and raise the base.
// The base is to be read after that. rev is the create revision, or one below it.
func (s *store) grantOps(c *backend.Claim, p *place, due rise, rev int64, l *lease) []clientv3.Op {
	v := holding(c.Request)
	v.reserve = due.reserve
	ops := []clientv3.Op{p.put(v, l)}
	if due.least > 0 {
		ops = append(ops, s.raiseBase(due, rev))
	}
	return ops
}

// granted makes the grant of an entry that is first in the queue, under lease l.
func (s *store) granted(
	ctx context.Context, c *backend.Claim, p *place, l *lease, pt point, due rise,
	began backend.Instant, resp *clientv3.TxnResponse,
) error {
	token, reserved, err := s.token(ctx, c, p, pt, due, began.Time(), resp)
	switch {
	case errors.Is(err, errPlace):
		return requeue(c, p)
	case err != nil:
		return err
	}
	h := &hold{key: p.key, queue: p.queue, rev: p.rev, lease: l, value: holding(c.Request), reserved: reserved}
	h.token = token
	if p.own != nil {
		h.secs = secs(c.Request)
	}
	p.hold = h
	c.Grant = h.grant(c.Request)
	c.Sent = max(began.Sub(c.Asked), 0)
	s.quiet(c)
	return nil
}
