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

// unlock is Lease.Unlock.
func (h *hold) unlock(ctx context.Context, le *Lease) error {
	if err := h.l.enter(); err != nil {
		<-h.l.released // Close ends every lease
		return le.Err()
	}
	defer h.l.exit()
	limited, cancel := outlive(ctx)
	defer cancel()
	// One Unlock asks the store; another of the same hold waits for its answer.
	select {
	case h.unlocking <- struct{}{}:
		defer func() { <-h.unlocking }()
	case <-limited.Done():
		return backend.Unavailable(errors.New("another Unlock of this lease is waiting for the store"))
	}
	h.look()
	h.mu.Lock()
	switch {
	case le.released:
		h.mu.Unlock()
		return ErrReleased
	case h.err != nil:
		defer h.mu.Unlock()
		return h.err
	case h.refs > 1:
		le.released = true
		h.refs--
		cancels := le.cancelsLocked(ErrReleased)
		h.mu.Unlock()
		for _, cancel := range cancels {
			cancel()
		}
		return nil
	}
	h.leaving = true
	h.mu.Unlock()
	h.l.schedule.remove(h)
	err := h.release(limited)
	if err == nil || undone(err) {
		h.mu.Lock()
		le.released = true
		h.mu.Unlock()
	} else if !backend.Final(err) && over(ctx) {
		err = ctxError(ctx, false, err)
	}
	return err
}

// release asks the store, and takes in its answer. Its caller holds h.unlocking.
func (h *hold) release(ctx context.Context) error {
	h.mu.Lock()
	h.asking = true
	h.mu.Unlock()
	answer := h.l.driver.Release(ctx, &h.bh)
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
	case h.told != nil: // unknown, but the driver has heard of a loss
		answer = h.told
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
		h.l.janitor.addLost(&h.Request)
	}
	if answer == nil || undone(answer) {
		e := h.event(Released)
		e.Err = answer
		e.Took = time.Since(h.granted)
		h.l.emit(ctx, e)
	}
	return answer
}

// undone reports whether a release freed the lock and lost the holder's writes.
func undone(err error) bool {
	var u *UndoneError
	return errors.As(err, &u)
}

// outlive returns a ctx for a release: it ends with ctx, but not before a
// second is over, and after 5 s at the latest.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	free, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockMost)
	if ctx.Done() == nil {
		return free, cancel
	}
	least := time.Now().Add(unlockLeast)
	stop := context.AfterFunc(ctx, func() {
		wait := time.NewTimer(time.Until(least))
		defer wait.Stop()
		select {
		case <-wait.C:
			cancel()
		case <-free.Done():
		}
	})
	return free, func() { stop(); cancel() }
}

// close releases the hold for Locker.Close. Without an answer of the store the
// lease counts as taken away.
func (h *hold) close(ctx context.Context) error {
	select {
	case h.unlocking <- struct{}{}:
		defer func() { <-h.unlocking }()
	case <-ctx.Done():
	}
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
