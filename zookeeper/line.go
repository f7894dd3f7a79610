package zookeeper

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// What begins the name of a node under a lock's node: of holders, and of waiters. The nonce follows, and then
// numbers: of a permit its limit and slot; of a waiter for a permit the limit; and of a waiter at last the number
// that ZooKeeper gave it.
const (
	heldMark = "held-"
	readMark = "read-"
	permMark = "perm-"

	waitMark     = "wait-"
	waitReadMark = "waitread-"
	waitPermMark = "waitperm-"

	nonceLen = 32
)

// entry is a holder or waiter of a lock, as the name of its node says.
type entry struct {
	node   string
	nonce  string
	ask    *backend.Request // its Mode and Limit
	waits  bool
	number int32 // of a waiter
	slot   int   // of a permit that holds
}

// parse reads the name of a node; false: it is not ours.
func parse(node string) (e entry, ok bool) {
	mark, rest, _ := strings.Cut(node, "-")
	mark += "-"
	if len(rest) < nonceLen {
		return e, false
	}
	e.node, e.nonce, e.ask = node, rest[:nonceLen], &backend.Request{}
	rest = rest[nonceLen:]
	var limit, slot, number int64
	switch mark {
	case heldMark:
		return e, rest == ""
	case readMark:
		e.ask.Mode = backend.Reader
		return e, rest == ""
	case permMark:
		e.ask.Mode, ok = backend.Permit, numbers(rest, &limit, &slot) && slot >= 0 && slot < limit
	case waitMark:
		e.waits, ok = true, numbers(rest, &number)
	case waitReadMark:
		e.waits, e.ask.Mode, ok = true, backend.Reader, numbers(rest, &number)
	case waitPermMark:
		e.waits, e.ask.Mode, ok = true, backend.Permit, numbers(rest, &limit, &number) && limit > 0
	}
	e.slot, e.number, e.ask.Limit = int(slot), int32(number), int(limit)
	return e, ok && limit <= backend.MostPermits && int64(int32(number)) == number
}

// numbers reads numbers, each behind a dash. The last one may be negative.
func numbers(text string, into ...*int64) bool {
	for i, n := range into {
		one, ok := strings.CutPrefix(text, "-")
		if text = ""; i < len(into)-1 {
			if end := strings.IndexByte(one, '-'); end >= 0 {
				one, text = one[:end], one[end:]
			}
		}
		var err error
		if *n, err = strconv.ParseInt(one, 10, 64); err != nil || !ok {
			return false
		}
	}
	return true
}

// line is the holders and the queue of a lock, read from the names of the nodes under it.
type line struct {
	holds   []entry // all of one mode; one at the most if that is backend.Exclusive
	waiters []entry // in order
	strange string  // a node that is not ours, if there is one
	stat    zk.Stat // of the lock's node: it is another one once anybody has come or gone
	read    time.Time
}

// readLine reads the children of a lock's node.
func readLine(children []string) line {
	var l line
	for _, c := range children {
		e, ok := parse(c)
		switch {
		case !ok:
			l.strange = c
		case e.waits:
			l.waiters = append(l.waiters, e)
		default:
			l.holds = append(l.holds, e)
		}
	}
	// ZooKeeper's numbers count up to 2^31 and go on with the least negative one: they are compared by
	// their difference.
	slices.SortFunc(l.waiters, func(a, b entry) int { return int(a.number - b.number) })
	return l
}

// held is the node of the holder that is alone; empty if there is none.
func (l line) held() string {
	if len(l.holds) == 1 && l.holds[0].ask.Mode == backend.Exclusive {
		return l.holds[0].node
	}
	return ""
}

// of are those with a nonce.
func (l line) of(nonce string) (es []entry) {
	for _, e := range slices.Concat(l.holds, l.waiters) {
		if e.nonce == nonce {
			es = append(es, e)
		}
	}
	return es
}

// at is the place of a waiter in the queue; -1 if it has none.
func (l line) at(node string) int {
	return slices.IndexFunc(l.waiters, func(e entry) bool { return e.node == node })
}

// soon reports whether all claims in front of a place in the queue may hold now, and the claim there beside them.
func (l line) soon(r *backend.Request, at int) bool {
	there := make([]*backend.Request, 0, len(l.holds)+at)
	for _, h := range l.holds {
		there = append(there, h.ask)
	}
	for _, w := range l.waiters[:at] {
		if !w.ask.Admits(there) {
			return false
		}
		there = append(there, w.ask)
	}
	return r.Admits(there)
}

// due reports whether the first in the queue may hold, and has not taken the lock yet.
func (l line) due() bool { return len(l.waiters) > 0 && l.soon(l.waiters[0].ask, 0) }

// slot is the least that no permit has.
func (l line) slot() (slot int) {
	for slices.ContainsFunc(l.holds, func(h entry) bool { return h.slot == slot }) {
		slot++
	}
	return slot
}

// turn is how a claim becomes a holder.
type turn struct {
	beside  string        // the node of the reader that it joins; and
	version int32         // of the lock's node, which tells of a later era; and
	era     backend.Token // with what token; 0: one of its own
	slot    int           // of a permit
}

// turn is the turn of a claim at a place in the queue; nil if it has to wait. The era of the reader that it joins is in
// that one's node.
func (l line) turn(r *backend.Request, at int) *turn {
	if l.blocked(r, at) != "" || !l.soon(r, 0) {
		return nil
	}
	t := &turn{}
	switch {
	case r.Mode == backend.Permit:
		t.slot = l.slot()
	case r.Mode == backend.Reader && len(l.holds) > 0:
		t.beside, t.version = l.holds[0].node, l.stat.Version
	}
	return t
}

// joins gives a reader the token of the one that it joins, or the one of which the lock's node tells: a reader with a
// floor may have left, and those from before it not. If neither is above the reader's floor it has a token of its own.
func (t *turn) joins(r *backend.Request, one, told backend.Token) {
	if t.era = max(one, told); r.Floor >= t.era {
		t.era = 0
	}
}

// blocked is the node that keeps a claim from its turn at a place in the queue, whoever holds; empty if none does.
// A reader passes readers, but for the first while that has yet to begin an era.
func (l line) blocked(r *backend.Request, at int) string {
	if i := slices.IndexFunc(l.holds, func(h entry) bool { return h.nonce == r.Nonce }); i >= 0 {
		return l.holds[i].node // of a session of its own that is over: it goes by itself
	}
	front := l.waiters[:at]
	if at == 0 {
		return ""
	}
	if r.Mode != backend.Reader {
		return front[at-1].node
	}
	for _, w := range slices.Backward(front) {
		if w.ask.Mode != backend.Reader {
			return w.node
		}
	}
	if len(l.holds) == 0 {
		return front[0].node
	}
	return ""
}

// front is the node that a claim which has to wait watches; empty if it watches the list.
func (l line) front(r *backend.Request, at int) string {
	front := l.blocked(r, at)
	if front == "" && (r.Mode != backend.Permit || l.holds[0].ask.Mode != backend.Permit) {
		front = l.holds[0].node // all have to go
	}
	return front
}
