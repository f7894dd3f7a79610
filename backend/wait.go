package backend

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Patience is how long a waiter rides out an outage of the store before its
// wait ends with the store's error.
const Patience = 5 * time.Second

// maxJitter is the most that a floor timer is put off, so that waiters do not march in step.
const maxJitter = 100 * time.Millisecond

// lookLimit bounds one look of a waiter, so that a request which got lost does
// not use up all the patience.
const lookLimit = 2 * time.Second

// lookLeast is what the last look of an outage has.
const lookLeast = 500 * time.Millisecond

// Wait is the loop of a waiter whose store is asked again and again: it looks,
// then sleeps until it is woken or until the time that the look asked for (the
// floor timer that a lost wake-up needs) and looks again.
//
// look returns done when the lock is ours. Otherwise next says when to look
// again at the latest, counted from the answer; Wait adds up to a tenth, and 100 ms at most, so that
// waiters do not march in step. An error of look that is [Final] ends the wait. Any other is an
// outage: it is ridden out for [Patience], counted from the start of the first look
// that failed, with growing pauses. Each look gets a ctx that ends after 2 s at most.
//
// When ctx ends, so does Wait, with an error that matches ctx.Err(), and
// ErrLocked if the last answer was "not yet", and ErrUnavailable if the last look failed.
// wake may be nil; a value on it means "look now".
func Wait(ctx context.Context, wake <-chan struct{}, look func(ctx context.Context) (done bool, next time.Duration, err error)) error {
	var (
		last   error // of the last look
		locked bool  // the last answer was "not yet"
		failed time.Time
		pause  time.Duration
	)
	var seed [8]byte
	_, _ = crand.Read(seed[:]) // never fails; a test that seeds it repeats everything
	dice := rand.New(rand.NewPCG(binary.NativeEndian.Uint64(seed[:]), 0))
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		if ctx.Err() != nil {
			return Ended(ctx, locked, last)
		}
		began := time.Now()
		most := lookLimit
		if !failed.IsZero() {
			most = min(most, max(Patience-time.Since(failed), lookLeast))
		}
		lookCtx, cancel := context.WithTimeout(ctx, most)
		done, next, err := look(lookCtx)
		cancel()
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			last, locked, failed, pause = nil, true, time.Time{}, 0
			next = max(next, 0)
			next += time.Duration(dice.Int64N(int64(min(next/10, maxJitter)) + 1))
		case ctx.Err() != nil:
			return Ended(ctx, locked, last)
		case Final(err):
			return err
		default:
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("no answer within %v", most) // the look's own limit, not the caller's
			}
			last = err
			if failed.IsZero() {
				failed = began
			}
			if time.Since(failed) >= Patience {
				return Unavailable(err)
			}
			pause = min(max(2*pause, 20*time.Millisecond), 500*time.Millisecond)
			next = pause/2 + time.Duration(dice.Int64N(int64(pause/2)+1))
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-wake:
			timer.Stop()
		case <-ctx.Done():
		}
	}
}

// Ended returns the error of a wait that its ctx ended: it matches ctx.Err(),
// ErrLocked if locked, and ErrUnavailable if the store's last answer was the error outage.
func Ended(ctx context.Context, locked bool, outage error) error {
	err := ctx.Err()
	if locked {
		err = fmt.Errorf("%w (%w)", err, ErrLocked)
	}
	if outage != nil && !errors.Is(outage, context.Canceled) && !errors.Is(outage, context.DeadlineExceeded) {
		err = fmt.Errorf("%w (%w)", err, Unavailable(outage))
	}
	return err
}
