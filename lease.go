package fencelock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// Lease is one hold of a lock, until Unlock or until it is lost. Its methods
// may be called from many goroutines. None but Renew and Unlock asks the store.
//
// Done, Err, Context, Renew and Unlock look at the clock first: a process that was stopped, or (on
// Linux) a machine that slept, sees the loss on its first look. After Close of its Locker a lease
// has ended, and its methods tell that: Err, Renew and Unlock return ErrReleased or a *LostError.
type Lease struct {
	h *hold

	// Guarded by h.mu.
	place    int                                   // in h.leases
	released bool                                  // this handle was unlocked
	ctxs     map[*leaseCtx]context.CancelCauseFunc // the contexts made of this handle
}

// Name returns the lock's name.
func (le *Lease) Name() string { return le.h.Name }

// Owner returns the readable identity of the holder: WithOwner, by default host:pid.
func (le *Lease) Owner() string { return le.h.Owner }

// Token returns the fencing token. It is fixed for the whole lease, also after
// its end: renewals and re-entry do not change it.
func (le *Lease) Token() Token { return le.h.Token }

// Handle returns the driver's own handle of this hold, for functions of the
// driver's package; nil where the driver has none.
//
// Who has asked for it may refer to the hold in the store by it: from then on the lock is not
// passed on within the process.
func (le *Lease) Handle() any {
	if !le.h.handled.Swap(true) {
		le.h.l.disinherit(le.h)
	}
	return le.h.handle()
}

// handle is the driver's own handle of the hold.
func (h *hold) handle() any {
	if of, ok := h.Handle.(backend.Handler); ok { // a driver over drivers: its hold has theirs
		return of.Handle()
	}
	return h.Handle
}

// undo makes the release roll back what was written through the handle, if anybody has asked for
// that.
func (h *hold) undo(cause error) {
	if !h.handled.Load() {
		return
	}
	if u, ok := h.handle().(backend.Undoer); ok {
		u.Undo(cause)
	}
}

// Deadline returns until when this process may trust the lease: the moment before the last granted
// request was sent, plus the TTL, less a margin of 2 % of the TTL and at least 20 ms
// (Traits.Margin, if that is more). It is sooner where WithMaxHold ends the hold, or where the
// store vouches for less. Renewals move it; the end of the lease does not. The monotonic reading is
// kept. It does not foresee that the machine sleeps: Err does account for sleep.
func (le *Lease) Deadline() time.Time {
	h := le.h
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked.Add(h.span).Time()
}

// Done returns a channel that is closed when the lease ends, lost or released. It is closed at the
// Deadline by a local timer, whatever the network does, and within half a second after a machine
// that slept beyond it wakes up (on Linux). Leases of one hold (WithReentrancy) share it: it is
// closed when the last of them is unlocked.
func (le *Lease) Done() <-chan struct{} {
	le.h.look()
	return le.h.ending()
}

// Err returns nil while the lease is held; after that a *LostError, which matches ErrLost, or
// ErrReleased. It never changes again.
func (le *Lease) Err() error {
	h := le.h
	h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	return le.errLocked()
}

// errLocked is Err; h.mu is held.
func (le *Lease) errLocked() error {
	if le.released {
		return ErrReleased
	}
	return le.h.err
}

// Renew makes the lease last for the full TTL again, counted from the moment before the request is
// sent, but no longer than WithMaxHold. It never brings a lost lease back. Errors: ErrLost or
// ErrReleased when the lease has ended, and ErrReleased also once Unlock was called, whatever came
// of that; ErrUnavailable when the store did not answer within 5 s, or in time for another try of
// the background renewal, and the error of ctx if that ended first; ErrClosed while the Locker is
// being closed. After the last three the lease stands as before, until its Deadline.
func (le *Lease) Renew(ctx context.Context) error {
	h := le.h
	return h.l.wrap("renew", h.Name, h.renew(ctx, le))
}

// Unlock frees the lock, or with WithReentrancy ends this lease on it: the last one frees it. It
// works when ctx is done already: it takes up to a second then, and never more than 5 s. With
// WithMinHold the lease ends at once all the same, and the lock is freed when that time is over.
//
// It returns nil only if the lease was surely held until now. ErrLost: it ended before, so the work
// done under it may have overlapped with that of another holder. ErrReleased: it was unlocked
// before. ErrUnavailable: the store did not answer; the lease is not renewed any more, and Unlock
// may be called again until its Deadline; if ctx ended meanwhile, the error matches that too. An
// *UndoneError: the lock was held until now and is free, but what was written through its own
// transaction (Traits.Transactional) was rolled back.
//
// Stop the work that the lock guards before calling it: Done is closed once the
// store has confirmed. During Close it waits for that, and returns what Close made of the lease.
func (le *Lease) Unlock(ctx context.Context) error {
	h := le.h
	began := time.Now()
	ctx = h.l.begin(ctx, h.event(Unlocking))
	return h.unlock(ctx, le, began)
}

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
	kept    atomic.Bool     // it is about to be broken, and not passed on
	capped  time.Duration
	due     due  // the schedule's
	dice    dice // likewise
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
	told      error           // a loss that the driver reported before the grant was accepted
	held      bool            // the grant was accepted
	claimed   bool            // an Unlock is with the store, or Close
	unclaimed chan struct{}   // closed when it is done; nil while nobody waits for that
	leaving   bool            // Unlock was called: no renewal any more
	asking    bool            // the store is being asked to release
	unclean   bool            // lost while it was being asked: to be abandoned after that
	next      *hold           // to which this one was passed on
	refs      int             // leases that are not unlocked
	leases    []*Lease        // all of them, for their contexts
	room      [1]*Lease       // theirs, mostly
	cancels   []func()        // what ended still has to call
	flying    bool            // a renewal or a look is with the driver
	landed    chan struct{}   // closed when that is done; nil while nobody waits for it
	renewal   time.Time       // when the schedule renews it next; zero if it does not
	overdue   bool            // a renewal waits to be tried again: no looks until one is confirmed
	timer     *time.Timer
	shown     bool    // the observer has seen Acquired
	early     []Event // what waits for that
}

// accept makes h the lease of a grant whose request was called for at began, and
// reports whether it may be handed out: not if its deadline has passed or it
// was taken away already.
func (h *hold) accept(g backend.Grant, began backend.Instant) (*Lease, bool) {
	now := backend.Now()
	h.Grant, h.bh.Grant = g, g
	h.granted, h.fresh = now.Time(), now
	h.asked = g.Asked
	if h.asked.IsZero() {
		h.asked = began
	}
	if now.Sub(h.asked)-g.Sent >= passOnWord {
		h.Reserved = 0
	}
	if h.set.maxHold > 0 {
		h.capped = h.set.maxHold
	}
	h.mu.Lock()
	h.span = h.trust(h.asked)
	if h.Short > 0 {
		h.span = min(h.span, h.Short-margin(h.Short, h.route.traits))
	}
	left := h.span - now.Sub(h.asked)
	if left <= 0 || h.told != nil {
		h.mu.Unlock()
		return nil, false
	}
	le := h.first()
	h.held = true
	h.l.remember(h) // before the timer can end it
	h.timer = time.AfterFunc(left, h.tick)
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
		if h.err != nil {
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
	if h.capped > 0 {
		span = min(span, h.granted.Add(h.capped).Sub(asked.Time()))
	}
	return span
}

// tick runs on the timer: at the deadline, or at what was the deadline before a renewal moved it.
func (h *hold) tick() {
	h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.timer.Reset(max(h.span-h.asked.Elapsed(), time.Millisecond))
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
	return h.err == nil && h.held && h.lookAtLocked(backend.Now())
}

// lookAtLocked is lookLocked for a caller that knows the time.
func (h *hold) lookAtLocked(now backend.Instant) bool {
	if h.err != nil || !h.held {
		return false
	}
	if now.Sub(h.asked) < h.span {
		return false
	}
	reason := Expired
	if h.capped > 0 && !now.Time().Before(h.granted.Add(h.capped)) {
		reason = MaxHold
	}
	h.endLocked(&LostError{Reason: reason})
	return true
}

// endLocked ends the hold. Its caller calls ended once h.mu is free.
func (h *hold) endLocked(err error) {
	h.err = err
	h.timer.Stop()
	if h.done != nil {
		close(h.done)
	}
	for _, le := range h.leases {
		h.cancels = append(h.cancels, le.cancelsLocked(err)...)
	}
	h.leases = nil
}

// ended does what follows the end of a hold, outside its lock: the contexts
// first, for package context may look at this or another lease while it cancels.
func (h *hold) ended() {
	defer h.l.forget(h)
	h.mu.Lock()
	err, asked, cancels, kept := h.err, h.asked, h.cancels, h.TTL+h.Grace
	if h.Short > 0 {
		kept = h.Short
	}
	h.cancels = nil
	h.unclean = h.asking // an Abandon may not overtake a Release
	clean := !h.unclean
	h.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
	h.l.schedule.remove(h)
	if err == ErrReleased {
		return
	}
	var lost *LostError
	if !errors.As(err, &lost) {
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
		h.route.janitor.addLost(h.Request, h.minLeft())
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
	if !h.held && h.told == nil {
		h.told = asLost(err)
	}
	ended := h.held && h.err == nil && !h.leaving
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
	var lost *LostError
	if errors.As(err, &lost) {
		return lost
	}
	return &LostError{Reason: Revoked}
}

// join returns another lease on a live hold, or nil.
func (h *hold) join() *Lease {
	h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil || h.leaving {
		return nil
	}
	le := &Lease{h: h, place: len(h.leases)}
	h.refs++
	h.leases = append(h.leases, le)
	return le
}
