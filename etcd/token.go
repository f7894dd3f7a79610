package etcd

import (
	"context"
	"errors"
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

// readNumber reads a key that number wrote.
func readNumber(kv *mvccpb.KeyValue) (int64, error) {
	n, err := strconv.ParseInt(string(kv.Value), 10, 64)
	if err != nil || len(kv.Value) != digits || n < 0 {
		return 0, backend.Invalid("the key %q holds %.40q: want %d digits; "+
			"some other program has written it", kv.Key, kv.Value, digits)
	}
	return n, nil
}

// rise is the base that a grant asks for.
type rise struct {
	least   backend.Token // that its token may be; 0: any
	reserve int           // how many numbers after its token it is to have too
}

// due is the rise of the base that the grant of a request at p asks for.
func (s *store) due(r *backend.Request, p point) rise {
	if !p.due && r.Floor == 0 && r.Reserve == 0 {
		return rise{}
	}
	now := time.Now()
	least := wanted(r.Floor, p.due || r.Reserve > 0, now)
	return rise{least, backend.Reserve(r, least, now)}
}

// raiseBase returns the operation that sees to it that the create revision rev has no lower token
// than c.least. If the base has to be raised for that, it is raised by c.reserve more. A base that
// is missing, for the store is new or has lost it, is compared with the clock too.
func (s *store) raiseBase(c rise, rev int64) *pb.RequestOp {
	key := s.keys.base()
	put := func(least backend.Token) []*pb.RequestOp {
		return []*pb.RequestOp{opPut(key, number(least-rev+int64(c.reserve)), 0)}
	}
	lower := says(key, less, number(c.least-rev))
	missing := createdAt(key, 0)
	return opTxn([]*pb.Compare{missing}, put(wanted(c.least-1, true, time.Now())),
		[]*pb.RequestOp{opTxn([]*pb.Compare{lower}, put(c.least), nil)})
}

// tokenAt returns the token that an entry with the create revision rev was given at the revision
// at, by a grant that asked for reserve numbers more, and how many numbers after it are the entry's
// too; base is the base as of that revision. If the grant has raised the base, the last of those
// numbers is the one of that base. Every later grant of the name is to an entry with a greater
// revision, and finds a base that is no lower.
func tokenAt(
	base *mvccpb.KeyValue, rev, at int64, reserve int,
) (t backend.Token, reserved int, err error) {
	n, err := readNumber(base)
	if base.ModRevision == at {
		return n + rev - int64(reserve), reserve, err
	}
	return n + rev, 0, err
}

// history is the store's revisions, as far as a driver has seen them.
type history struct {
	onBack func() // called without mu when the store has gone back

	mu       sync.Mutex
	last     point
	era      int       // how often the store has gone back
	anchored time.Time // when the base was last compared with the clock
}

// point is a moment of a history.
type point struct {
	rev  int64  // the greatest seen
	term uint64 // the raft term of that time
	due  bool   // the base is to be compared with the clock
	era  int    // how often the store had gone back
}

func (h *history) now() point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return point{h.last.rev, h.last.term, time.Since(h.anchored) > anchorEvery, h.era}
}

// see takes in the header of an answer to a request that was sent after before. It
// reports whether the store has gone back since: another's data was put in its place.
func (h *history) see(before point, hd *pb.ResponseHeader) (back bool) {
	back = hd.Revision < before.rev || hd.RaftTerm < before.term
	h.mu.Lock()
	if back {
		h.last, h.anchored = point{rev: hd.Revision, term: hd.RaftTerm}, time.Time{}
		h.era++
	} else {
		h.last.rev, h.last.term = max(h.last.rev, hd.Revision), max(h.last.term, hd.RaftTerm)
	}
	h.mu.Unlock()
	if back {
		h.onBack()
	}
	return back
}

// anchor notes that the base was compared with the clock at t; the zero time: that it is to be.
func (h *history) anchor(t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.IsZero() || t.After(h.anchored) {
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

var errBase = errors.New("the base of the tokens is missing or too low, or the store has gone back")

// token makes the token of a grant from its answer, of which the base is the last. Where that is no
// good the grant does not count yet: the next Ask finds the entry, and raises the base.
func (s *store) token(
	c *backend.Claim, of *place, p point, due rise, began time.Time, resp *pb.TxnResponse,
) (t backend.Token, reserved int, err error) {
	back := s.history.see(p, resp.Header)
	if kvs := resp.Responses[len(resp.Responses)-1].GetResponseRange().GetKvs(); len(kvs) > 0 {
		t, reserved, err = tokenAt(kvs[0], of.rev, resp.Header.Revision, due.reserve)
	}
	switch {
	case err != nil:
		return 0, 0, err
	case back || t <= c.Floor:
		s.history.anchor(time.Time{})
		of.holds = true
		return 0, 0, backend.Refusal(errBase)
	case t+int64(reserved) >= maxToken:
		return 0, 0, backend.Invalid("the token would be %d: it must stay below 2^53; "+
			"a floor or a clock was far ahead", t)
	}
	if p.due {
		s.history.anchor(began)
	}
	return t, reserved, nil
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

// Raise implements backend.Mover. The token of an entry that is there already counts from its own
// revision, the token of a later entry from a greater one.
func (s *store) Raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	if floor < 0 || floor >= maxToken {
		return backend.Invalid("floor %d: want one from 0 to below 2^53", floor)
	}
	p := s.history.now()
	var rev int64
	var ifs []*pb.Compare
	var h *hold
	if held != nil {
		var err error
		if h, err = holdOf(held); err != nil {
			return err
		}
		rev, ifs = h.rev, []*pb.Compare{h.same()}
	} else {
		opts := append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())
		first, err := s.get(ctx, s.keys.locks(), opts...)
		if err != nil {
			return err
		}
		s.history.see(p, first.Header)
		rev = first.Header.Revision
		if len(first.Kvs) > 0 {
			rev = first.Kvs[0].CreateRevision
		}
	}
	then := []*pb.RequestOp{s.raiseBase(rise{least: floor + 1}, rev)}
	if held != nil {
		then = append(then, opList(s.keys.queue(held.Name), false))
	}
	resp, err := s.commit(ctx, ifs, then, nil)
	if err != nil {
		return err
	}
	s.history.see(p, resp.Header)
	switch {
	case !resp.Succeeded:
		return backend.ErrLost
	case held == nil:
		return s.disinherit(ctx, resp.Header.Revision)
	}
	behind := heirsOf(resp.Responses[1].GetResponseRange().GetKvs(), h.key, resp.Header.Revision)
	there, err := s.outOf(ctx, h.same(), behind)
	if err == nil && !there {
		err = backend.ErrLost
	}
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
