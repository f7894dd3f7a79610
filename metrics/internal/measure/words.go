package measure

import (
	"context"
	"errors"

	"github.com/fencelock/fencelock"
)

// Failures are the words of Failure.
var Failures = []string{
	"locked", "timeout", "canceled", "unavailable", "deadlock", "closed", "invalid", "unsupported",
	"other",
}

// Failure says in a word why Lock or TryLock failed. A wait that its context ended while the store did
// not answer is "unavailable": that is what must be mended.
func Failure(err error) string {
	for _, w := range []struct {
		err  error
		word string
	}{
		{fencelock.ErrClosed, "closed"},
		{fencelock.ErrDeadlock, "deadlock"},
		{fencelock.ErrInvalid, "invalid"},
		{fencelock.ErrUnsupported, "unsupported"},
		{fencelock.ErrUnavailable, "unavailable"},
		{context.DeadlineExceeded, "timeout"},
		{context.Canceled, "canceled"},
		{fencelock.ErrLocked, "locked"},
	} {
		if errors.Is(err, w.err) {
			return w.word
		}
	}
	return "other"
}

// Waited reports whether a Lock that failed for this reason had waited, as one does that never began has not.
func Waited(failure string) bool {
	return failure == "timeout" || failure == "canceled" || failure == "unavailable"
}

// UnlockFailures are the words of UnlockFailure.
var UnlockFailures = []string{"lost", "released", "unavailable", "other"}

// UnlockFailure says in a word why Unlock failed.
func UnlockFailure(err error) string {
	switch {
	case errors.Is(err, fencelock.ErrLost):
		return "lost"
	case errors.Is(err, fencelock.ErrReleased):
		return "released"
	case errors.Is(err, fencelock.ErrUnavailable):
		return "unavailable"
	}
	return "other"
}

// Losses are the words of Loss.
var Losses = []string{"expired", "revoked", "session_lost", "max_hold"}

// Loss is the word for a reason.
func Loss(r fencelock.Reason) string {
	if r >= fencelock.Expired && int(r) <= len(Losses) {
		return Losses[r-fencelock.Expired]
	}
	return "other"
}

// Timed reports whether a loss was told by the holder's own clock, so that its margin says something.
func Timed(r fencelock.Reason) bool { return r == fencelock.Expired || r == fencelock.MaxHold }

// Overtaken reports whether a renewal failed only because Unlock came first, which is nothing to count.
func Overtaken(err error) bool { return errors.Is(err, fencelock.ErrReleased) }
