package backend

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The sentinels. They are matched with errors.Is; package fencelock exports
// them again under the same names.
var (
	// ErrLocked: another holder has the lock.
	ErrLocked = errors.New("locked by another holder")
	// ErrLost: the lease ended without Unlock; see [LostError].
	ErrLost = errors.New("lease lost")
	// ErrReleased: the lease was unlocked before.
	ErrReleased = errors.New("lease released")
	// ErrDeadlock: the caller's context carries a live lease of this very name.
	ErrDeadlock = errors.New("the context already carries a lease of this lock: waiting for it " +
		"would never end (WithReentrancy allows re-entry)")
	// ErrStale: a guard saw a newer token; see [StaleError].
	ErrStale = errors.New("stale fencing token")
	// ErrUnavailable: the store cannot be reached, does not answer in time, or has no quorum.
	ErrUnavailable = errors.New("store unavailable")
	// ErrUnsupported: this backend cannot do that.
	ErrUnsupported = errors.New("unsupported")
	// ErrInvalid: a bad name, option, URL or configuration, missing rights, or foreign data under our key.
	ErrInvalid = errors.New("invalid")
	// ErrClosed: the Locker is closed.
	ErrClosed = errors.New("locker closed")
)

// Reason says how a lease was lost.
type Reason int

// The reasons of a [LostError].
const (
	// Expired: the deadline passed and no renewal had come through.
	Expired Reason = iota + 1
	// Revoked: the store no longer has it as ours: broken by an operator, deleted, or gone with the store's data.
	Revoked
	// SessionLost: the session or connection that carried the lock ended.
	SessionLost
	// MaxHold: the bound that WithMaxHold set was reached.
	MaxHold
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case Expired:
		return "expired"
	case Revoked:
		return "revoked"
	case SessionLost:
		return "session lost"
	case MaxHold:
		return "maximum hold reached"
	}
	return fmt.Sprintf("reason %d", int(r))
}

// LostError says that a lease ended without Unlock, and how. It matches [ErrLost].
type LostError struct {
	Reason Reason
}

// Error returns the loss and its reason.
func (e *LostError) Error() string { return ErrLost.Error() + ": " + e.Reason.String() }

// Is reports whether target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// StaleError says that a guard refused a token because it has seen a newer one.
// It matches [ErrStale].
type StaleError struct {
	// Max is the greatest token that the guard has seen. A holder that acquires
	// with Max as its floor gets a token that the guard accepts.
	Max Token
}

// Error returns the refusal and the greatest token seen.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%v: the resource has seen token %d", ErrStale, e.Max)
}

// Is reports whether target is ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// UndoneError is what a transactional driver's Leave answers when it freed the lock, which was
// ours until then, and rolled back what the holder wrote through the lock's own transaction. Err
// says why: the statement or the commit that failed, or the cause that [Undoer] was given. Unlock
// returns it, and the lease has ended as after any Unlock.
type UndoneError struct {
	Err error
}

// Error returns what was undone, and why.
func (e *UndoneError) Error() string {
	return "unlocked, but what was written through the lock's transaction was rolled back: " + e.Err.Error()
}

// Unwrap returns why.
func (e *UndoneError) Unwrap() error { return e.Err }

// OpError wraps, once, every error that leaves package fencelock with what was
// being done. Err never shows a secret.
type OpError struct {
	// Op is "open", "lock", "trylock", "rlock", "tryrlock", "acquire", "tryacquire", "renew", "unlock",
	// "inspect", "list", "break" or "close".
	Op      string
	Backend string // Traits.Name, or the URL's scheme while opening; empty when unknown
	Name    string // the lock's name; empty when the operation has none
	Err     error
}

// Error returns the operation, the name, the backend and the cause.
func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString("fencelock: ")
	b.WriteString(e.Op)
	if e.Name != "" {
		fmt.Fprintf(&b, " %q", shorten(e.Name))
	}
	if e.Backend != "" {
		b.WriteString(" (" + e.Backend + ")")
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Invalid returns an error that matches [ErrInvalid] and says what was wrong
// and what is allowed.
func Invalid(format string, args ...any) error {
	return &marked{ErrInvalid, fmt.Errorf(format, args...)}
}

// Unsupported returns an error that matches [ErrUnsupported] and says what the
// backend cannot do.
func Unsupported(format string, args ...any) error {
	return &marked{ErrUnsupported, fmt.Errorf(format, args...)}
}

// Unavailable returns an error that matches [ErrUnavailable] and wraps cause,
// or cause itself if it matches already.
func Unavailable(cause error) error {
	if errors.Is(cause, ErrUnavailable) {
		return cause
	}
	return &marked{ErrUnavailable, cause}
}

// Final reports whether err is an answer that asking again will not change:
// one of the driver's sentinels, rather than the store's own error.
func Final(err error) bool {
	for _, s := range []error{ErrLocked, ErrLost, ErrUnsupported, ErrInvalid, ErrClosed} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

// marked is a cause that matches a sentinel.
type marked struct {
	mark, cause error
}

func (e *marked) Error() string   { return e.mark.Error() + ": " + e.cause.Error() }
func (e *marked) Unwrap() []error { return []error{e.mark, e.cause} }

// shorten keeps a long name readable in a message.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Silence is the error of a request that went on after the end of its ctx, because the store was slow
// and answered other requests of the process, until it had said nothing for so long. The engine counts
// the outage from the last answer.
type Silence time.Duration

func (s Silence) Error() string { return fmt.Sprintf("no answer for %v", time.Duration(s)) }
