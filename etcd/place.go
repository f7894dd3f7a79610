package etcd

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/fencelock/fencelock/backend"
)

const (
	// floorTimer is how long a waiter waits for a push at the most.
	floorTimer = 5 * time.Second
	// unheardTimer is the same of one whose watch has not begun yet.
	unheardTimer = 2 * time.Second
)

// errPlace says that the own entry is gone: its etcd lease has ended, or somebody has deleted it.
var errPlace = errors.New("the entry of this request is gone from the queue")

// place is what the store remembers of a claim.
type place struct {
	c      *backend.Claim
	queue  string
	mark   string // of its keys
	others bool   // it is another program's, which is to go
	key    string // "": none, or it may be another's; the same for as long as the place listens
	own    *lease // a lease of its own
	hold   *hold  // once it was granted

	rev, mod int64         // of the own entry, once it is there
	holds    bool          // it is a holder's: an earlier send was granted the lock
	locked   bool          // the store has said that another holds it
	seen     *seen         // the queue as it was read last, if that was not acted upon; not of an exclusive claim
	above    backend.Token // that its token must exceed, as it must its floor
	tried    backend.Token // the base that its last draw asked for
	slack    backend.Token // by how much its next draw raises the base beyond the one that it has seen

	watch   *watch // nil: it does not listen
	session *lease // that its entry waits under

	// Guarded by push.mu:
	unheard bool  // it stands in the queue, and its watch has not begun
	listed  int64 // the revision of the last list of the queue
	// front are the entries in front, without those that cannot keep it out. The own entry among them
	// is to be looked at. last is the one of them that was created last.
	front   map[string]*backend.Request
	last    *mvccpb.KeyValue
	gone    map[string]left // the deletions that the list did not know of
	there   int64           // the revision at which the own one was seen there last
	heir    backend.Token   // the token with which it holds once no entry is in front; 0: it has to take its turn
	joined  int64           // the revision at which its entry was put as an heir's
	era     int             // of the history at that time
	under   *lease          // of its entry then
	doubted bool            // an entry in front may have been granted the lock since, with a greater token
}

func (s *store) place(c *backend.Claim) *place {
	p, ok := c.Place.(*place)
	if !ok {
		p = &place{c: c, queue: s.keys.queue(c.Name), mark: mark(c.Request)}
		if p.others = c.Leaving; c.Leaving { // this driver was not asked for it
			p.key = p.queue + p.mark + c.Nonce
		}
		c.Place = p
	}
	return p
}

// prepare gives a claim that has no entry its key, and makes it listen if it can at once.
func (s *store) prepare(p *place) {
	if p.key == "" {
		p.key = p.queue + p.mark + p.c.Nonce // an operator sees a hold by it: no other one has it
		if p.mark == "" {
			p.key = p.queue + s.ids.take(p.queue, p.c.Nonce)
		}
	}
	s.listen(p)
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
	if sure && p.key != "" && p.mark == "" {
		s.ids.give(p.queue, strings.TrimPrefix(p.key, p.queue))
	}
	switch {
	case own == nil:
	case sure:
		s.leases.give(own)
	default:
		s.leases.revoke(own) // a late request may still put an entry under it
	}
	p.key, p.rev, p.own, p.hold = "", 0, nil, nil
}

// queued ends an Ask of a claim whose entry is in the queue.
func (u *push) queued(c *backend.Claim, p *place) error {
	switch {
	case !c.Wait: // it was put into an empty queue
		return backend.Refusal(errPlace)
	case p.watch == nil:
		c.Next = time.Nanosecond
	case u.unheard(p):
		c.Queued, c.Next = true, unheardTimer
	case u.stale(p, true): // the watch has begun since the list
		c.Queued, c.Next = true, time.Nanosecond
	default:
		c.Queued, c.Next = true, floorTimer
	}
	return backend.ErrLocked
}

// unheard reports whether the place's watch has not begun. If so the place is told when it does.
func (u *push) unheard(p *place) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	p.unheard = p.watch.since == 0
	return p.unheard
}

// requeue ends an Ask of a claim whose entry is gone: the next one queues again, with the same key:
// a late copy of an earlier request finds that key where it is, or is found there.
func requeue(c *backend.Claim) error {
	if !c.Wait {
		return backend.Refusal(errPlace)
	}
	c.Next = time.Nanosecond
	return backend.ErrLocked
}

// put writes the own entry; where it is there already it moves to another lease and stays where it
// is in the queue.
func (p *place) put(v value, l *lease) *pb.RequestOp {
	return opPut(p.key, v.String(), l.id)
}

// putHeld makes the own entry a holder's, under the lock's lease.
func (p *place) putHeld(due rise, l *lease) *pb.RequestOp {
	v := holding(p.c.Request)
	v.reserve = due.reserve
	return p.keep(v, l)
}

// keep is put of a holder's entry. One that is as it is to be already stays as it is: the next send finds it so, where
// no answer comes in time to one send after the other.
func (p *place) keep(v value, l *lease) *pb.RequestOp {
	put := p.put(v, l)
	if !p.holds || v.reserve > 0 { // how many are reserved is known by the revision of the put
		return put
	}
	same := []*pb.Compare{says(p.key, equal, v.String()), under(p.key, l.id)}
	return opTxn(same, nil, []*pb.RequestOp{put})
}

// list reads the queue's keys, and their values if these matter. A claim that does not listen needs only the first.
func (p *place) list() *pb.RequestOp {
	op := opList(p.queue, p.c.Mode == backend.Exclusive)
	if p.c.Mode == backend.Exclusive && p.watch == nil {
		op.GetRequestRange().Limit = 1
	}
	return op
}

// list takes in which entries are in front of the own one, as listed at a revision.
func (u *push) list(p *place, rev int64, queue []*mvccpb.KeyValue) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := p.front
	delete(was, p.key)
	p.locked, p.listed, p.front, p.last = true, rev, map[string]*backend.Request{}, nil
	p.doubted = p.doubted && rev != p.rev
	for _, kv := range queue {
		key := string(kv.Key)
		if kv.CreateRevision >= p.rev {
			continue
		}
		delete(was, key)
		if gone := p.gone[key]; gone.at > rev {
			p.doubted = p.doubted || p.doubts(gone)
			continue
		}
		r := alone
		if p.mark != "" {
			r = asks(strings.TrimPrefix(key, p.queue), string(kv.Value))
		}
		if p.c.Mode != backend.Reader || r.Mode != backend.Reader {
			p.front[key] = r
			if p.last == nil || kv.CreateRevision > p.last.CreateRevision {
				p.last = kv
			}
		}
	}
	p.doubted = p.doubted || rev != p.rev && len(was) > 0 // no event told how these went
	if p.gone[p.key].at > rev {
		p.ownGone()
	}
	clear(p.gone)
}

// alone is the request of an exclusive entry.
var alone = &backend.Request{}

// free reports whether the entries in front let the own entry hold the lock. They only vanish, so once
// they do they do for good. push.mu is held.
func (p *place) free() bool {
	return len(p.front) == 0 ||
		p.c.Mode == backend.Permit && p.c.Admits(slices.Collect(maps.Values(p.front)))
}

// deleted ticks off an entry. The waiter looks when nobody in front keeps it out any more, or when the
// entry is its own. push.mu is held.
func (p *place) deleted(key string, l left) {
	if l.at <= p.listed {
		return
	}
	if p.gone == nil {
		p.gone = map[string]left{}
	}
	if _, twice := p.gone[key]; twice { // by two claims, of which the first is forgotten
		l.wrote, l.last = l.at, 0
	}
	p.gone[key] = l // for the list that is on its way, if one is
	if p.front[key] != nil {
		p.doubted = p.doubted || p.doubts(l)
		if delete(p.front, key); p.free() {
			p.c.Wake(0)
		}
	}
	if key == p.key && p.listed > 0 { // else it may be the release of an earlier claim with the key
		p.ownGone()
	}
}

// ownGone makes the waiter look at the queue.
func (p *place) ownGone() {
	p.front = map[string]*backend.Request{p.key: alone}
	p.c.Wake(0)
}

// blocked reports whether somebody in front of the own entry keeps it out.
func (u *push) blocked(p *place) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !p.free()
}

// stale reports whether the queue is to be looked at again: somebody is known to be in front of the
// own entry, unless that was read just now, or the last list is from before the watch began.
func (u *push) stale(p *place, listed bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return p.watch != nil && (p.listed < p.watch.since || !listed && len(p.front) > 0)
}

// behind returns the compares that are true as long as a place stands where it stood, behind the last one in front. It
// does not matter whether others in front have gone unheard, as long as that one is there. nil: the queue is to be
// listed, as it always is for permits, which may hold the lock beside those in front.
func (u *push) behind(p *place) []*pb.Compare {
	u.mu.Lock()
	defer u.mu.Unlock()
	if p.watch == nil || p.listed < p.watch.since || p.last == nil || p.front[string(p.last.Key)] == nil ||
		p.holds || p.c.Mode == backend.Permit {
		return nil
	}
	return []*pb.Compare{createdAt(p.key, p.rev), still(p.last)}
}

// stays notes that the compares of behind were true at a revision. It is below the list's if the store has gone back.
func (u *push) stays(p *place, rev int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p.there, p.listed = rev, min(p.listed, rev)
	clear(p.gone)
}

// seen is the revision at which a place that is granted the lock was in its queue last, as was read.
func (u *push) seen(p *place) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return max(p.listed, p.there)
}
