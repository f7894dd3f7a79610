package fencelock

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// armedWithin is beyond what it takes to set a timer, unless the process is stopped.
const armedWithin = time.Millisecond

// hold is what all leases on one grant share.
type hold struct {
	*backend.Request
	backend.Grant
	bh *core.Hold // what the driver is given: as the store granted it

	own struct { // of the first hold on a grant; those to whom it was passed on share it
		request backend.Request
		hold    core.Hold
	}

	l       *Locker
	route   *route
	set     *settings
	granted time.Time       // when the grant was seen, or the hold passed on
	fresh   backend.Instant // when the store's grant was seen
	handled atomic.Bool     // Lease.Handle was called
	kept    atomic.Bool     // it is not passed on: it is about to be broken, or its grant came late
	due     due             // the schedule's
	dice    dice            // likewise
	// The Locker's mutex guards these.
	place    int           // in the Locker's holds, from 1
	wanted   chan struct{} // of Wanted; nil until it is asked for
	isWanted bool          // it is closed

	lead Lease // the first one on it

	mu        sync.Mutex
	done      chan struct{}   // closed at its end; nil until it is asked for
	asked     backend.Instant // the request that set the present deadline
	span      time.Duration   // the deadline, counted from asked
	err       error           // why it ended; nil while held
	told      error           // a loss that the driver reported while asking
	state     state
	unclean   bool      // lost while releasing: to be abandoned once the store has answered
	doubt     bool      // lost, and whether what was written is committed is unknown: Unlock asks
	known     bool      // lost, and Unlock has told what became of what was written
	sure      bool      // it was ours until it was released
	along     bool      // other readers have come along
	closing   bool      // Close has told its holder, and has the store free it
	unlocking turn      // of an Unlock or Close that asks the store
	renewing  turn      // of a renewal or a look that is with the driver
	next      *hold     // to which this one was passed on
	refs      int       // leases that are not unlocked
	leases    []*Lease  // all of them, for their contexts
	room      [1]*Lease // theirs, mostly
	cancels   []func()  // what ended still has to call
	renewal   time.Time // when the schedule renews it next; zero if it does not
	overdue   bool      // a renewal waits to be tried again: no looks until one is confirmed
	timer     *time.Timer
	shown     bool    // the observer has seen Acquired
	early     []Event // what waits for that
}

// state is where a hold is in its life, which package backend draws.
type state uint8

const (
	asking    state = iota // the claim is with the driver
	held                   // it can be renewed, joined and passed on
	releasing              // the store is asked to free the lock, or about to be
	unrenewed              // what became of that is unknown; Unlock may be called again
	finished               // released or lost, as hold.err says
)

// live reports whether the lease has begun and not ended.
func (s state) live() bool { return s == held || s == releasing || s == unrenewed }

// turn is had by one call at a time. The mutex of its hold guards it.
type turn struct {
	taken bool
	free  chan struct{} // closed when it is given back; nil while nobody waits for that
}

// freeLocked returns what is closed when the turn that somebody has is free.
func (t *turn) freeLocked() <-chan struct{} {
	if t.free == nil {
		t.free = make(chan struct{})
	}
	return t.free
}

// giveLocked gives it back.
func (t *turn) giveLocked() {
	t.taken = false
	if t.free != nil {
		close(t.free)
		t.free = nil
	}
}

// take waits for a turn and takes it; false if ctx ended first.
func (h *hold) take(ctx context.Context, t *turn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for t.taken {
		free := t.freeLocked()
		h.mu.Unlock()
		ended := false
		select {
		case <-free:
		case <-ctx.Done():
			ended = true
		}
		h.mu.Lock()
		if ended {
			return false
		}
	}
	t.taken = true
	return true
}

// give gives a turn back.
func (h *hold) give(t *turn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.giveLocked()
}

// accept makes h the lease of a grant whose request was called for at began, by the caller at p in
// line, and reports whether it may be handed out: not if its deadline has passed or it was taken
// away already.
func (h *hold) accept(g backend.Grant, began backend.Instant, p *place) (*Lease, bool) {
	now := backend.Now()
	h.Grant, h.bh.Grant = g, g
	h.granted, h.fresh = now.Time(), now
	h.asked = g.Asked
	if h.asked.IsZero() {
		h.asked = began
	}
	if now.Sub(h.asked)-g.Sent >= passOnWord {
		h.kept.Store(true)
	}
	h.mu.Lock()
	h.span = h.trust(h.asked)
	if h.Short > 0 {
		h.span = min(h.span, h.Short-margin(h.Short, h.route.traits))
	}
	if now.Sub(h.asked) >= h.span || h.told != nil {
		h.mu.Unlock()
		return nil, false
	}
	le := h.first()
	h.state = held
	h.armLocked(now)
	h.l.remember(h, p) // before the timer can end it
	h.mu.Unlock()
	h.l.schedule.plan(false, h)
	return le, true
}

// first makes the first lease on h.
func (h *hold) first() *Lease {
	h.lead.h = h
	h.dice.seed(h.Nonce, uint64(h.Token))
	h.refs, h.leases = 1, append(h.room[:0], &h.lead)
	return &h.lead
}

// ending returns what is closed when h ends.
func (h *hold) ending() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done == nil {
		h.done = make(chan struct{})
		if h.err != nil || h.closing {
			close(h.done)
		}
	}
	return h.done
}

// trust returns how long after asked the hold may be trusted, if the store
// applied what was asked then.
func (h *hold) trust(asked backend.Instant) time.Duration {
	span := h.TTL
	if h.Max > 0 {
		span = min(span, h.Max)
	}
	span -= margin(h.TTL, h.route.traits)
	if h.set.maxHold > 0 {
		span = min(span, h.set.maxHold-asked.Sub(h.fresh))
	}
	return span
}

// vouchedLocked returns for how long the store vouches for what it has confirmed: the TTL, or less.
func (h *hold) vouchedLocked() time.Duration {
	return min(h.TTL, cmp.Or(h.Max, h.TTL), cmp.Or(h.Short, h.TTL))
}

// armLocked sets the timer to the deadline. now is a moment ago: where no schedule looks at h too, a process that was
// stopped since sets it again.
func (h *hold) armLocked(now backend.Instant) {
	for {
		left := h.span - now.Sub(h.asked)
		if h.timer == nil {
			h.timer = time.AfterFunc(left, h.tick)
		} else {
			h.timer.Reset(left)
		}
		if !h.set.manual {
			return
		}
		was := now
		if now = backend.Now(); now.Sub(was) < armedWithin {
			return
		}
	}
}

// tick runs on the timer: at the deadline, or at what was the deadline before a renewal moved it.
func (h *hold) tick() {
	h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.armLocked(backend.Now())
	}
}

// look ends the hold if its deadline has passed.
func (h *hold) look() {
	h.mu.Lock()
	ended := h.lookLocked()
	h.mu.Unlock()
	if ended {
		h.ended()
	}
}

// lookLocked reports whether it ended the hold: then the caller calls ended
// once h.mu is free.
func (h *hold) lookLocked() bool {
	return h.state.live() && h.lookAtLocked(backend.Now())
}

// lookAtLocked is lookLocked for a caller that knows the time.
func (h *hold) lookAtLocked(now backend.Instant) bool {
	if !h.state.live() || now.Sub(h.asked) < h.span {
		return false
	}
	reason := Expired
	if h.set.maxHold > 0 && h.asked.Add(h.span).Sub(h.fresh) >= h.set.maxHold { // whenever it is looked at
		reason = MaxHold
	}
	h.doubt = h.state == unrenewed && h.undoer() != nil // Unlock was called in time
	h.endLocked(&LostError{Reason: reason})
	return true
}

// endLocked ends the hold. Its caller calls ended once h.mu is free.
func (h *hold) endLocked(err error) {
	if err != ErrReleased {
		h.undo(err) // before anybody hears of the loss: nothing that commits is sent from now on
	}
	h.unclean = h.state == releasing // an Abandon may not overtake a Release
	h.state, h.err = finished, err
	h.timer.Stop()
	h.cancels = h.tellLocked(err)
	h.leases = nil
}

// tellLocked closes Done, and returns what ends the contexts, to be called without h.mu.
func (h *hold) tellLocked(err error) (cancels []func()) {
	if h.done != nil && !h.closing {
		close(h.done)
	}
	for _, le := range h.leases {
		cancels = append(cancels, le.cancelsLocked(err)...)
	}
	return cancels
}

// ended does what follows the end of a hold, outside its lock: the contexts
// first, for package context may look at this or another lease while it cancels.
func (h *hold) ended() {
	defer h.l.forget(h)
	h.mu.Lock()
	err, asked, cancels, kept := h.err, h.asked, h.cancels, h.vouchedLocked()
	if h.Short == 0 {
		kept += h.Grace
	}
	h.cancels = nil
	clean := !h.unclean
	h.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
	h.l.schedule.remove(h)
	lost, ok := errors.AsType[*LostError](err)
	if !ok { // released
		return
	}
	now := backend.Now()
	e := h.event(Lost)
	e.Took, e.Reason, e.Err = now.Time().Sub(h.granted), lost.Reason, err
	if lost.Reason == Expired || lost.Reason == MaxHold {
		e.Margin = kept - now.Sub(asked)
	}
	h.tell(e)
	if clean {
		h.route.janitor.addLost(h)
	}
}

// lost is Request.Lost: the driver knows that the lock is no longer ours. Once Unlock was called it
// is no news: the release may have been applied, and its answer lost. Unlock asks the store what
// became of it.
func (h *hold) lost(err error) {
	h.mu.Lock()
	for h.next != nil {
		next := h.next
		h.mu.Unlock()
		h = next
		h.mu.Lock()
	}
	if h.state == asking {
		h.told = asLost(err)
	}
	ended := h.state == held
	if ended {
		h.endLocked(asLost(err))
	}
	h.mu.Unlock()
	if ended {
		h.ended()
	}
}

// taken reports whether the lock was taken away before the grant was accepted.
func (h *hold) taken() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.told != nil
}

// asLost makes a *LostError of what a driver said.
func asLost(err error) error {
	if lost, ok := errors.AsType[*LostError](err); ok {
		return lost
	}
	return &LostError{Reason: Revoked}
}

// join returns another lease on a live hold, or nil. along: for another reader.
func (h *hold) join(along bool) *Lease {
	h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != held {
		return nil
	}
	le := &Lease{h: h, place: len(h.leases)}
	h.along = h.along || along
	h.refs++
	h.leases = append(h.leases, le)
	return le
}

// inner is the driver's own handle of the hold.
func (h *hold) inner() any {
	if of, ok := h.Handle.(backend.Handler); ok { // a driver over drivers: its hold has theirs
		return of.Handle()
	}
	return h.Handle
}

// undo makes the release roll back what was written through the handle.
func (h *hold) undo(cause error) {
	if u := h.undoer(); u != nil {
		u.Undo(cause)
	}
}

// undoer is what a holder may have written through, or nil.
func (h *hold) undoer() backend.Undoer {
	if !h.handled.Load() { // nobody has asked for it
		return nil
	}
	u, _ := h.inner().(backend.Undoer)
	return u
}
