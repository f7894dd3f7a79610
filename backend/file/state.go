package file

import (
	"maps"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	// turn is how long a waiter has to take a lock that is free for it.
	turn = 1600 * time.Millisecond
	// endLife is how much longer an end is remembered than what it ended could have lasted.
	endLife = 10 * time.Second
	// The most ends of each kind that a bucket remembers; older ones make room.
	maxReleased  = 64
	maxAbandoned = 1024
)

// state is what a bucket's file says. Times are nanoseconds of the shared clock.
type state struct {
	at  backend.Instant // when it was read,
	now int64           // and by the shared clock

	boot    string
	counter backend.Token // of the last grant
	records map[key]record
	locks   map[key]*lock // each held or waited for
	// How claims have ended, for requests that come late: by their holders, whose repeated release
	// is nil, or otherwise. The oldest are first.
	released, abandoned []ended
}

// lock is one name that is held or waited for.
type lock struct {
	holder *holder // nil: free for the first of the queue
	freed  int64   // when it came free
	queue  []waiter
}

type holder struct {
	nonce, owner string
	both         string // the migration that it holds for in PhaseBoth; else empty
	token        backend.Token
	until        int64
}

type waiter struct {
	nonce, socket string // of its process; empty: it looks by itself
	until         int64  // it is taken for dead then, unless it looks again
}

type ended struct {
	nonce string
	until int64 // it is forgotten then
}

func newState(boot string, counter backend.Token) *state {
	return &state{boot: boot, counter: counter, records: map[key]record{}, locks: map[key]*lock{}}
}

// ended reports whether the claim of a nonce has ended.
func (st *state) ended(nonce string) bool {
	return has(st.released, nonce) || has(st.abandoned, nonce)
}

func has(es []ended, nonce string) bool {
	return slices.ContainsFunc(es, func(e ended) bool { return e.nonce == nonce })
}

// sweep forgets what nobody needs any more.
func (st *state) sweep() {
	maps.DeleteFunc(st.locks, func(_ key, l *lock) bool {
		l.settle(st.now, "")
		return l.holder == nil && len(l.queue) == 0
	})
	maps.DeleteFunc(st.records, func(_ key, r record) bool { return r.over(st.now) })
	over := func(e ended) bool { return e.until <= st.now }
	st.released = slices.DeleteFunc(st.released, over)
	st.released = st.released[max(0, len(st.released)-maxReleased):]
	st.abandoned = slices.DeleteFunc(st.abandoned, over)
	st.abandoned = st.abandoned[max(0, len(st.abandoned)-maxAbandoned):]
}

// settle applies what time has done to the lock: it ends an expired hold, and drops waiters that
// are taken for dead, but not the nonce me, which is asking right now. It reports whether it
// changed anything.
func (l *lock) settle(now int64, me string) bool {
	if l == nil {
		return false
	}
	expired := l.holder != nil && l.holder.until <= now
	if expired {
		l.free(l.holder.until)
	}
	late := "" // it has had its turn
	if l.holder == nil && len(l.queue) > 0 && now >= l.freed+int64(turn) {
		late = l.queue[0].nonce
	}
	return l.drop(now, func(w waiter) bool {
		return w.nonce != me && (w.nonce == late || w.until <= now)
	}) || expired
}

// drop takes waiters out of the queue, and reports whether there were any. If it was the turn of
// one, the next one's begins.
func (l *lock) drop(now int64, dropped func(w waiter) bool) bool {
	if l == nil || len(l.queue) == 0 {
		return false
	}
	if dropped(l.queue[0]) {
		l.freed = now
	}
	n := len(l.queue)
	l.queue = slices.DeleteFunc(l.queue, dropped)
	return len(l.queue) < n
}

// free frees the lock for the first of the queue.
func (l *lock) free(now int64) { l.holder, l.freed = nil, now }

// heldBy reports whether nonce holds the lock.
func (l *lock) heldBy(nonce string, now int64) bool {
	return l != nil && l.holder != nil && l.holder.nonce == nonce && l.holder.until > now
}

// next returns the first two waiters of a lock that is free.
func (l *lock) next() []waiter {
	if l == nil || l.holder != nil {
		return nil
	}
	return slices.Clone(l.queue[:min(len(l.queue), 2)])
}
