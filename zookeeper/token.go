package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	// maxToken is below 2^53; maxClock keeps a clock that is far off from using up the numbers.
	maxToken = 1<<53 - 1
	maxClock = 1 << 52
	// stride is how many numbers each transaction of the ensemble has: one for what it grants, and the others for
	// those that are reserved with it.
	stride = 256
	// floorAhead, in µs, is how far ahead of the clock a floor puts the numbers, so that the next floors, of a
	// source that follows the clock, need not.
	floorAhead = 100_000
	// anchorEvery is for how long the base counts as just anchored.
	anchorEvery = time.Second
)

// base makes numbers of transactions. The servers count these, in order, in the zxid, and a token is a number that
// all processes know, the base, plus the stride times the zxid of the multi that made the holder's node. So nobody
// waits for the draws of others, and a process that reads the node knows the token from its data and the zxid of its
// creation. Every such multi checks the version of the base's node. That changes when the numbers are to be greater:
// for a floor, when a process has come to the servers, and after an election, in which the zxid jumps by 2^32 and the
// base falls by nearly as much. The multi also sets a second node: the answer tells its zxid, and the node the zxid of
// the last grant. The name of the second node is in the data of the first, and is another one where somebody has
// deleted them: versions begin again then.
type base struct {
	mu  sync.Mutex
	now origin
}

// origin is what a process knows of the base.
type origin struct {
	known   bool
	version int32 // of its node
	last    string
	add     backend.Token
	seen    int64         // the newest zxid that the process knows of; 0: it has not come to the servers yet
	since   int           // how often all was forgotten, but for
	most    backend.Token // the greatest number that the process was granted, or has raised to
}

// token is the token of a transaction.
func (o origin) token(zxid int64) backend.Token { return o.add + stride*zxid }

// epoch is what an election counts up.
func epoch(zxid int64) int64 { return zxid >> 32 }

func (b *base) state() origin {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// forget makes the next grant ask the servers, which may have lost something since.
func (b *base) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = origin{since: b.now.since + 1, most: b.now.most}
}

// outdated notes that the node is not of a version any more.
func (b *base) outdated(o origin) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now.since == o.since && b.now.version == o.version && b.now.last == o.last {
		b.now.known = false
	}
}

// learn takes in what the servers have, unless all was forgotten since it was asked for, or something newer is known.
func (b *base) learn(o origin) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o.since != b.now.since {
		return
	}
	o.known, o.seen, o.most = true, max(o.seen, b.now.seen), max(o.most, b.now.most)
	if b.now.known && b.now.last == o.last && o.version-b.now.version < 0 {
		b.now.seen, b.now.most = o.seen, o.most
		return
	}
	b.now = o
}

// saw takes in a transaction that was done with a base, what it may have made of that, and the greatest number that
// came of it.
func (b *base) saw(o origin, zxid int64, raised bool, most backend.Token) {
	o.seen = max(o.seen, zxid)
	b.mu.Lock()
	if b.now.most = max(most, b.now.most); o.since == b.now.since {
		b.now.seen = max(o.seen, b.now.seen)
	}
	b.mu.Unlock()
	if raised {
		o.version = following(o.version)
		b.learn(o)
	}
}

// load asks the servers for the base if it is not known, or where a floor is not below the next token as far as is
// known: others may have raised it, or done much, since.
func (b *base) load(ctx context.Context, s *session, floor backend.Token) error {
	for {
		o := b.state()
		if o.known && floor < o.token(o.seen+1) {
			return nil
		}
		if o.known {
			stat, err := s.write(ctx)
			if err != nil {
				return err
			}
			b.saw(o, stat.Mzxid, false, 0)
		}
		_, err := together(ctx, s, "base", o.known, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, b.find(ctx, s)
		})
		if err != nil || o.known {
			return err
		}
	}
}

// write is touch, and makes what is missing.
func (s *session) write(ctx context.Context) (stat *zk.Stat, err error) {
	err = s.ensured(ctx, func() (err error) {
		stat, err = s.touch(ctx)
		return err
	})
	return stat, err
}

// find reads the base, and anchors it if the process has just come to the servers.
func (b *base) find(ctx context.Context, s *session) error {
	for {
		o, clock := b.state(), int64(0)
		if o.seen == 0 {
			stat, err := s.write(ctx)
			if err != nil {
				return err
			}
			o.seen, clock = stat.Mzxid, stat.Mtime*1000
		}
		w, err := s.readBase(ctx)
		if err != nil {
			return err
		}
		if w.last == "" && clock == 0 { // deleted since it was connected to
			b.forget()
			continue
		}
		var guard bool
		o.version, o.last = w.version, w.last
		if o.add, guard = w.anchor(o, clock); o.add == w.add && w.last != "" {
			b.learn(o)
			return nil
		}
		var ops []any
		if w.last == "" {
			o.last = fmt.Sprintf("last-%016x", rand.Uint64())
			ops = append(ops, &zk.CreateRequest{Path: s.st.at.tokens + "/" + o.last, Acl: s.st.acl})
		} else if guard {
			ops = append(ops, &zk.CheckVersionRequest{Path: s.st.at.tokens + "/" + o.last, Version: w.granted})
		}
		if b.state().since != o.since { // the connection broke: what was read may be of before an election
			continue
		}
		if _, err = s.multi(ctx, append(o.set(s.st.at), ops...)...); err == nil {
			o.version = following(o.version)
			b.learn(o)
			return nil
		}
		if !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
}

// set are the operations that set the base, unless somebody else did since. Versions are counted in 32 bits and wrap;
// nobody ever sees -1, which would stand for any.
func (o origin) set(at places) []any {
	data := fmt.Appendf(nil, "%d %s", o.add, o.last)
	ops := []any{&zk.SetDataRequest{Path: at.tokens, Data: data, Version: o.version}}
	if o.version == -2 {
		ops = append(ops, &zk.SetDataRequest{Path: at.tokens, Data: data, Version: -1})
	}
	return ops
}

// keep are the operations that make sure of the base, which was raised or not.
func (o origin) keep(at places, raised bool) []any {
	if raised {
		return o.set(at)
	}
	return []any{&zk.CheckVersionRequest{Path: at.tokens, Version: o.version}}
}

// following is the version of the base's node once it was set.
func following(version int32) int32 {
	if version == -2 {
		return 0
	}
	return version + 1
}

// written is what the two nodes have.
type written struct {
	add      backend.Token
	version  int32
	at, time int64  // the zxid, and by the clock in µs when
	last     string // the second node; empty: nobody has written a base
	newest   int64  // the zxid of the last grant
	granted  int32  // that node's version
}

func (s *session) readBase(ctx context.Context) (w written, err error) {
	var n node
	if err := s.ensured(ctx, func() (err error) {
		n, err = get(ctx, s, s.st.at.tokens)
		return err
	}); err != nil {
		return w, err
	}
	w = written{version: n.stat.Version, at: n.stat.Mzxid, time: n.stat.Mtime * 1000}
	if len(n.data) == 0 {
		return w, nil
	}
	add, last, _ := strings.Cut(string(n.data), " ")
	w.add, err = strconv.ParseInt(add, 10, 64)
	if err != nil || !isToken(w.add+stride*w.at) || !strings.HasPrefix(last, "last-") {
		return w, backend.Invalid("the node %s does not hold what makes tokens but something that another "+
			"program put there", s.st.at.tokens)
	}
	w.last = last
	n, err = get(ctx, s, s.st.at.tokens+"/"+last)
	switch {
	case errors.Is(err, zk.ErrNoNode): // somebody has deleted it: the base is made anew
		w.last, err = "", nil
	case err == nil:
		w.newest, w.granted = n.stat.Mzxid, n.stat.Version
	}
	return w, err
}

// most is the greatest number that was granted or reserved, or that a later one is to exceed.
func (w written) most() backend.Token { return w.add + stride*max(w.at, w.newest) + stride - 1 }

func isToken(t backend.Token) bool { return t > 0 && t <= maxToken }

// anchor returns what the base is to be for all transactions after the one that a process has seen, at the clock, in
// µs: so that their tokens are above all that were, and not behind the clock, for the servers may have lost those.
// guard: there must have been no grant meanwhile.
func (w written) anchor(o origin, clock int64) (add backend.Token, guard bool) {
	if clock > maxClock {
		clock = 0
	}
	add = w.add
	least := max(clock, 1) - stride*o.seen
	switch age := clock - w.time; {
	case w.last == "":
		add = least
	case w.at > o.seen && age <= 0: // by others, since
	case epoch(w.at) != epoch(o.seen):
		add, guard = max(least, w.most()+1-stride*o.seen), true
	case age < 0 || age >= anchorEvery.Microseconds():
		add = max(add, least)
	}
	return max(add, o.most+1-stride*(o.seen+1)), guard
}

// exceed puts the base so that the next token exceeds a floor, and reports whether it has to. A request's floor may not
// be far ahead.
func (o *origin) exceed(floor backend.Token, far bool, clock int64) (raised bool, err error) {
	if clock > maxClock {
		clock = 0
	}
	next := o.token(o.seen + 1)
	want := max(next, floor+1)
	if raised = want > next; raised {
		if err := backend.CheckFloor(floor, max(next, clock)); err != nil && !far {
			return false, err
		}
		want = max(want, clock+floorAhead)
	}
	if want > maxToken-stride {
		return false, backend.Invalid("no token is left: the next one is %d, and 2^53-1 is the greatest", want)
	}
	o.add += want - next
	return raised, nil
}

// clock estimates the clock of the servers, in microseconds, from their answers: it is never ahead
// of the clock of the one that gave the last. Without an answer it is 0.
type clock struct {
	mu   sync.Mutex
	at   backend.Instant
	said int64
}

// heard takes in the time that a server gave to a change, in milliseconds.
func (c *clock) heard(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.said = backend.Now(), ms*1000
}

// now is the estimate.
func (c *clock) now() (us int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() {
		return 0
	}
	return c.said + c.at.Elapsed().Microseconds()
}

// record is what a holder's node has, as JSON. Its token is made of that base and of the transaction that made the
// node; a reader that joined others has theirs.
type record struct {
	Base  backend.Token `json:"base"` // 0: none
	Token backend.Token `json:"token,omitempty"`
	Both  string        `json:"both,omitempty"` // the migration of a holder in backend.PhaseBoth
	Owner string        `json:"owner"`
}

// readRecord reads the record of a node, with its token; what is none is empty.
func readRecord(n node) (r record, ok bool) {
	err := json.Unmarshal(n.data, &r)
	if r.Token == 0 && r.Base != 0 {
		r.Token = origin{add: r.Base}.token(n.stat.Czxid)
	}
	if err != nil || !isToken(r.Token) {
		return record{}, false
	}
	return r, true
}

// passing is what a lock's node has, as JSON. A release leaves there for the next in the queue whose it
// was; a reader that has a token of its own beside others, for its floor, leaves the base of that for all who join
// later.
type passing struct {
	Nonce string         `json:"nonce,omitempty"`
	Base  *backend.Token `json:"base,omitempty"`
}

// readPassing reads one; what is none says nothing. era is 0 if no reader has left one.
func readPassing(n node) (p passing, era backend.Token) {
	if json.Unmarshal(n.data, &p) != nil {
		return passing{}, 0
	}
	if p.Base != nil {
		era = origin{add: *p.Base}.token(n.stat.Mzxid)
	}
	return p, era
}

// encoded is a record or a passing as a node has it.
func encoded(v any) []byte {
	data, _ := json.Marshal(v) // of strings and numbers: never fails
	return data
}
