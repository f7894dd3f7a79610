package file

import (
	"cmp"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	// claim is how long a waiter has to take a lock that is free for it.
	claim = 1600 * time.Millisecond
	// A mark outlives what the request could have got by this.
	markMore = 10 * time.Second
	// The most marks of a bucket of each kind; older ones make room.
	maxReleased  = 64
	maxAbandoned = 1024
	maxToken     = 1<<53 - 1
)

// state is what a bucket's file says. Times are nanoseconds of the shared clock.
type state struct {
	boot    string
	counter backend.Token // of the last grant
	gates   []gate
	clients []client
	entries []*entry // by prefix and name, ascending: each held or waited for
	marks   []mark   // in the order of their making
}

// entry is one name that is held or waited for.
type entry struct {
	prefix, name string
	hold         *hold // nil: free for the first of the queue
	free         int64 // since when, if it is free
	queue        []waiter
}

type hold struct {
	nonce, owner, ear string // ear: the socket file of the holder's process; may be empty
	both              string // the migration that it holds for in PhaseBoth; else empty
	token             backend.Token
	until             int64
}

type waiter struct {
	nonce, ear string
	until      int64 // it is taken for dead then, unless it looks again
}

// mark remembers a nonce that has ended, for requests that come late.
type mark struct {
	nonce    string
	released bool // by its holder: a repeated release is nil
	until    int64
}

func (st *state) search(prefix, name string) (int, bool) {
	return slices.BinarySearchFunc(st.entries, &entry{prefix: prefix, name: name}, (*entry).compare)
}

func (e *entry) compare(o *entry) int {
	return cmp.Or(cmp.Compare(e.prefix, o.prefix), cmp.Compare(e.name, o.name))
}

// find returns the entry of a name, or nil.
func (st *state) find(prefix, name string) *entry {
	if i, ok := st.search(prefix, name); ok {
		return st.entries[i]
	}
	return nil
}

// entry returns the entry of a name, which it makes if there is none.
func (st *state) entry(prefix, name string) *entry {
	i, ok := st.search(prefix, name)
	if !ok {
		st.entries = slices.Insert(st.entries, i, &entry{prefix: prefix, name: name})
	}
	return st.entries[i]
}

// next returns the token of a grant that happens now, and whether there is one.
func (st *state) next(floor backend.Token) (backend.Token, bool) {
	t := max(st.counter+1, time.Now().UnixMicro(), floor+1)
	return t, t > 0 && t <= maxToken
}

func (st *state) mark(nonce string, released bool, until int64) {
	if st.marked(nonce) == nil {
		st.marks = append(st.marks, mark{nonce, released, until})
	}
}

// marked returns the mark of a nonce, or nil.
func (st *state) marked(nonce string) *mark {
	for i := range st.marks {
		if st.marks[i].nonce == nonce {
			return &st.marks[i]
		}
	}
	return nil
}

// sweep forgets what nobody needs any more.
func (st *state) sweep(now int64) {
	st.entries = slices.DeleteFunc(st.entries, func(e *entry) bool {
		e.settle(now, "")
		return e.hold == nil && len(e.queue) == 0
	})
	st.clients = slices.DeleteFunc(st.clients, func(c client) bool { return c.until <= now })
	var released, abandoned int
	kept := st.marks[:0:0]
	for _, m := range slices.Backward(st.marks) {
		n, most := &abandoned, maxAbandoned
		if m.released {
			n, most = &released, maxReleased
		}
		if *n++; m.until > now && *n <= most {
			kept = append(kept, m)
		}
	}
	slices.Reverse(kept)
	st.marks = kept
}

// settle applies what time has done to the entry: it ends an expired hold, and
// drops waiters that are taken for dead, but not the nonce me, whose request is looking right
// now. It reports whether it changed anything.
func (e *entry) settle(now int64, me string) bool {
	changed := false
	if e.hold != nil && e.hold.until <= now {
		e.hold, e.free, changed = nil, e.hold.until, true
	}
	if e.hold == nil && len(e.queue) > 0 && e.queue[0].nonce != me && now >= e.free+int64(claim) {
		e.drop(e.queue[0].nonce, now)
		changed = true
	}
	for _, w := range slices.Clone(e.queue) {
		if w.until <= now && w.nonce != me {
			e.drop(w.nonce, now)
			changed = true
		}
	}
	return changed
}

// position returns the place of a nonce in the queue, or -1.
func (e *entry) position(nonce string) int {
	return slices.IndexFunc(e.queue, func(w waiter) bool { return w.nonce == nonce })
}

// drop takes a nonce out of the queue, and reports whether it was there. If it
// was its turn, the next one's begins.
func (e *entry) drop(nonce string, now int64) bool {
	i := e.position(nonce)
	if i < 0 {
		return false
	}
	e.queue = slices.Delete(e.queue, i, i+1)
	if i == 0 {
		e.free = now
	}
	return true
}

// clear frees the lock for the first of the queue.
func (e *entry) clear(now int64) { e.hold, e.free = nil, now }

// ours reports whether nonce holds the lock.
func (e *entry) ours(nonce string) bool { return e != nil && e.hold != nil && e.hold.nonce == nonce }

// heirs are the first two waiters of a lock that is free.
type heirs struct{ first, second waiter }

func (e *entry) heirs() heirs {
	var h heirs
	if e == nil || e.hold != nil {
		return h
	}
	if len(e.queue) > 0 {
		h.first = e.queue[0]
	}
	if len(e.queue) > 1 {
		h.second = e.queue[1]
	}
	return h
}

// info describes the entry without changing it.
func (e *entry) info(now int64) backend.Info {
	i := backend.Info{Name: e.name}
	if e.hold != nil && e.hold.until > now {
		i.Held, i.Owner, i.Token = true, e.hold.owner, e.hold.token
		i.ExpiresIn = time.Duration(e.hold.until - now)
	}
	for _, w := range e.queue {
		if w.until > now {
			i.Waiters++
		}
	}
	return i
}
