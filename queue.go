package fencelock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// line is what goes on with one name inside this process. The first caller of Lock is with the store, or waits
// for a lock that is passed on to it; the others wait behind it in order. So one process is one waiter at the
// store, however many goroutines wait. A line is there while somebody holds the lock or wants it.
type line struct {
	holder *hold    // the last hold of this process that has not ended
	first  *place   // nil: nobody
	lead   place    // of a first one that found the line empty
	behind []*place // in order
}

// place is a caller's place in a line.
type place struct {
	set     *settings
	turn    chan struct{} // closed when it is first, or
	err     error         // has been turned away
	reserve int           // how many tokens it asks for

	passed chan *Lease // of size 1, if there was a holder that may pass the lock on when it became first
	heir   bool        // the holder still may
}

// queue takes a place in the line of m's name and returns when it is first, or
// with ctx's error. After a nil error, which does not mean that ctx goes on, it leaves once: with
// remember if it is granted the lock, else with leave.
func (l *Locker) queue(ctx context.Context, m *mutex) (*place, error) {
	l.mu.Lock()
	q := l.lineLocked(m.name)
	if q.first == nil {
		q.lead = place{set: m.set}
		q.firstLocked(&q.lead)
		l.mu.Unlock()
		return &q.lead, nil
	}
	p := &place{set: m.set, turn: make(chan struct{})}
	q.behind = append(q.behind, p)
	l.mu.Unlock()
	select {
	case <-p.turn:
		return p.come()
	case <-ctx.Done():
	}
	if !l.giveUp(q, p) {
		return p.come() // it was given the turn just now, and perhaps the lock with it
	}
	outage := m.route.caller.Outage(m.name)
	if outage != nil {
		outage = backend.Unavailable(outage)
	}
	return nil, ctxError(ctx, true, outage)
}

// come is the end of the wait in line: p's turn has come, or it was turned away.
func (p *place) come() (*place, error) {
	if p.err != nil {
		return nil, p.err
	}
	return p, nil
}

// turnAway ends the wait of all behind the first in line. The first has waited for a store that is down
// for as long as any caller is to; the others would do the same one after the other. If the store is too
// slow for its TTL, it may do for a caller with a longer one.
func (l *Locker) turnAway(m *mutex, err error) {
	slow := errors.As(err, new(lateGrant))
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.lines[m.name]
	q.behind = slices.DeleteFunc(q.behind, func(p *place) bool {
		if slow && p.set.ttl > m.set.ttl {
			return false
		}
		p.err = err
		close(p.turn)
		return true
	})
}

// giveUp takes p out of a line; false if it does not stand behind anybody any more.
func (l *Locker) giveUp(q *line, p *place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(q.behind, p)
	if i >= 0 {
		q.behind = slices.Delete(q.behind, i, i+1)
	}
	return i >= 0
}

// leave gives the turn of the first in line to the next one.
func (l *Locker) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextLocked(name, l.lines[name])
}

// nextLocked gives the turn to the next in line. l.mu is held.
func (l *Locker) nextLocked(name string, q *line) {
	q.first = nil
	if len(q.behind) > 0 {
		p := q.behind[0]
		q.behind = q.behind[1:]
		q.firstLocked(p)
		close(p.turn)
	}
	l.forgetLineLocked(name, q)
}

// firstLocked makes p the first in line: the heir of the holder, if there is one that may pass the
// lock on. Locker.mu is held.
func (q *line) firstLocked(p *place) {
	q.first = p
	if q.holder != nil || len(q.behind) > 0 { // the sign that others will want the lock soon after it
		p.reserve = passOnMost
	}
	q.wantLocked()
	if q.holder != nil && q.holder.Mode == p.set.mode && q.holder.heirs(time.Now()) > 0 {
		p.heir, p.passed = true, make(chan *Lease, 1)
	}
}

// lined reports whether somebody of this process waits for m's name, or is locking it in another way than beside m.
func (l *Locker) lined(m *mutex) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.lines[m.name]
	if q == nil || q.first == nil {
		return false
	}
	return m.set.mode == Exclusive || m.set.mode != q.first.set.mode || len(q.behind) > 0
}

// lineLocked returns the line of a name; l.mu is held.
func (l *Locker) lineLocked(name string) *line {
	q := l.lines[name]
	if q == nil {
		q = &line{}
		l.lines[name] = q
	}
	return q
}

// forgetLineLocked lets a line go if it is empty; l.mu is held.
func (l *Locker) forgetLineLocked(name string, q *line) {
	if q.first == nil && q.holder == nil {
		delete(l.lines, name)
	}
}

// wantedEvery is the pause between looks at who waits elsewhere.
const wantedEvery = time.Second

// Wanted returns a channel that is closed when another client waits for the lock: within about a second,
// and at once for an exclusive lease that is wanted in this process. A holder whose work can be
// interrupted lets go then. The channel stays closed if the waiters give up; a TryLock does not wait.
// Once asked for, it costs a look at the store each second while the lease is held. It stays open after
// the end of the lease, and if the store cannot tell waiters (Info.Waiters is -1).
func (le *Lease) Wanted() <-chan struct{} {
	h, l := le.h, le.h.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.wanted != nil {
		return h.wanted
	}
	h.wanted = make(chan struct{})
	if q := l.lines[h.Name]; q != nil && q.holder == h {
		q.wantLocked()
	}
	if held := h.place <= len(l.holds) && l.holds[h.place-1] == h; held && !h.isWanted {
		l.wants[h] = true
		l.armWantsLocked()
	}
	return h.wanted
}

// wantLocked tells the holder if somebody of this process wants the lock. Locker.mu is held.
func (q *line) wantLocked() {
	if h := q.holder; h != nil && q.first != nil && h.Mode == Exclusive {
		h.wantLocked()
	}
}

// wantLocked closes what Wanted has returned. Locker.mu is held.
func (h *hold) wantLocked() {
	if h.wanted != nil && !h.isWanted {
		h.isWanted = true
		close(h.wanted)
		delete(h.l.wants, h)
	}
}

// armWantsLocked plans the next look, unless one is planned or under way. l.mu is held.
func (l *Locker) armWantsLocked() {
	if l.wanting || l.closing.Load() || len(l.wants) == 0 {
		return
	}
	l.wanting = true
	time.AfterFunc(wantedEvery, l.lookWanted)
}

// lookWanted asks the store for waiters of the locks that Wanted was called for. One round takes 2 s at the most, and
// poolHangs for each poolMost looks that hang; the next one is planned at its end.
func (l *Locker) lookWanted() {
	l.mu.Lock()
	if l.closing.Load() {
		l.mu.Unlock()
		return
	}
	of := map[string][]*hold{}
	for h := range l.wants {
		of[h.Name] = append(of[h.Name], h)
	}
	l.schedule.flying.Add()
	l.mu.Unlock()
	defer l.schedule.flying.Done()
	asked := slices.Collect(maps.Values(of))
	atOnce(len(asked), func(i int) {
		ctx, cancel := context.WithTimeout(l.ctx, 2*wantedEvery) // its own: a look that hangs takes nobody's time
		defer cancel()
		one := asked[i][0]
		if info, err := one.route.caller.Inspect(ctx, one.Name); err == nil && info.Waiters > 0 {
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, h := range asked[i] {
				if l.wants[h] {
					h.wantLocked()
				}
			}
		}
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanting = false
	l.armWantsLocked()
}
