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
		return 0, backend.Invalid("the key %q holds %.40q: want %d digits; some other program has written it", kv.Key, kv.Value, digits)
	}
	return n, nil
}

// raiseBase returns the operation that makes the base at least so great that the create revision rev has the token t. A base that is
// missing, for the store is new or has lost it, is compared with the clock too.
func (d *Driver) raiseBase(t backend.Token, rev int64) clientv3.Op {
	key := d.keys.base()
	put := func(n int64) []clientv3.Op { return []clientv3.Op{clientv3.OpPut(key, number(n))} }
	lower := clientv3.Compare(clientv3.Value(key), "<", number(t-rev))
	missing := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	return clientv3.OpTxn([]clientv3.Cmp{missing}, put(wanted(t-1, true)-rev),
		[]clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{lower}, put(t-rev), nil)})
}

// history is what a driver knows of the store's revisions.
type history struct {
	mu       sync.Mutex
	rev      int64  // the greatest seen
	term     uint64 // the raft term of that time
	cuts     int    // how often the store has gone back
	anchored time.Time
}

// point is a moment of a history.
type point struct {
	rev  int64
	term uint64
	cuts int
	due  bool // the base is to be compared with the clock
}

func (h *history) now() point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return point{h.rev, h.term, h.cuts, time.Since(h.anchored) > anchorEvery}
}

// see takes in the header of an answer to a request that was sent after before. It
// reports whether the store has gone back since: another's data was put in its place.
func (h *history) see(before point, hd *pb.ResponseHeader) (back bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if hd.Revision < before.rev || hd.RaftTerm < before.term {
		h.rev, h.term, h.anchored = hd.Revision, hd.RaftTerm, time.Time{}
		h.cuts++
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
func wanted(floor backend.Token, clock bool) backend.Token {
	w := floor + 1
	if now := time.Now().UnixMicro(); clock && now < maxToken {
		w = max(w, now)
	}
	return w
}

// tokenOps are the operations of a grant that make its token: rev is the create
// revision of the entry, or a revision below it.
func (d *Driver) tokenOps(p point, floor backend.Token, rev int64) []clientv3.Op {
	get := clientv3.OpGet(d.keys.base())
	if !p.due && floor == 0 {
		return []clientv3.Op{get}
	}
	return []clientv3.Op{d.raiseBase(wanted(floor, p.due), rev), get}
}

// token makes the token of a grant from the answer to tokenOps. If the store has
// gone back, or has no base, the base is raised first, as long as the lock is still ours.
func (d *Driver) token(ctx context.Context, a *attempt, p point, began time.Time, resp *clientv3.TxnResponse) (backend.Token, error) {
	back := d.history.see(p, resp.Header)
	kvs := resp.Responses[len(resp.Responses)-1].GetResponseRange().GetKvs()
	t := backend.Token(0)
	if len(kvs) > 0 {
		base, err := readNumber(kvs[0])
		if err != nil {
			return 0, err
		}
		t = base + a.rev
	}
	switch {
	case t == 0, back, t <= a.r.Floor:
		return d.raised(ctx, a)
	case t >= maxToken:
		return 0, tooHigh(t)
	}
	if p.due {
		d.history.set(began)
	}
	return t, nil
}

// raised raises the base for an entry that is surely first in its queue, and
// returns its token.
func (d *Driver) raised(ctx context.Context, a *attempt) (backend.Token, error) {
	p, began := d.history.now(), time.Now()
	resp, err := d.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(a.key), "=", a.rev)},
		[]clientv3.Op{d.raiseBase(wanted(a.r.Floor, true), a.rev), clientv3.OpGet(d.keys.base())}, nil)
	switch {
	case err != nil:
		return 0, err
	case !resp.Succeeded:
		return 0, backend.ErrLost
	}
	d.history.see(p, resp.Header)
	kvs := resp.Responses[1].GetResponseRange().GetKvs()
	if len(kvs) == 0 {
		return 0, errUnexpected
	}
	base, err := readNumber(kvs[0])
	if err != nil {
		return 0, err
	}
	if t := base + a.rev; t >= maxToken {
		return 0, tooHigh(t)
	}
	d.history.set(began)
	return base + a.rev, nil
}

func tooHigh(t backend.Token) error {
	return backend.Invalid("the token would be %d: it must stay below 2^53; a floor or a clock was far ahead", t)
}

// Raise implements backend.Raiser.
func (d *Driver) Raise(ctx context.Context, floor backend.Token) error {
	if floor < 0 || floor >= maxToken {
		return backend.Invalid("floor %d: want one from 0 to below 2^53", floor)
	}
	// The token of an entry that is there already counts from its own revision, that of a later one from a greater.
	p := d.history.now()
	first, err := d.get(ctx, d.keys.locks(), append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())...)
	if err != nil {
		return err
	}
	d.history.see(p, first.Header)
	rev := first.Header.Revision
	if len(first.Kvs) > 0 {
		rev = first.Kvs[0].CreateRevision
	}
	_, err = d.commit(ctx, nil, []clientv3.Op{d.raiseBase(floor+1, rev)}, nil)
	return err
}

// RaiseHeld implements backend.Gater. Every later grant of the name is to an entry that was created after this one.
func (d *Driver) RaiseHeld(ctx context.Context, h *backend.Hold, floor backend.Token) error {
	if floor < 0 || floor >= maxToken {
		return backend.Invalid("floor %d: want one from 0 to below 2^53", floor)
	}
	hd, err := handle(h)
	if err != nil {
		return err
	}
	p := d.history.now()
	resp, err := d.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(hd.key), "=", hd.rev)},
		[]clientv3.Op{d.raiseBase(floor, hd.rev)}, nil)
	if err != nil {
		return err
	}
	d.history.see(p, resp.Header)
	if !resp.Succeeded {
		return backend.ErrLost
	}
	return nil
}

// Source implements backend.Gater: the token that an entry of this very moment would have.
func (d *Driver) Source(ctx context.Context) (backend.Token, error) {
	p := d.history.now()
	resp, err := d.get(ctx, d.keys.base())
	if err != nil {
		return 0, err
	}
	d.history.see(p, resp.Header)
	if len(resp.Kvs) == 0 { // what the next grant will make of it
		return wanted(resp.Header.Revision-1, true), nil
	}
	base, err := readNumber(resp.Kvs[0])
	return base + resp.Header.Revision, err
}
