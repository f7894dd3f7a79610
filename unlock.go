package fencelock

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	unlockLeast = time.Second     // what an Unlock has even if its ctx is done
	unlockMost  = 5 * time.Second // what it takes at most
)

// unlock is Lease.Unlock. It says too what that came to: Released (then the event has been sent), Left or NotReleased.
func (h *hold) unlock(ctx context.Context, le *Lease) (EventKind, error) {
	limited := h.l.outlive(ctx)
	defer limited.end()
	if err := h.l.enter(); err != nil {
		select {
		case <-h.l.released: // Close ends every lease
		case <-limited.Done():
		}
		if err := le.Err(); err != nil {
			return NotReleased, err
		}
		return NotReleased, backend.Unavailable(errors.New("the Locker is being closed, which releases this lease"))
	}
	defer h.l.exit()
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
		le.released = true
		h.refs--
		cancels := le.cancelsLocked(ErrReleased)
		h.mu.Unlock()
		for _, cancel := range cancels {
			cancel()
		}
		return Left, nil
	}
	if next, p := h.passLocked(le); next != nil {
		h.mu.Unlock()
		h.passed(ctx, next, p)
		return Released, nil
	}
	h.leaving = true
	h.mu.Unlock()
	h.l.schedule.remove(h)
	err := h.release(limited)
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
		if h.unclaimed == nil {
			h.unclaimed = make(chan struct{})
		}
		free := h.unclaimed
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

func (h *hold) unclaim() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claimed = false
	if h.unclaimed != nil {
		close(h.unclaimed)
		h.unclaimed = nil
	}
}

// release asks the store, and takes in its answer. Its caller has the claim.
func (h *hold) release(ctx context.Context) error {
	h.mu.Lock()
	h.asking = true
	h.mu.Unlock()
	answer := h.l.driver.Release(ctx, h.bh)
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
	if unclean {
		h.l.janitor.addLost(h.Request)
	}
	if answer == nil || undone(answer) {
		h.freed(ctx, answer)
	}
	return answer
}

// freed sends Released. err is nil, or the *UndoneError.
func (h *hold) freed(ctx context.Context, err error) {
	e := h.event(Released)
	e.Took, e.Err = time.Since(h.granted), err
	h.emit(ctx, e)
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
	return &limit{Context: ctx, l: l, late: true, least: now.Add(unlockLeast), most: now.Add(unlockMost), why: context.DeadlineExceeded}
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
	err := h.release(ctx)
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
