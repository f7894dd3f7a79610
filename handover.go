package fencelock

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/meant"
)

// Within one process a lock goes from one holder to the next in line without a word to the store: the store sees
// one hold, whose tokens were reserved with its grant. Another process that waits is kept waiting no longer than
// passOnFor for it, and so is the deadline of a lease that is passed on no nearer than that.
const (
	passOnFor  = 3 * time.Millisecond // from the store's grant
	passOnMost = 1023                 // times
	// A grant that took longer to come is not passed on: a process that was stopped before it came would
	// pass on a lock, and tokens, that the store may have forgotten and granted to others since.
	passOnWord = 100 * time.Millisecond // from the request that the store answered with it

	// A hold that the store has had for so long is not passed on any more, by any process.
	settleFor   = passOnWord + 2*passOnFor
	settleLooks = 4
)

// disinherit sends the heir of h, if it has one, to the store: h may not be passed on any more.
func (l *Locker) disinherit(h *hold) {
	if h.Reserved == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.lines[h.Name]; q != nil && q.holder == h && q.first != nil && q.first.heir {
		q.first.heir = false
		q.first.passed <- nil
	}
}

// settle returns when the holder of a lock, as the store sees it, passes it on no more: what is broken then is not
// handed out once more, under a number from before the Break. A lock that changes hands at each look is left as it is.
// Where ctx says which hold is meant, any other is a *meant.GoneError.
func (l *Locker) settle(ctx context.Context, name string) error {
	want, one := meant.Of(ctx)
	var seen Token
	for range settleLooks {
		info, err := l.inspect(ctx, name)
		switch {
		case backend.Final(err) && !one:
			return nil // Break itself says what is wrong
		case err != nil:
			return err
		}
		token := info.Token
		kept := l.keep(name, token)
		l.show(&info)
		switch {
		case one && (info.Held != want.Held || info.Token != want.Token):
			return &meant.GoneError{Now: info}
		case kept, !info.Held, token == 0, token == seen:
			return nil
		}
		seen = token
		select {
		case <-time.After(settleFor):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// keep makes the holder of this Locker, if the store granted the lock to it with this token, keep
// the lock to itself. It reports whether there is one.
func (l *Locker) keep(name string, token Token) bool {
	for {
		l.mu.Lock()
		var h *hold
		if q := l.lines[name]; q != nil {
			h = q.holder
		}
		l.mu.Unlock()
		if h == nil || h.bh.Token != token {
			return false
		}
		h.mu.Lock() // it may be passing the lock on at this moment
		h.kept.Store(true)
		passed := h.next != nil
		h.mu.Unlock()
		if !passed {
			l.disinherit(h)
			return true
		}
	}
}

// passable reports whether h is one that may be passed on, if it is so soon enough.
func (h *hold) passable() bool { return h.Reserved > 0 && h.sharable() }

// sharable reports whether h is the engine's to give to others too: nothing of it is its holder's alone.
func (h *hold) sharable() bool {
	return h.set.maxHold == 0 && h.set.minHold == 0 && !h.handled.Load() && !h.kept.Load()
}

// heirs is for how long yet somebody may wait for h to be passed on.
func (h *hold) heirs(now time.Time) time.Duration {
	if !h.passable() {
		return 0
	}
	return h.fresh.Time().Add(passOnFor).Sub(now)
}

// await waits until the holder passes the lock on to p: nil if it does not, and the store is to be asked.
func (l *Locker) await(ctx context.Context, name string, p *place) *Lease {
	if p.passed == nil {
		return nil
	}
	select { // it may have come before this goroutine ran
	case le := <-p.passed:
		return le
	default:
	}
	l.mu.Lock()
	h := l.lines[name].holder
	l.mu.Unlock()
	if h != nil {
		select {
		case le := <-p.passed:
			return le
		case <-h.ending():
		case <-time.After(h.heirs(time.Now())):
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	mine := p.heir
	p.heir = false
	l.mu.Unlock()
	if mine {
		return nil
	}
	return <-p.passed // it was passed on just now, or will not be
}

// heir returns the place to which h may be passed on, or nil. That place stops being the heir.
func (l *Locker) heir(h *hold) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.lines[h.Name]
	if q == nil || q.holder != h || q.first == nil || !q.first.heir {
		return nil
	}
	p := q.first
	if !p.set.suits(h) {
		return nil
	}
	p.heir = false
	return p
}

// suits reports whether h is as somebody with these settings wants it, under its next number.
func (s *settings) suits(h *hold) bool {
	return s.mode == h.Mode && s.ttl == h.set.ttl && s.grace == h.set.grace && s.owner == h.set.owner &&
		s.manual == h.set.manual && s.maxHold == 0 && s.minHold == 0 && s.floor <= h.Token
}

// readAlong returns another lease on the hold of a reader of this process, if the store has granted it just now:
// then many readers are one to the store, and a writer elsewhere waits for no newcomers after passOnFor.
func (l *Locker) readAlong(m *mutex) *Lease {
	if m.set.mode != Reader {
		return nil
	}
	l.mu.Lock()
	h := l.lines[m.name].holder
	l.mu.Unlock()
	if h == nil || !m.set.suits(h) || m.set.floor >= h.Token || !h.sharable() || h.fresh.Elapsed() >= passOnFor {
		return nil
	}
	if m.l.set.observer != nil {
		h.mu.Lock()
		shown := h.shown
		h.mu.Unlock()
		if !shown { // Joined may not come before Acquired
			return nil
		}
	}
	return h.join(true)
}

// passLocked ends le, the last lease on h, by giving the lock to the next in line of this process. It returns the lease
// of that one and its place, for passed; nil: ask the store. h.mu is held, and the turn to unlock is the caller's.
func (h *hold) passLocked(le *Lease) (*Lease, *place) {
	now := backend.Now()
	if h.state != held || h.renewing.taken || !h.passable() ||
		now.Sub(h.fresh) >= passOnFor || now.Sub(h.asked) >= h.span {
		return nil, nil
	}
	p := h.l.heir(h)
	if p == nil {
		return nil, nil
	}
	next := h.successor(p, now)
	h.next, le.released, h.sure = next.h, true, true
	h.endLocked(ErrReleased)
	return next, p
}

// passed tells the old holder and then the new one.
func (h *hold) passed(next *Lease, p *place) {
	h.ended()
	h.l.schedule.plan(false, next.h)
	p.passed <- next
}

// successor makes the hold that follows on h, and its lease: the same to the store, with the next token. h.mu is held.
func (h *hold) successor(p *place, now backend.Instant) *Lease {
	next := &hold{
		Request: h.Request, Grant: h.Grant, bh: h.bh,
		l: h.l, route: h.route, set: p.set,
		granted: now.Time(), fresh: h.fresh,
		asked: h.asked, span: h.span, state: held,
	}
	next.Token, next.Reserved = h.Token+1, h.Reserved-1
	le := next.first()
	next.mu.Lock() // the timer may fire at once
	defer next.mu.Unlock()
	next.armLocked(now)
	h.l.remember(next, nil)
	return le
}

// passedOn puts the token of the present holder in: the store knows the token of the first one.
func (l *Locker) passedOn(info *Info) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.lines[info.Name]; q != nil && q.holder != nil && q.holder.bh.Token == info.Token {
		info.Token = q.holder.Token
	}
}
