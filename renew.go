package fencelock

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// renew is Lease.Renew.
func (h *hold) renew(ctx context.Context, le *Lease) error {
	h.look()
	if le.Err() == nil && ctx.Err() != nil {
		return ctxError(ctx, false, nil)
	}
	for {
		flying, err := h.fly(le)
		if err != nil {
			return err
		}
		if flying == nil {
			break
		}
		select { // one call about a request at a time
		case <-flying:
		case <-h.ending():
		case <-ctx.Done():
			return ctxError(ctx, false, nil)
		}
	}
	if err := h.l.enter(); err != nil {
		h.land()
		return err
	}
	defer h.l.exit()
	limited, cancel := context.WithTimeout(ctx, min(h.left(), backend.Patience))
	defer cancel()
	asked := backend.Now()
	err := h.l.driver.Renew(limited, []*backend.Hold{h.bh})[0]
	err = h.renewed(ctx, asked, err)
	if err != nil && !backend.Final(err) && !errors.Is(err, ErrReleased) && over(ctx) {
		return ctxError(ctx, false, err)
	}
	return err
}

// fly marks h as with the driver, for a renewal. If it is there already, fly returns
// the channel that is closed when that call is done. le is the handle that asks;
// nil for the schedule.
func (h *hold) fly(le *Lease) (<-chan struct{}, error) {
	h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case le != nil && le.released:
		return nil, ErrReleased
	case h.err != nil:
		return nil, h.err
	case h.leaving:
		return nil, ErrReleased
	case h.flying:
		if h.landed == nil {
			h.landed = make(chan struct{})
		}
		return h.landed, nil
	}
	h.flying = true
	return nil, nil
}

// land ends what fly or lookable began.
func (h *hold) land() {
	h.mu.Lock()
	h.landLocked()
	h.mu.Unlock()
}

func (h *hold) landLocked() {
	h.flying = false
	if h.landed != nil {
		close(h.landed)
		h.landed = nil
	}
}

// left is what is left until the deadline.
func (h *hold) left() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.span - h.asked.Elapsed()
}

// renewed takes in the store's answer to a renewal that was called for at
// asked, and returns what became of it.
func (h *hold) renewed(ctx context.Context, asked backend.Instant, answer error) error {
	now := backend.Now()
	h.mu.Lock()
	h.landLocked()
	ended := h.lookAtLocked(now)
	switch {
	case h.err != nil:
		// Too late, whatever the store said: the deadline is moved only before it.
		answer = h.err
	case answer == nil:
		h.asked, h.span, h.overdue = asked, h.trust(asked), false
		ended = h.lookAtLocked(now) || ended
		answer = h.err
		if !ended {
			h.timer.Reset(h.span - now.Sub(asked))
		}
	case errors.Is(answer, ErrLost) && h.leaving:
		answer = ErrReleased // Unlock overtook the renewal
	case errors.Is(answer, ErrLost):
		answer = asLost(answer)
		h.endLocked(answer)
		ended = true
	default:
		answer = answered(answer)
	}
	took := now.Sub(asked)
	h.mu.Unlock()
	if ended {
		h.ended()
	}
	e := h.event(Renewed)
	e.Took = took
	if answer != nil {
		e.Kind, e.Err = RenewFailed, answer
	}
	h.emit(ctx, e)
	return answer
}

// answered returns the driver's error as users see it: what is not one of the
// sentinels means that the store did not answer.
func answered(err error) error {
	if err == nil || backend.Final(err) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return backend.Unavailable(err)
}
