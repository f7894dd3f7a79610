package file

import (
	"maps"
	"math"
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
	holds []holder      // each admitted beside the others; none: free for the first of the queue
	era   backend.Token // the last token of the readers that hold; 0: none does
	freed int64         // when it came free
	queue []waiter
	moved bool // the first of the queue has not been told yet that it is that
}

type holder struct {
	nonce, owner string
	both         string // the migration that it holds for in PhaseBoth; else empty
	token        backend.Token
	until        int64
	way
	slot int64 // of a permit
}

type waiter struct {
	nonce, socket string // of its process; empty: it looks by itself
	until         int64  // it is taken for dead then, unless it looks again
	way
	called int64 // when its turn began; 0: not yet. An exclusive one's begins when the lock comes free
}

// way is how a claim wants its name.
type way struct {
	mode  backend.Mode
	limit int64 // of a permit
}

func wayOf(r *backend.Request) way {
	if r.Mode == backend.Permit {
		return way{r.Mode, int64(r.Limit)}
	}
	return way{mode: r.Mode}
}

func (w way) shared() bool { return w.mode != backend.Exclusive }

func (w way) request() *backend.Request {
	return &backend.Request{Mode: w.mode, Limit: int(w.limit)}
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
		return len(l.holds) == 0 && len(l.queue) == 0
	})
	maps.DeleteFunc(st.records, func(_ key, r record) bool { return r.over(st.now) })
	over := func(e ended) bool { return e.until <= st.now }
	st.released = slices.DeleteFunc(st.released, over)
	st.released = st.released[max(0, len(st.released)-maxReleased):]
	st.abandoned = slices.DeleteFunc(st.abandoned, over)
	st.abandoned = st.abandoned[max(0, len(st.abandoned)-maxAbandoned):]
}

// settle applies what time has done to the lock: it ends expired holds, and drops waiters that
// are taken for dead, but not the nonce me, which is asking right now. It reports whether it
// changed anything.
func (l *lock) settle(now int64, me string) bool {
	if l == nil {
		return false
	}
	expired := l.end(now, func(h holder) bool { return h.until <= now })
	late := "" // it has had its turn
	if len(l.holds) == 0 && len(l.queue) > 0 && now >= l.freed+int64(turn) && !l.queue[0].shared() {
		late = l.queue[0].nonce
	}
	return l.drop(now, func(w waiter) bool {
		over := w.nonce == late || w.called != 0 && now >= w.called+int64(turn)
		return w.nonce != me && (over || w.until <= now)
	}) || expired
}

// drop takes waiters out of the queue, and reports whether there were any. If it was the turn of
// one, the next one's begins.
func (l *lock) drop(now int64, dropped func(w waiter) bool) bool {
	if l == nil || len(l.queue) == 0 {
		return false
	}
	if dropped(l.queue[0]) {
		l.freed, l.moved = now, true
	}
	n := len(l.queue)
	l.queue = slices.DeleteFunc(l.queue, dropped)
	return len(l.queue) < n
}

// end ends holds, and reports whether there were any. An expired one has ended when its time was over.
func (l *lock) end(now int64, ended func(h holder) bool) bool {
	if l == nil {
		return false
	}
	n, last := len(l.holds), int64(math.MinInt64)
	l.holds = slices.DeleteFunc(l.holds, func(h holder) bool {
		over := ended(h)
		if over {
			last = max(last, min(now, h.until))
		}
		return over
	})
	if len(l.holds) == 0 {
		l.era = 0
	}
	if len(l.holds) == n {
		return false
	}
	l.freed = last
	return true
}

// find returns the hold of a nonce, or nil.
func (l *lock) find(nonce string, now int64) *holder {
	if l == nil {
		return nil
	}
	i := slices.IndexFunc(l.holds, func(h holder) bool { return h.nonce == nonce && h.until > now })
	if i < 0 {
		return nil
	}
	return &l.holds[i]
}

// served returns the claims that may have the lock now, up to the waiter me or the first one that may not: all its
// holders, and how many of the first waiters, which it is kept for.
func (l *lock) served(me string) (there []*backend.Request, n int) {
	there = l.there()
	for _, w := range l.queue {
		if w.nonce == me || !w.request().Admits(there) {
			break
		}
		there = beside(there, w.way)
		n++
	}
	return there, n
}

// there returns the holders of the lock.
func (l *lock) there() (all []*backend.Request) {
	for _, h := range l.holds {
		all = beside(all, h.way)
	}
	return all
}

// beside adds one to there. Those that are alike are one Request.
func beside(there []*backend.Request, w way) []*backend.Request {
	if n := len(there); n > 0 && wayOf(there[n-1]) == w {
		return append(there, there[n-1])
	}
	return append(there, w.request())
}

// admits reports whether c may have the lock now: beside all its holders and all waiters in front of c.
func (l *lock) admits(c *backend.Claim) bool {
	if l == nil {
		return true
	}
	there, n := l.served(c.Nonce)
	return (n == len(l.queue) || l.queue[n].nonce == c.Nonce) && c.Admits(there)
}

// wakeUp is a waiter that is to look, in some time.
type wakeUp struct {
	waiter
	in time.Duration
}

// serve begins the turn of all waiters at the head of the queue that may have the lock. It returns the waiters that are
// to look: those whose turn has just begun; the first one again, which may not have heard; one that has become the
// first, for the first looks more often; and the one behind them, when the first turn is over. The last one is returned
// too where it keeps out others that the holders would admit, for it may be dead: it looks at once if it was asked
// whether it lives. serve reports whether it has changed anything.
func (l *lock) serve(now int64) (wakes []wakeUp, changed bool) {
	if l == nil || len(l.queue) == 0 {
		return nil, false
	}
	_, n := l.served("")
	if n == 0 && l.moved {
		wakes = append(wakes, wakeUp{l.queue[0], 0})
	}
	l.moved = false
	for i := range l.queue[:n] {
		w := &l.queue[i]
		begins := w.shared() && w.called == 0
		if begins {
			w.called, changed = now, true
		}
		if begins || i == 0 {
			wakes = append(wakes, wakeUp{*w, 0})
		}
	}
	if n < len(l.queue) && (n > 0 || len(l.queue) > 1 && len(l.holds) > 0 && l.holds[0].shared()) {
		in := turn
		if n == 0 && l.queue[0].socket != "" && l.queue[0].until-now <= int64(turn) {
			in = 0
		}
		if left := time.Duration(l.turnEnd(now) - now); n > 0 && left > 0 {
			in = left
		}
		wakes = append(wakes, wakeUp{l.queue[n], in})
	}
	return wakes, changed
}

// turnEnd is when the first turn of the waiters that may have the lock is over.
func (l *lock) turnEnd(now int64) int64 {
	began := l.freed
	if w := l.queue[0]; w.shared() {
		if began = w.called; began == 0 {
			began = now
		}
	}
	return began + int64(turn)
}
