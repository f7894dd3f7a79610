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

// claim is what a grant asks of the base.
type claim struct {
	least   backend.Token // that its token may be; 0: any
	reserve int           // how many numbers after its token it is to have too
}

// claim is that of a grant at p.
func (a *attempt) claim(p point) claim {
	if !p.due && a.r.Floor == 0 && a.r.Reserve == 0 {
		return claim{}
	}
	now := time.Now()
	least := wanted(a.r.Floor, p.due || a.r.Reserve > 0, now)
	return claim{least, backend.Reserve(a.r, least, now)}
}

// anchor returns the operation that compares the base with the clock for any grant from now on.
func (d *Driver) anchor() clientv3.Op {
	return d.raiseBase(claim{least: wanted(0, true, time.Now())}, d.history.now().rev)
}

// raiseBase returns the operation that sees to it that the create revision rev has no lower token than c.least. If the base has to
// be raised for that, it is raised by c.reserve more. A base that is missing, for the store is new or has lost it, is compared with the clock too.
func (d *Driver) raiseBase(c claim, rev int64) clientv3.Op {
	key := d.keys.base()
	put := func(least backend.Token) []clientv3.Op {
		return []clientv3.Op{clientv3.OpPut(key, number(least-rev+int64(c.reserve)))}
	}
	lower := clientv3.Compare(clientv3.Value(key), "<", number(c.least-rev))
	missing := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	return clientv3.OpTxn([]clientv3.Cmp{missing}, put(wanted(c.least-1, true, time.Now())),
		[]clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{lower}, put(c.least), nil)})
}

// tokenAt returns the token that an entry with the create revision rev was given at the revision at, by a grant that made the claim c, and
// how many numbers after it are the entry's too; base is the base as of that revision. If the grant has raised the base, the last of those numbers is the
// one of that base. Every later grant of the name is to an entry with a greater revision, and finds a base that is no lower.
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
func wanted(floor backend.Token, clock bool, at time.Time) backend.Token {
	w := floor + 1
	if now := at.UnixMicro(); clock && now < maxToken {
		w = max(w, now)
	}
	return w
}

// token makes the token of a grant from its answer, of which the base is the last. If the store has
// gone back, or has no base, the base is raised first, as long as the lock is still ours.
func (d *Driver) token(ctx context.Context, a *attempt, p point, c claim, began time.Time, resp *clientv3.TxnResponse) (backend.Token, int, error) {
	back := d.history.see(p, resp.Header)
	kvs := resp.Responses[len(resp.Responses)-1].GetResponseRange().GetKvs()
	if len(kvs) == 0 || back {
		return d.raised(ctx, a)
	}
	t, reserved, err := tokenAt(kvs[0], a.rev, resp.Header.Revision, c.reserve)
	switch {
	case err != nil:
		return 0, 0, err
	case t <= a.r.Floor:
		return d.raised(ctx, a)
	case t+int64(reserved) >= maxToken:
		return 0, 0, tooHigh(t)
	}
	if p.due {
		d.history.set(began)
	}
	return t, reserved, nil
}

// raised raises the base for an entry that is surely first in its queue, and
// returns its token.
func (d *Driver) raised(ctx context.Context, a *attempt) (backend.Token, int, error) {
	p, began := d.history.now(), time.Now()
	c := claim{least: wanted(a.r.Floor, true, began)}
	resp, err := d.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(a.key), "=", a.rev)},
		[]clientv3.Op{d.raiseBase(c, a.rev), clientv3.OpGet(d.keys.base())}, nil)
	switch {
	case err != nil:
		return 0, 0, err
	case !resp.Succeeded:
		return 0, 0, backend.ErrLost
	}
	d.history.see(p, resp.Header)
	kvs := resp.Responses[1].GetResponseRange().GetKvs()
	if len(kvs) == 0 {
		return 0, 0, errUnexpected
	}
	t, _, err := tokenAt(kvs[0], a.rev, resp.Header.Revision, 0)
	switch {
	case err != nil:
		return 0, 0, err
	case t >= maxToken:
		return 0, 0, tooHigh(t)
	}
	d.history.set(began)
	return t, 0, nil
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
	_, err = d.commit(ctx, nil, []clientv3.Op{d.raiseBase(claim{least: floor + 1}, rev)}, nil)
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
		[]clientv3.Op{d.raiseBase(claim{least: floor}, hd.rev)}, nil)
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
		return wanted(resp.Header.Revision-1, true, time.Now()), nil
	}
	base, err := readNumber(resp.Kvs[0])
	return base + resp.Header.Revision, err
}
