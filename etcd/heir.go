package etcd

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// Heirs. An entry that says so holds the lock from the moment at which no entry is in front of it, whether its claim
// has heard of that or not. A hand-over takes a deletion and its event, and no transaction of the next holder. The heir
// knows without one:
//
//   - Its place: the watch tells the deletions of a queue in their order, its own among them.
//   - Its token: the base as of the put of its entry, plus its create revision. The heirs in front have lower tokens,
//     since their entries were put earlier. A claim that is granted by a transaction writes its own entry in it. The
//     event of a deletion shows the last value of the entry. If that was written later than the heir's own entry,
//     and says no lower token, the heir doubts: it takes its turn by a transaction, which writes nothing if the base
//     has not changed. A holder that raises the base takes the heirs behind it out of the queue.
//   - The gates: once their key is there, no waiter becomes an heir. Before the first gate is written, all heirs that
//     do not hold yet are taken out of the queues. They join again, as waiters that take their turn.
//
// The entry stays under the waiters' lease until the first renewal. So an heir that dies holds up the others no longer
// than a dead waiter, and a lock that is soon released costs no more.

// stands are the operations by which a claim joins a queue: it puts the entry, lists the queue and, for an heir, reads
// the base. anchors: it compares the base with the clock if that is due.
func (s *store) stands(c *backend.Claim, p *place, pt point, anchors bool) (ops []*pb.RequestOp) {
	v := value{next: heir(c), owner: c.Owner}
	ops = append(ops, p.put(v, p.session), p.list())
	if !v.next {
		return ops
	}
	if anchors && pt.due {
		ops = append(ops, s.raiseBase(s.due(c.Request, pt), pt.rev))
	}
	return append(ops, s.getBase)
}

// heir reports whether a claim may be an heir. One that is not renewed by itself has its TTL from the grant on; one
// with a floor or a reserve wants more of the base.
func heir(c *backend.Claim) bool {
	return c.Auto && c.Mode == backend.Exclusive && c.Floor == 0 && c.Reserve == 0 && c.Move == "" &&
		version(c.Gates) == ""
}

// stood takes in the answers to what stands added for an heir.
func (s *store) stood(p *place, pt point, began time.Time, answers []*pb.ResponseOp) error {
	s.push.mu.Lock()
	defer s.push.mu.Unlock()
	p.heir, p.joined, p.under, p.era = 0, p.rev, p.session, pt.era
	if len(answers) == 0 {
		return nil
	}
	kvs := answers[len(answers)-1].GetResponseRange().GetKvs()
	if len(kvs) == 0 {
		return nil // it is missing, and the turn makes it
	}
	base, err := readNumber(kvs[0])
	if err != nil {
		return err
	}
	if t := base + p.rev; t < maxToken {
		p.heir = t
	}
	if pt.due {
		s.history.anchor(began)
	}
	return nil
}

// inherits returns the token with which an heir holds the lock once no entry is in front; 0: it has to take its turn.
// told: the watch has told that no entry is in front, and that each entry which was had a lower token. A late copy of a
// request of an unsure claim may move its entry elsewhere. A store that has gone back knows nothing of the token. The
// grant is to be trusted for a while.
func (s *store) inherits(c *backend.Claim, p *place) (t backend.Token, told bool) {
	s.push.mu.Lock()
	defer s.push.mu.Unlock()
	if c.Unsure || p.holds || !heir(c) || p.heir == 0 || p.joined != p.rev || p.era != s.history.now().era ||
		!p.under.within(min(sessionAge, c.TTL/2)) {
		return 0, false
	}
	w := p.watch
	return p.heir, w != nil && w.since > 0 && w.since <= p.listed && len(p.front) == 0 && !p.doubted
}

// sameBase is true as long as the base has not changed since the entry of an heir was put.
func (s *store) sameBase(p *place, heir backend.Token) *pb.Compare {
	return says(s.keys.base(), equal, number(heir-p.rev))
}

// inherit makes the grant of an heir that no entry is in front of.
func (s *store) inherit(c *backend.Claim, p *place, t backend.Token) {
	v := holding(c.Request)
	v.token = t
	s.held(c, p, newHold(p.under, v), backend.Now())
}

// left is how an entry went.
type left struct {
	at    int64         // the revision of its deletion
	wrote int64         // the revision of its last write; 0 if it was an heir's that was never renewed
	last  backend.Token // the last number that it had then; 0: unknown
}

// leftBy reads the deletion of an entry.
func leftBy(e *clientv3.Event) left {
	l := left{at: e.Kv.ModRevision, wrote: e.Kv.ModRevision}
	if was := e.PrevKv; was != nil {
		v, _ := parse(string(was.Value))
		if l.wrote = was.ModRevision; v.next {
			l.wrote = 0
		}
		if t := v.tokenOf(was.CreateRevision); t > 0 {
			l.last = t + backend.Token(v.reserve)
		}
	}
	return l
}

// doubts reports whether an entry that was in front may have had a number as high as the heir's. push.mu is held.
func (p *place) doubts(l left) bool {
	return l.wrote > p.joined && (l.last == 0 || l.last >= p.heir)
}

// disinherit takes the heirs out of all queues that joined before a revision and do not hold yet.
func (s *store) disinherit(ctx context.Context, before int64) error {
	for q, err := range s.queues(ctx, backend.Range{}) {
		if err != nil {
			return err
		}
		for kvs := q.kvs; len(kvs) > 1; {
			first := firstOf(kvs)
			heirs := heirsOf(kvs, string(first.Key), before)
			if len(heirs) == 0 {
				break
			}
			if _, err := s.outOf(ctx, still(first), heirs); err != nil {
				return err
			}
			now, err := s.get(ctx, s.keys.queue(q.name), clientv3.WithPrefix())
			if err != nil {
				return err
			}
			kvs = now.Kvs
		}
	}
	return nil
}

// heirsOf are the heirs of a queue from before a revision, without the entry with the key first.
func heirsOf(kvs []*mvccpb.KeyValue, first string, before int64) []*mvccpb.KeyValue {
	return slices.DeleteFunc(slices.Clone(kvs), func(kv *mvccpb.KeyValue) bool {
		v, _ := parse(string(kv.Value))
		return !v.next || string(kv.Key) == first || kv.CreateRevision > before
	})
}

// outOf deletes entries as long as one in front of them is there, and reports whether it was.
func (s *store) outOf(ctx context.Context, front *pb.Compare, kvs []*mvccpb.KeyValue) (bool, error) {
	for some := range slices.Chunk(kvs, perTxn) {
		ops := make([]*pb.RequestOp, len(some))
		for i, kv := range some {
			gone := opDelete(string(kv.Key))
			ops[i] = opTxn([]*pb.Compare{still(kv)}, []*pb.RequestOp{gone}, nil)
		}
		resp, err := s.commit(ctx, []*pb.Compare{front}, ops, nil)
		if err != nil || !resp.Succeeded {
			return false, err
		}
	}
	return true, nil
}
