package fencelock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
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
	left := h.left()
	most := min(left, core.Patience)
	if !h.set.manual { // the schedule waits for this call, and must have time for another try
		most = min(most, max(left-callMost(h), callMost(h)))
	}
	limited := &limit{Context: ctx, l: h.l, most: time.Now().Add(most), why: noAnswer(most)}
	defer limited.end()
	asked := backend.Now()
	answer := h.route.caller.Renew(limited, []*core.Hold{h.bh})[0]
	e, err := h.renewed(asked, own(limited.Cause(), answer))
	h.l.emit(ctx, e)
	switch {
	case err == nil, backend.Final(err), errors.Is(err, ErrReleased):
	case errors.Is(limited.Cause(), ErrClosed):
		return ErrClosed
	case over(ctx):
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
		return h.landedLocked(), nil
	}
	h.flying = true
	return nil, nil
}

// landedLocked returns what is closed when the call that is with the driver is done. h.mu is held.
func (h *hold) landedLocked() <-chan struct{} {
	if h.landed == nil {
		h.landed = make(chan struct{})
	}
	return h.landed
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
// asked, and returns what became of it, with the event of that.
func (h *hold) renewed(asked backend.Instant, answer error) (Event, error) {
	now := backend.Now()
	h.mu.Lock()
	h.landLocked()
	ended := h.lookAtLocked(now)
	switch {
	case h.err != nil:
		// Too late, whatever the store said: the deadline is moved only before it.
		answer = h.err
	case answer == nil:
		h.asked, h.span, h.overdue, h.Short = asked, h.trust(asked), false, 0
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
	return e, answer
}

// answered returns the driver's error as users see it: what is not one of the
// sentinels means that the store did not answer.
func answered(err error) error {
	if err == nil || backend.Final(err) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return backend.Unavailable(err)
}

// noAnswer is why a call ends that the store has not answered for so long.
type noAnswer time.Duration

func (d noAnswer) Error() string { return "no answer within " + time.Duration(d).String() }

// own returns err without the end of a context in it, if cause, of the context of a call, says that
// this package has ended that: users must not take it for the end of their own.
func own(cause, err error) error {
	var mine noAnswer
	switch {
	case !errors.As(cause, &mine) || !errors.Is(err, context.DeadlineExceeded) || backend.Final(err):
		return err
	case err == context.DeadlineExceeded:
		return mine
	}
	return fmt.Errorf("%w: %v", mine, err)
}
