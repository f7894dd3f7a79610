package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Patience is how long a waiter rides out an outage of the store before its
// wait ends with the store's error.
const Patience = 5 * time.Second

// maxJitter is the most that a floor timer is put off, so that waiters do not march in step.
const maxJitter = 100 * time.Millisecond

// lookLimit bounds one look of a waiter, so that a request which got lost does
// not use up all the patience.
const lookLimit = 2 * time.Second

// lookEvery is how long a waiter goes without a word from its store at the most, whatever look asked for: an outage is
// to be noticed.
const lookEvery = 5 * time.Second

// lookLeast is what the last look of an outage has.
const lookLeast = time.Second

// Wait is the loop of a waiter whose store is asked again and again: it looks,
// then sleeps until it is woken or until the time that the look asked for (the
// floor timer that a lost wake-up needs) and looks again.
//
// look asks the store, and returns done when the lock is ours. Otherwise next says when to look
// again at the latest, counted from the answer; after 5 s Wait looks again whatever it says. Wait
// adds up to a tenth, and 100 ms at most, drawn from the nonce, so that waiters do not march in step.
// An error of look that is backend.Final ends the wait. Any other is an outage: it is ridden out for
// [Patience], counted from the start of the first look that failed, with growing pauses; then Wait
// returns it, and [Outlasted] tells it from others. Each look gets a ctx that ends after 2 s at most;
// backend.Silence is the error of one that went on.
//
// When ctx ends, so does Wait, with an error that matches ctx.Err(), and ErrLocked if the last answer
// was "not yet", and ErrUnavailable if the last look failed. wake may be nil; a value on it means
// "look now".
func Wait(
	ctx context.Context, nonce string, wake <-chan struct{},
	look func(ctx context.Context) (done bool, next time.Duration, err error),
) error {
	var (
		last   error // of the last look
		locked bool  // the last answer was "not yet"
		failed time.Time
		pause  time.Duration
	)
	seed, _ := strconv.ParseUint(nonce[:min(16, len(nonce))], 16, 64) // a nonce of a test may be no number
	dice := rand.New(rand.NewPCG(seed, 0))
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
			next = min(max(next, 0), lookEvery)
			next += time.Duration(dice.Int64N(int64(min(next/10, maxJitter)) + 1))
		case ctx.Err() != nil:
			return Ended(ctx, locked, last)
		case backend.Final(err):
			return err
		default:
			switch { // the look's own limit, not the caller's
			case !errors.Is(err, context.DeadlineExceeded):
			case err == context.DeadlineExceeded:
				err = fmt.Errorf("no answer within %v", most)
			default: // it says why
				err = fmt.Errorf("no answer within %v: %v", most, err)
			}
			last = err
			if failed.IsZero() {
				failed = began
				// If the look took longer than its time, this process may have been stopped: that is no outage.
				if due := time.Now().Add(-most); due.After(failed) {
					failed = due
				}
			}
			if s := backend.Silence(0); errors.As(err, &s) {
				if since := time.Now().Add(-time.Duration(s)); since.After(failed) {
					failed = since
				}
			}
			if time.Since(failed) >= Patience {
				return Outlast(err)
			}
			pause = min(max(2*pause, 20*time.Millisecond), 500*time.Millisecond)
			next = pause/2 + time.Duration(dice.Int64N(int64(pause/2)+1))
		}
		if next > 0 {
			select {
			case <-time.After(next):
			case <-wake:
			case <-ctx.Done():
			}
		}
	}
}

// Outlast returns the error of a wait that an outage has outlasted: it matches [ErrUnavailable] and
// wraps the last error of the store.
func Outlast(last error) error { return backend.Unavailable(&outlasted{last}) }

// Outlasted reports whether err is such a one. The waiters behind this one need not begin a [Patience] of their own.
func Outlasted(err error) bool {
	var o *outlasted
	return errors.As(err, &o)
}

// outlasted is the last error of an outage that has used up the Patience of a wait.
type outlasted struct{ last error }

func (o *outlasted) Error() string { return fmt.Sprintf("for %v now: %v", Patience, o.last) }
func (o *outlasted) Unwrap() error { return o.last }

// Ended returns the error of a wait that its ctx ended: it matches ctx.Err(),
// ErrLocked if locked, and ErrUnavailable if the store's last answer was the error outage.
func Ended(ctx context.Context, locked bool, outage error) error {
	err := ctx.Err()
	if locked {
		err = fmt.Errorf("%w (%w)", err, backend.ErrLocked)
	}
	if outage != nil && !errors.Is(outage, context.Canceled) && !errors.Is(outage, context.DeadlineExceeded) {
		err = fmt.Errorf("%w (%w)", err, backend.Unavailable(outage))
	}
	return err
}
