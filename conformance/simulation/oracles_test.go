package simulation

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// tidy is how long something that nobody wants may stay in the store once all is well: the engine tries to undo it for
// 2 s at a time, with pauses of up to 1.5 s.
const tidy = 5 * time.Second

// hold is a lease that a program was given and trusts. w.mu guards it.
type hold struct {
	a        *acq
	le       *fencelock.Lease
	done     <-chan struct{} // of before, so that looking at it is not a look at the lease
	asked    ask
	granted  time.Time
	unlocked bool // it is not trusted any more: Unlock or Close was called
	handled  bool // its driver's handle was asked for
	passes   bool // its Unlock was nil, and the store has not heard of it
	closed   bool // its Locker was closed under it
	written  written
}

func (h *hold) isDone() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// trusts reports whether the program goes by the lease now.
func (h *hold) trusts() bool { return !h.unlocked && !h.isDone() }

// look checks every trusted lease; w.mu is held.
func (w *world) look() {
	byName := map[string]*hold{}
	kept := w.holds[:0]
	for _, h := range w.holds {
		if h.unlocked {
			continue
		}
		if h.isDone() {
			w.note("%s: done", h.a.id)
			continue
		}
		kept = append(kept, h)
		left := time.Until(h.le.Deadline())
		if left < 0 {
			w.violation("Done of %s is still open %v after its deadline", h.a.id, -left)
		}
		if most := h.asked.maxHold; most > 0 && h.le.Deadline().Sub(h.granted) > most {
			w.violation("the deadline of %s is %v after the grant, MaxHold is %v",
				h.a.id, h.le.Deadline().Sub(h.granted), most)
		}
		if h.a.excused != "" {
			if late := time.Since(h.a.endedAt); w.plan.temper == calm && late > revoked+500*time.Millisecond {
				w.violation("%s was %s %v ago and has not been told", h.a.id, h.a.excused, late)
			}
			continue
		}
		l := w.store.lock(h.a.name)
		switch {
		case l.holder != h.a || !time.Now().Before(l.expires) && w.flaw != neverExpires:
			w.violation("%s trusts its lease for another %v, and the store has "+
				"not got it (it ended: %q)", h.a.id, left, h.a.ended)
		case time.Until(l.expires) < left+h.asked.margin()+h.asked.grace:
			w.violation("%s trusts its lease for %v, with a margin of %v and %v of grace, and "+
				"the store keeps it for %v",
				h.a.id, left, h.asked.margin(), h.asked.grace, time.Until(l.expires))
		case h.le.Token() < l.token || h.le.Token() > l.token+backend.Token(h.a.reserved):
			w.violation("the lease of %s has token %d, the store %d", h.a.id, h.le.Token(), l.token)
		}
		if other := byName[h.a.name]; other != nil {
			w.violation("%s and %s both trust a lease of %q", other.a.id, h.a.id, h.a.name)
		}
		byName[h.a.name] = h
	}
	w.holds = kept
	w.lookShared()
	for _, l := range w.store.locks {
		if a := l.holder; a != nil {
			if most := a.applied.Add(a.r.TTL + a.r.Grace); l.expires.After(most) {
				w.violation("the store keeps %s for %v longer than TTL and grace", a.id, l.expires.Sub(most))
			}
			if a.ended != "" {
				w.violation("the store has the hold of %s again, which had ended: %q", a.id, a.ended)
			}
		}
	}
}

// granting is called before a becomes the holder.
func (w *world) granting(l *lock, a *acq) {
	now := time.Now()
	if l.holder != nil && l.holder != a {
		w.ended(l, "overwritten")
	}
	mine := now
	for _, p := range l.queue {
		if p.a == a {
			mine = p.since
		}
	}
	for _, p := range l.queue {
		if p.a != a && p.since.Before(mine) && now.Sub(p.seen) < deadFor && w.flaw != placeKept {
			w.violation("%s is granted the lock before %s, which has waited since %v",
				a.id, p.a.id, p.since.Sub(w.began))
		}
	}
	for _, h := range w.holds {
		if h.a.name == a.name && h.a != a && h.trusts() && h.a.excused == "" {
			w.violation("%s is granted the lock and %s has not been told that it lost it", a.id, h.a.id)
		}
	}
}

// granted is called when a has become the holder, with a new token.
func (w *world) granted(l *lock, a *acq) {
	if last := w.last[a.name]; l.token <= last {
		w.violation("%s is granted token %d after %d", a.id, l.token, last)
	}
	if l.token <= a.r.Floor {
		w.violation("%s is granted token %d, its floor is %d", a.id, l.token, a.r.Floor)
	}
	if l.token >= 1<<53 {
		w.violation("%s is granted token %d, which is above 2^53", a.id, l.token)
	}
	a.tokens = append(a.tokens, l.token)
	w.last[a.name] = max(l.token+backend.Token(a.reserved), w.last[a.name])
	w.everHeld[l.key] = true
}

// ended is called before a hold is taken out of the store.
func (w *world) ended(l *lock, why string) {
	a := l.holder
	if why == abandoned && time.Now().Before(a.kept) && !a.c.closing {
		w.violation("%s was lost, and is undone %v before its grace is over", a.id, time.Until(a.kept))
	}
	a.ended, a.endedAt = why, time.Now()
	w.lastEnd[l.key] = why
	w.note("store: the hold of %s ends: %s", a.id, why)
}

// refusal checks a "locked by another holder". w.mu is held.
func (w *world) refusal(a *acq, rep reply) {
	if rep.err != backend.ErrLocked || a.name == common {
		return
	}
	l := w.store.lock(a.name)
	if l.holder != nil && l.holder != a && l.holder.name == a.name {
		if late := time.Since(l.expires); late >= 0 {
			w.violation("%s was told that %q is locked, by %s whose time was over %v ago",
				a.id, a.name, l.holder.id, late)
		}
		return
	}
	for _, p := range l.queue {
		if p.a != a && p.a.name == a.name {
			return
		}
	}
	if a.r.Wait && l.claim == a {
		return
	}
	w.violation("%s was told that %q is locked, and nobody else has it or waits for it", a.id, a.name)
}

// wake tells a waiter that it is its turn.
func (w *world) wake(a *acq) {
	if w.flaw == wakesNobody {
		return
	}
	a.counts["wake"]++
	a.c.push(a.id+" wake", func() {
		w.mu.Lock()
		c := a.claim
		w.mu.Unlock()
		if c != nil {
			c.Wake(0)
			return
		}
		select {
		case a.wake <- struct{}{}:
		default:
		}
	})
}

// tell tells a holder that its lock was taken away.
func (w *world) tell(a *acq) {
	if w.plan.checks {
		return
	}
	a.c.push(a.id+" lost", func() { a.r.Lost(backend.ErrLost) })
}

// silent looks for waits that say nothing while the store does not answer; w.mu is held.
func (w *world) silent() {
	for _, a := range w.acqs {
		if w.plan.patient || !a.waits || !a.over.IsZero() || a.c.closing {
			continue
		}
		if quiet := time.Since(a.heard) - a.c.stood(a.heard); quiet > lookAll+core.Patience+2500*time.Millisecond {
			w.violation("%s waits for a store that has not answered for %v", a.id, quiet)
		}
	}
}

// leftBehind looks for what nobody wants any more; w.mu is held.
func (w *world) leftBehind() {
	unwanted := func(what string, a *acq) {
		if a.over.IsZero() || a.c.closing || a.excused != "" {
			return
		}
		since := a.over
		for _, at := range []time.Time{a.c.trouble, w.trouble} {
			if at.After(since) {
				since = at
			}
		}
		if left := time.Since(since) - a.c.stood(since); left > tidy {
			w.violation("%s of %s is still in the store %v after it was given up and all was well", what, a.id, left)
		}
	}
	g := w.store.group
	g.serve()
	for _, h := range g.shares {
		unwanted("the share", h.a)
		kept := claimed - time.Until(h.expires)
		if w.plan.temper == calm && h.pending && h.a.over.IsZero() && kept > 500*time.Millisecond {
			w.violation("%q was kept for %s for %v, which has not taken it", common, h.a.id, kept)
		}
	}
	for _, p := range g.queue {
		unwanted("the place in the queue", p.a)
	}
	for _, l := range w.store.locks {
		w.store.serve(l)
		if w.plan.temper == calm && l.claim != nil && l.claim.over.IsZero() &&
			time.Until(l.until) < claimed-500*time.Millisecond {
			w.violation("the lock was kept for %s for %v, which has not taken it",
				l.claim.id, claimed-time.Until(l.until))
		}
		if l.holder != nil && time.Now().Before(l.expires) {
			unwanted("the hold", l.holder)
		}
		for _, p := range l.queue {
			unwanted("the place in the queue", p.a)
			if limit := 2*w.plan.longest + deadFor + 10*time.Second; !p.a.over.IsZero() &&
				time.Since(p.a.over) > limit {
				w.violation("a dead waiter, %s, is in the queue after %v", p.a.id, time.Since(p.a.over))
			}
		}
	}
}

// afterwards checks what must be true when all is over.
func (w *world) afterwards() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look()
	for name, l := range w.store.locks {
		w.store.serve(l)
		if l.holder != nil {
			w.violation("%q is held by %s when all is over", name, l.holder.id)
		}
		for _, p := range l.queue {
			w.violation("%s waits for %q when all is over", p.a.id, name)
		}
	}
	w.store.group.serve()
	if g := w.store.group; len(g.shares)+len(g.queue) > 0 {
		w.violation("%d hold %q and %d wait for it when all is over", len(g.shares), common, len(g.queue))
	}
	for _, c := range w.clients {
		c.saw.afterwards(w)
	}
	w.passedAll()
}

// renewalWas checks that a renewal which was confirmed found the lock its own. w.mu is held.
func (w *world) renewalWas(a *acq, asked time.Time) {
	if a.ended != "" && a.endedAt.Before(asked) {
		w.violation("a renewal of %s was confirmed, and the lock had ended %v "+
			"before it was asked for: %q", a.id, asked.Sub(a.endedAt), a.ended)
	}
}

// lossWas checks that a loss with this reason was one. w.mu is held.
func (w *world) lossWas(a *acq, o ask, deadline time.Time, at time.Time, err error) {
	var lost *fencelock.LostError
	if !errors.As(err, &lost) {
		w.violation("%s was lost with error %v, want a LostError", a.id, err)
		return
	}
	w.note("%s: %v", a.id, err)
	switch lost.Reason {
	case fencelock.Expired:
		if (w.plan.temper == calm ||
			w.plan.temper == mild && w.plan.ttl >= 10*time.Second && !w.plan.patient) &&
			!o.manual && !a.unlocking {
			w.violation("%s expired, though it is renewed and all is well", a.id)
		}
		if w.plan.temper == hanging && w.plan.brief && !o.manual && !a.unlocking {
			w.violation("%s expired, though it is renewed and the store hung for less than a quarter of its TTL", a.id)
		}
		if at.Before(deadline) {
			w.violation("%s expired %v before its deadline", a.id, deadline.Sub(at))
		}
		if at.Sub(deadline) > late {
			w.violation("%s was said to have expired %v after its deadline", a.id, at.Sub(deadline))
		}
	case fencelock.MaxHold:
		if o.maxHold == 0 {
			w.violation("%s was lost by MaxHold, which it has not got", a.id)
		}
	case fencelock.Revoked:
		l := w.store.lock(a.name)
		if a.excused == "" && !a.c.closing && l.mine(a) {
			w.violation("%s was told that its lock was taken away, and it is still its own", a.id)
		}
	default:
		w.violation("%s was lost for a reason that this store has not got: %v", a.id, lost)
	}
}

// ctxEnded reports whether err is the error of a call that its ctx ended.
func ctxEnded(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, ctx.Err()) && errors.Is(err, context.Cause(ctx))
}
