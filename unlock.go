package fencelock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	unlockLeast = time.Second     // what an Unlock has even if its ctx is done
	unlockMost  = 5 * time.Second // what it takes at most
)

// unlock is Lease.Unlock, begun at began, with its event.
func (h *hold) unlock(ctx context.Context, le *Lease, began time.Time) error {
	limited := h.l.outlive(ctx)
	defer limited.End()
	kind := NotReleased
	err := h.l.enter()
	if err == nil {
		defer h.l.exit()
		kind, err = h.free(limited, le)
	} else {
		select {
		case <-h.l.released: // Close ends every lease
		case <-limited.Done():
		}
		h.look()
		h.mu.Lock()
		switch err = le.errLocked(); {
		case h.known:
			err = ErrReleased
		case h.err == nil && !le.released || h.doubt:
			err = backend.Unavailable(errors.New("the Locker is being closed, which releases this lease"))
		}
		h.mu.Unlock()
	}
	if errors.Is(err, ErrUnavailable) && over(ctx) {
		err = leaseError(ctx, err)
	}
	e := h.freed(err)
	if kind != Released {
		e = h.event(kind)
		e.Took, e.Err = time.Since(began), h.l.wrap("unlock", h.Name, err)
		if kind == NotReleased && err == nil {
			e.Err = h.l.wrap("unlock", h.Name, h.err)
		}
	}
	h.l.emit(ctx, e)
	return h.l.wrap("unlock", h.Name, err)
}

// free ends le, and frees the lock if that was the last lease on it. It says what that came to: Released, Left or
// NotReleased.
func (h *hold) free(ctx *core.Deadline, le *Lease) (EventKind, error) {
	if h.countOut(le) {
		if asked, err := h.confirm(ctx, le); asked {
			if err == nil {
				return Left, nil
			}
			return NotReleased, err
		}
	}
	// One Unlock asks the store; another of the same hold waits for its answer.
	if !h.take(ctx, &h.unlocking) {
		return NotReleased, backend.Unavailable(errors.New("another Unlock of this lease is waiting for the store"))
	}
	defer h.give(&h.unlocking)
	h.look()
	h.mu.Lock()
	switch {
	case le.released, h.known:
		h.mu.Unlock()
		return NotReleased, ErrReleased
	case h.along && h.sure:
		le.released = true
		h.mu.Unlock()
		return Left, nil
	case h.doubt:
		h.mu.Unlock()
		return h.freeing(le, h.learn(ctx))
	case h.err != nil:
		defer h.mu.Unlock()
		return NotReleased, h.err
	case h.refs > 1:
		h.leave(le)
		return Left, nil
	}
	if next, p := h.passLocked(le); next != nil {
		h.mu.Unlock()
		h.passed(next, p)
		return Released, nil
	}
	h.state = releasing
	h.mu.Unlock()
	return h.freeing(le, h.release(ctx, ctx.Cause))
}

// countOut counts le out if other readers that came along stay on the hold. It reports whether it is counted out: then
// another frees the lock, whatever the store says of le.
func (h *hold) countOut(le *Lease) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.along && h.refs > 1 && !le.released && !le.counted {
		le.counted = true
		h.refs--
	}
	return le.counted
}

// confirm ends le, which is counted out, once the store has confirmed since the call that the hold is ours. It waits
// for no Unlock of another lease. Where one frees the lock meanwhile, its answer is le's too, and asked is false.
func (h *hold) confirm(ctx *core.Deadline, le *Lease) (asked bool, err error) {
	began := backend.Now()
	h.look()
	if !h.take(ctx, &h.renewing) { // one call about a request at a time
		return true, backend.Unavailable(errors.New("another call about this lease is waiting for the store"))
	}
	h.mu.Lock()
	done := h.state != held || le.released || h.asked.Sub(began) >= 0
	h.mu.Unlock()
	if done {
		h.give(&h.renewing)
	} else {
		var e Event
		e, err = h.extend(ctx)
		h.tell(e)
	}
	h.mu.Lock()
	switch {
	case le.released:
	case h.state == held && err == nil:
		h.leave(le)
		return true, nil
	case h.state == held:
		asked = true
	case h.err == ErrReleased && h.asked.Sub(began) >= 0: // another lease was given back since
		le.released, asked, err = true, true, nil
	}
	h.mu.Unlock()
	return asked, err
}

// freeing says what a release of le that ended with err came to.
func (h *hold) freeing(le *Lease, err error) (EventKind, error) {
	if err == nil || undone(err) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.err != ErrReleased { // Lost was the event of its end, and Err is that
			h.known = true
			return NotReleased, err
		}
		le.released = true
		return Released, err
	}
	return NotReleased, err
}

// learn asks for the outcome of a release that had no answer before the hold was lost: what was written
// in the lock's own transaction is committed or not.
func (h *hold) learn(ctx *core.Deadline) error {
	answer := h.route.caller.Release(ctx, h.bh)
	answer = own(ctx.Cause(), answer)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lateLocked(answer)
}

// lateLocked is what the answer to a release comes to that came after the loss: the loss, except for what was
// written in the lock's own transaction, which was ours until that ended.
func (h *hold) lateLocked(answer error) error {
	h.doubt = false
	switch {
	case h.undoer() == nil, errors.Is(answer, ErrLost):
		return h.err
	case answer == nil, undone(answer):
		return answer
	}
	h.doubt = true // also where the store refuses to say
	return answered(answer)
}

// doubtful reports whether what was written under a lost hold may be committed.
func (h *hold) doubtful() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.doubt
}

// release asks the store to free the lock of a hold that is releasing, and takes in its answer.
// cause is of ctx. Its caller has the turn to unlock.
func (h *hold) release(ctx context.Context, cause func() error) (answer error) {
	least := h.minLeft()
	answer = ErrUnavailable // unless it comes: the program's own code may panic in its client
	defer func() { answer = h.takeIn(answer, least) }()
	if least > 0 {
		answer = h.stay(ctx)
	} else {
		answer = h.route.caller.Release(ctx, h.bh)
	}
	if answer != nil {
		answer = own(cause(), answer)
	}
	return answer
}

// takeIn takes in the answer to a release, which left the lock in the store if WithMinHold has time left.
func (h *hold) takeIn(answer error, least time.Duration) error {
	h.mu.Lock()
	unclean := h.unclean
	if h.state == releasing {
		h.state = unrenewed
	}
	ended := h.lookLocked()
	switch {
	case h.state == finished: // the deadline passed meanwhile
		answer = h.lateLocked(answer)
	case answer == nil || undone(answer):
		h.endLocked(ErrReleased)
		ended, h.sure = true, true
	case errors.Is(answer, ErrLost):
		answer = asLost(answer)
		h.endLocked(answer)
		ended = true
	default:
		answer = answered(answer)
	}
	h.mu.Unlock()
	if ended {
		h.ended()
	}
	switch {
	case unclean:
		h.route.janitor.addLost(h)
	case answer == nil && least > 0:
		h.route.janitor.addAfter(h.Request, h.minLeft(), true)
	}
	return answer
}

// minLeft is for how long yet the store is to keep others out (WithMinHold).
func (h *hold) minLeft() time.Duration {
	if h.set.minHold == 0 {
		return 0
	}
	return max(time.Until(h.granted.Add(h.set.minHold)), 0)
}

// stay is a release that leaves the lock in the store: a renewal. It tells whether the lock was ours
// until now, as a release does.
func (h *hold) stay(ctx context.Context) error {
	if !h.take(ctx, &h.renewing) { // one call about a request at a time
		return ctx.Err()
	}
	defer h.give(&h.renewing)
	return h.route.caller.Renew(ctx, []*core.Hold{h.bh})[0]
}

// discard gives back a lease that its caller does not get. If it had got it, why says what ended it: WithMinHold binds
// as for an Unlock, and WithGrace where that was a loss, of another lease.
func (le *Lease) discard(why error) {
	h := le.h
	h.look()
	h.mu.Lock()
	switch {
	case le.released || h.state != held || h.l.closing.Load(): // it was lost, or Close has it
		h.mu.Unlock()
		return
	case le.counted || h.refs > 1:
		if why != nil { // the other leases on it write in the same transaction; they have not ended
			h.undo(fmt.Errorf("a lease that was locked with others has ended: %v", why))
		}
		h.leave(le)
		return
	case h.unlocking.taken: // by another lease's Unlock, which leaves this one behind, or by Close
		h.discardLater(le, &h.unlocking, why)
		return
	case h.renewing.taken && len(h.leases) > 1: // for one that is counted out, and returns what the store says
		h.discardLater(le, &h.renewing, why)
		return
	}
	h.l.live.Add(1) // until the janitor has it, which Close waits for
	defer h.l.live.Done()
	h.endLocked(ErrReleased)
	h.mu.Unlock()
	h.ended()
	h.tell(h.freed(nil))
	least := time.Duration(0)
	if why != nil {
		least = h.minLeft()
	}
	if errors.Is(why, ErrLost) {
		least = max(least, h.Grace)
	}
	h.route.janitor.addAfter(h.Request, least, least > 0)
}

// discardLater calls discard when a turn that somebody has is free. h.mu is held, and let go.
func (h *hold) discardLater(le *Lease, t *turn, why error) {
	free := t.freeLocked()
	h.mu.Unlock()
	go func() { <-free; le.discard(why) }()
}

// leave ends one of several leases on the hold, and its contexts. h.mu is held, and let go.
func (h *hold) leave(le *Lease) {
	le.released = true
	if !le.counted {
		h.refs--
	}
	last := h.leases[len(h.leases)-1]
	h.leases[le.place], last.place = last, le.place
	h.leases[len(h.leases)-1] = nil
	h.leases = h.leases[:len(h.leases)-1]
	cancels := le.cancelsLocked(ErrReleased)
	h.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
}

// undone reports whether a release freed the lock and lost the holder's writes.
func undone(err error) bool {
	var u *UndoneError
	return errors.As(err, &u)
}

// outlive returns a ctx for a release: it ends with ctx, but not before a
// second is over, after 5 s at the latest, and when Close gives up.
func (l *Locker) outlive(ctx context.Context) *core.Deadline {
	now := time.Now()
	return &core.Deadline{
		Context: ctx, Owner: l.ctx, At: now.Add(unlockMost), Why: noAnswer(unlockMost), Least: now.Add(unlockLeast),
	}
}

// close releases the hold for Locker.Close. Without an answer of the store the
// lease counts as taken away.
func (h *hold) close(ctx context.Context) error {
	h.take(context.Background(), &h.unlocking) // an Unlock that has it ends with the Locker's ctx at the latest
	defer h.give(&h.unlocking)
	h.look()
	h.mu.Lock()
	if h.state == finished {
		h.mu.Unlock()
		return nil
	}
	unlocked := h.state == unrenewed
	h.state = releasing
	h.undo(ErrClosed)                    // whoever is done with what it writes calls Unlock
	cancels := h.tellLocked(ErrReleased) // before another can be granted the lock
	h.closing = true
	h.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
	err := h.release(ctx, func() error { return context.Cause(ctx) })
	h.mu.Lock()
	freed, ended := h.err == ErrReleased, h.state != finished
	if ended {
		h.endLocked(&LostError{Reason: Revoked})
		h.doubt = h.undoer() != nil
	}
	h.doubt = h.doubt && unlocked // else nothing was sent that commits
	h.mu.Unlock()
	switch {
	case freed:
		h.tell(h.freed(err))
	case ended:
		h.ended()
	}
	return err
}
