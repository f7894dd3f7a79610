package fencelock

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	unlockLeast = time.Second     // what an Unlock has even if its ctx is done
	unlockMost  = 5 * time.Second // what it takes at most
)

// errUnlockMost is the cause of an Unlock that took too long.
var errUnlockMost error = noAnswer(unlockMost)

// unlock is Lease.Unlock, begun at began, with its event.
func (h *hold) unlock(ctx context.Context, le *Lease, began time.Time) error {
	limited := h.l.outlive(ctx)
	defer limited.end()
	kind := NotReleased
	err := h.l.enter()
	if err == nil {
		defer h.l.exit()
		kind, err = h.free(ctx, limited, le)
	} else {
		select {
		case <-h.l.released: // Close ends every lease
		case <-limited.Done():
		}
		if err = le.Err(); err == nil {
			err = backend.Unavailable(errors.New("the Locker is being closed, which releases this lease"))
		}
	}
	e := h.freed(err)
	err = h.l.wrap("unlock", h.Name, err)
	if kind != Released {
		e = h.event(kind)
		e.Took, e.Err = time.Since(began), err
	}
	h.l.emit(ctx, e)
	return err
}

// free ends le, and frees the lock if that was the last lease on it. It says what that came to: Released, Left or
// NotReleased.
func (h *hold) free(ctx context.Context, limited *limit, le *Lease) (EventKind, error) {
	// One Unlock asks the store; another of the same hold waits for its answer.
	if !h.claim(limited) {
		return NotReleased, backend.Unavailable(errors.New("another Unlock of this lease is waiting for the store"))
	}
	defer h.unclaim()
	h.look()
	h.mu.Lock()
	switch {
	case le.released:
		h.mu.Unlock()
		return NotReleased, ErrReleased
	case h.err != nil:
		defer h.mu.Unlock()
		return NotReleased, h.err
	case h.refs > 1:
		cancels := h.leaveLocked(le)
		h.mu.Unlock()
		for _, cancel := range cancels {
			cancel()
		}
		return Left, nil
	}
	if next, p := h.passLocked(le); next != nil {
		h.mu.Unlock()
		h.passed(next, p)
		return Released, nil
	}
	h.leaving = true
	h.mu.Unlock()
	h.l.schedule.remove(h)
	err := h.release(limited, limited.Cause)
	if err == nil || undone(err) {
		h.mu.Lock()
		le.released = true
		h.mu.Unlock()
		return Released, err
	}
	if !backend.Final(err) && over(ctx) {
		err = ctxError(ctx, false, err)
	}
	return NotReleased, err
}

// claim makes its caller the one who may ask the store to release; false if ctx ended while another was.
func (h *hold) claim(ctx context.Context) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.claimed {
		free := h.unclaimedLocked()
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
	h.claimed = true
	return true
}

// unclaimedLocked returns what is closed when the claim that somebody has is free. h.mu is held.
func (h *hold) unclaimedLocked() <-chan struct{} {
	if h.unclaimed == nil {
		h.unclaimed = make(chan struct{})
	}
	return h.unclaimed
}

func (h *hold) unclaim() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claimed = false
	if h.unclaimed != nil {
		close(h.unclaimed)
		h.unclaimed = nil
	}
}

// release asks the store, and takes in its answer. cause is of ctx. Its caller has the claim.
func (h *hold) release(ctx context.Context, cause func() error) error {
	h.mu.Lock()
	h.asking = true
	h.mu.Unlock()
	var answer error
	least := h.minLeft()
	if least > 0 {
		answer = h.stay(ctx)
	} else {
		answer = h.route.caller.Release(ctx, h.bh)
	}
	if answer != nil {
		answer = own(cause(), answer)
	}
	h.mu.Lock()
	h.asking = false
	unclean := h.unclean
	ended := h.lookLocked()
	switch {
	case h.err != nil: // the deadline passed meanwhile
		answer = h.err
	case answer == nil || undone(answer):
		h.endLocked(ErrReleased)
		ended = true
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
		h.route.janitor.addLost(h.Request, h.minLeft())
	case answer == nil && least > 0:
		h.route.janitor.addUnlocked(h.Request, h.minLeft())
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
	h.mu.Lock()
	for h.flying { // one call about a request at a time
		landed := h.landedLocked()
		h.mu.Unlock()
		select {
		case <-landed:
		case <-ctx.Done():
			return ctx.Err()
		}
		h.mu.Lock()
	}
	h.flying = true
	h.mu.Unlock()
	defer h.land()
	return h.route.caller.Renew(ctx, []*core.Hold{h.bh})[0]
}

// discard gives back a lease that its caller does not get.
func (le *Lease) discard() {
	h := le.h
	h.mu.Lock()
	switch {
	case le.released || h.err != nil || h.claimed: // it was lost, or Close has it
		h.mu.Unlock()
		return
	case h.refs > 1:
		cancels := h.leaveLocked(le)
		h.mu.Unlock()
		for _, cancel := range cancels {
			cancel()
		}
		return
	}
	le.released, h.leaving = true, true
	h.endLocked(ErrReleased)
	h.mu.Unlock()
	h.ended()
	h.tell(h.freed(nil))
	h.route.janitor.add(h.Request)
}

// leaveLocked ends one of several leases on the hold, and returns what ends its contexts. h.mu is held.
func (h *hold) leaveLocked(le *Lease) []func() {
	le.released = true
	h.refs--
	last := h.leases[len(h.leases)-1]
	h.leases[le.place], last.place = last, le.place
	h.leases[len(h.leases)-1] = nil
	h.leases = h.leases[:len(h.leases)-1]
	return le.cancelsLocked(ErrReleased)
}

// undone reports whether a release freed the lock and lost the holder's writes.
func undone(err error) bool {
	var u *UndoneError
	return errors.As(err, &u)
}

// outlive returns a ctx for a release: it ends with ctx, but not before a
// second is over, after 5 s at the latest, and when Close gives up.
func (l *Locker) outlive(ctx context.Context) *limit {
	now := time.Now()
	return &limit{
		Context: ctx, l: l, late: true, least: now.Add(unlockLeast), most: now.Add(unlockMost),
		why: errUnlockMost,
	}
}

// close releases the hold for Locker.Close. Without an answer of the store the
// lease counts as taken away.
func (h *hold) close(ctx context.Context) error {
	h.claim(context.Background()) // an Unlock that has it ends with the Locker's ctx at the latest
	defer h.unclaim()
	h.look()
	h.mu.Lock()
	over := h.err != nil
	h.leaving = true
	h.mu.Unlock()
	if over {
		return nil
	}
	h.undo(ErrClosed) // whoever is done with what it writes calls Unlock
	err := h.release(ctx, func() error { return context.Cause(ctx) })
	if err == nil || undone(err) {
		h.tell(h.freed(err))
	}
	if err == nil {
		return nil
	}
	h.mu.Lock()
	ended := h.err == nil
	if ended {
		h.endLocked(&LostError{Reason: Revoked})
	}
	h.mu.Unlock()
	if ended {
		h.ended()
	}
	return err
}
