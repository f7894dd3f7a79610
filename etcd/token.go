package etcd

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

const (
	// anchorEvery is how old this process's last comparison of the base with its
	// clock may be at a grant.
	anchorEvery = time.Second
	// maxToken is the bound below which JSON keeps a number exact.
	maxToken = 1 << 53
	// digits is the width of a number in the store: texts of one width compare as numbers do.
	digits = 16
)

// number writes a number as the store compares it.
func number(n int64) string { return fmt.Sprintf("%0*d", digits, max(n, 0)) }

// readNumber reads what number wrote.
func readNumber(kv *mvccpb.KeyValue) (int64, error) {
	n, err := strconv.ParseInt(string(kv.Value), 10, 64)
	if err != nil || len(kv.Value) != digits || n < 0 {
		return 0, backend.Invalid("the key %q holds %.40q: want %d digits; "+
			"some other program has written it", kv.Key, kv.Value, digits)
	}
	return n, nil
}

// rise is what a grant asks of the base.
type rise struct {
	least   backend.Token // that its token may be; 0: any
	reserve int           // how many numbers after its token it is to have too
}

// due is what the grant of a request at p asks.
func (s *store) due(r *backend.Request, p point) rise {
	if !p.due && r.Floor == 0 && r.Reserve == 0 {
		return rise{}
	}
	now := time.Now()
	least := wanted(r.Floor, p.due || r.Reserve > 0, now)
	return rise{least, backend.Reserve(r, least, now)}
}

// anchor returns the operation that compares the base with the clock for any grant from now on.
func (s *store) anchor() clientv3.Op {
	return s.raiseBase(rise{least: wanted(0, true, time.Now())}, s.history.now().rev)
}

// raiseBase returns the operation that sees to it that the create revision rev has no lower token
// than c.least. If the base has to be raised for that, it is raised by c.reserve more. A base that
// is missing, for the store is new or has lost it, is compared with the clock too.
func (s *store) raiseBase(c rise, rev int64) clientv3.Op {
	key := s.keys.base()
	put := func(least backend.Token) []clientv3.Op {
		return []clientv3.Op{clientv3.OpPut(key, number(least-rev+int64(c.reserve)))}
	}
	lower := clientv3.Compare(clientv3.Value(key), "<", number(c.least-rev))
	missing := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	return clientv3.OpTxn([]clientv3.Cmp{missing}, put(wanted(c.least-1, true, time.Now())),
		[]clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{lower}, put(c.least), nil)})
}

// tokenAt returns the token that an entry with the create revision rev was given at the revision
// at, by a grant that asked for reserve numbers more, and how many numbers after it are the entry's too; base is
// the base as of that revision. If the grant has raised the base, the last of those numbers is the
// one of that base. Every later grant of the name is to an entry with a greater revision, and finds
// a base that is no lower.
func tokenAt(base *mvccpb.KeyValue, rev, at int64, reserve int) (t backend.Token, reserved int, err error) {
	n, err := readNumber(base)
	if base.ModRevision == at {
		return n + rev - int64(reserve), reserve, err
	}
	return n + rev, 0, err
}

// history is what a driver knows of the store's revisions.
type history struct {
	mu       sync.Mutex
	rev      int64  // the greatest seen
	term     uint64 // the raft term of that time
	anchored time.Time
}

// point is a moment of a history.
type point struct {
	rev  int64
	term uint64
	due  bool // the base is to be compared with the clock
}

func (h *history) now() point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return point{h.rev, h.term, time.Since(h.anchored) > anchorEvery}
}

// see takes in the header of an answer to a request that was sent after before. It
// reports whether the store has gone back since: another's data was put in its place.
func (h *history) see(before point, hd *pb.ResponseHeader) (back bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if hd.Revision < before.rev || hd.RaftTerm < before.term {
		h.rev, h.term, h.anchored = hd.Revision, hd.RaftTerm, time.Time{}
		return true
	}
	h.rev, h.term = max(h.rev, hd.Revision), max(h.term, hd.RaftTerm)
	return false
}

// set notes that the base was compared with the clock at t.
func (h *history) set(t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.After(h.anchored) {
		h.anchored = t
	}
}

// wanted is the least token that a grant may have now: above the floor, and not
// below the clock if it is to be compared with it.
func wanted(floor backend.Token, clock bool, at time.Time) backend.Token {
	w := floor + 1
	if now := at.UnixMicro(); clock && now < maxToken {
		w = max(w, now)
	}
	return w
}

// token makes the token of a grant from its answer, of which the base is the last. If the store has
// gone back, or has no base, the base is raised first, as long as the lock is still ours.
func (s *store) token(
	ctx context.Context, c *backend.Claim, of *place, p point, due rise, began time.Time, resp *clientv3.TxnResponse,
) (backend.Token, int, error) {
	back := s.history.see(p, resp.Header)
	kvs := resp.Responses[len(resp.Responses)-1].GetResponseRange().GetKvs()
	if len(kvs) == 0 || back {
		return s.raised(ctx, c, of)
	}
	t, reserved, err := tokenAt(kvs[0], of.rev, resp.Header.Revision, due.reserve)
	switch {
	case err != nil:
		return 0, 0, err
	case t <= c.Floor:
		return s.raised(ctx, c, of)
	case t+int64(reserved) >= maxToken:
		return 0, 0, tooHigh(t)
	}
	if p.due {
		s.history.set(began)
	}
	return t, reserved, nil
}

// raised raises the base for an entry that is surely first in its queue, and
// returns its token.
func (s *store) raised(ctx context.Context, c *backend.Claim, of *place) (backend.Token, int, error) {
	p, began := s.history.now(), time.Now()
	due := rise{least: wanted(c.Floor, true, began)}
	resp, err := s.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(of.key), "=", of.rev)},
		[]clientv3.Op{s.raiseBase(due, of.rev), clientv3.OpGet(s.keys.base())}, nil)
	switch {
	case err != nil:
		return 0, 0, err
	case !resp.Succeeded: // it was taken away before anybody had it
		of.rev = 0
		return 0, 0, errPlace
	}
	s.history.see(p, resp.Header)
	kvs := resp.Responses[1].GetResponseRange().GetKvs()
	if len(kvs) == 0 {
		return 0, 0, errUnexpected
	}
	t, _, err := tokenAt(kvs[0], of.rev, resp.Header.Revision, 0)
	switch {
	case err != nil:
		return 0, 0, err
	case t >= maxToken:
		return 0, 0, tooHigh(t)
	}
	s.history.set(began)
	return t, 0, nil
}

// checkFloor returns nil for a floor that a grant may obey. The base is compared with the clocks of
// clients, so one that is not far ahead of this one's needs no look at the store.
func (s *store) checkFloor(ctx context.Context, floor backend.Token) error {
	if backend.CheckFloor(floor, time.Now().UnixMicro()) == nil {
		return nil
	}
	source, err := s.Source(ctx)
	if err != nil {
		return err
	}
	return backend.CheckFloor(floor, source)
}

func tooHigh(t backend.Token) error {
	return backend.Invalid("the token would be %d: it must stay below 2^53; a floor or a clock was far ahead", t)
}

// Raise implements backend.Mover. Every later grant of held's name is to an entry that was created
// after that of held.
func (s *store) Raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	if floor < 0 || floor >= maxToken {
		return backend.Invalid("floor %d: want one from 0 to below 2^53", floor)
	}
	if held == nil {
		return s.raiseAll(ctx, floor)
	}
	h, err := holdOf(held)
	if err != nil {
		return err
	}
	p := s.history.now()
	resp, err := s.commit(ctx, []clientv3.Cmp{h.same()},
		[]clientv3.Op{s.raiseBase(rise{least: floor}, h.rev)}, nil)
	if err != nil {
		return err
	}
	s.history.see(p, resp.Header)
	if !resp.Succeeded {
		return backend.ErrLost
	}
	return nil
}

// raiseAll raises the base for all names. The token of an entry that is there already counts from
// its own revision, that of a later one from a greater.
func (s *store) raiseAll(ctx context.Context, floor backend.Token) error {
	p := s.history.now()
	first, err := s.get(ctx, s.keys.locks(), append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())...)
	if err != nil {
		return err
	}
	s.history.see(p, first.Header)
	rev := first.Header.Revision
	if len(first.Kvs) > 0 {
		rev = first.Kvs[0].CreateRevision
	}
	_, err = s.commit(ctx, nil, []clientv3.Op{s.raiseBase(rise{least: floor + 1}, rev)}, nil)
	return err
}

// Source implements backend.Mover: the token that an entry of this very moment would have.
func (s *store) Source(ctx context.Context) (backend.Token, error) {
	p := s.history.now()
	resp, err := s.get(ctx, s.keys.base())
	if err != nil {
		return 0, err
	}
	s.history.see(p, resp.Header)
	if len(resp.Kvs) == 0 { // what the next grant will make of it
		return wanted(resp.Header.Revision-1, true, time.Now()), nil
	}
	base, err := readNumber(resp.Kvs[0])
	return base + resp.Header.Revision, err
}
