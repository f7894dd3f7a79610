package fencelock

import (
	"context"
	"slices"
)

// line is what goes on with one name inside this process. The first caller of Lock is with the store, or waits
// for a lock that is passed on to it; the others wait behind it in order. So one process is one waiter at the
// store, however many goroutines wait. A line is there while somebody holds the lock or wants it.
type line struct {
	holder *hold    // the last hold of this process that has not ended
	first  *place   // nil: nobody
	lead   place    // that of a first who did not stand behind anybody
	behind []*place // in order
}

// place is a caller's place in a line.
type place struct {
	set  *settings
	turn chan struct{} // closed when it is first, or
	err  error         // has been turned away

	passed chan *Lease // of size 1, if there was a holder who may pass the lock on when it became first
	heir   bool        // the holder still may
}

// queue takes a place in the line of m's name and returns when it is first, or
// with ctx's error. After a nil error, which does not mean that ctx goes on, leave must be called once.
func (l *Locker) queue(ctx context.Context, m *mutex) (*place, error) {
	l.mu.Lock()
	q := l.lineLocked(m.name)
	if q.first == nil {
		q.lead = place{set: m.set}
		q.first = &q.lead
		q.wantLocked()
		l.inheritLocked(q)
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
	return nil, ctxError(ctx, true, nil)
}

// come is the end of the wait in line: p's turn has come, or it was turned away.
func (p *place) come() (*place, error) {
	if p.err != nil {
		return nil, p.err
	}
	return p, nil
}

// turnAway ends the wait of all who stand behind the first in line. It has waited for a store that
// is down for as long as anybody is to; they would do the same one after the other.
func (l *Locker) turnAway(name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.lines[name]
	for _, p := range q.behind {
		p.err = err
		close(p.turn)
	}
	q.behind = nil
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

// leave gives the turn to the next in line.
func (l *Locker) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.lines[name]
	q.first = nil
	if len(q.behind) > 0 {
		q.first, q.behind = q.behind[0], q.behind[1:]
		l.inheritLocked(q)
		close(q.first.turn)
	}
	l.forgetLineLocked(name, q)
}

// lined reports whether somebody in this process is locking name or waits for it.
func (l *Locker) lined(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.lines[name]
	return q != nil && q.first != nil
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
