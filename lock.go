package fencelock

import (
	"context"

	"github.com/fencelock/fencelock/backend"
)

// Mutex is a named lock. It holds no state: one value may be used by many
// goroutines at once, and two values of one name are the same lock.
//
// Errors are *OpError and match, among others, ErrLocked, ErrDeadlock,
// ErrUnavailable, ErrInvalid (also for a bad name or option), ErrUnsupported, and ErrClosed once
// its Locker is being closed.
type Mutex interface {
	// Name returns the name that Locker.Mutex was given, a bad one too.
	Name() string

	// Lock waits until the lock is held by the returned lease, first come first served where
	// Traits.FIFO. If ctx ends first, the error matches ctx.Err() and context.Cause(ctx), and
	// ErrLocked too if the last answer was that another holds it, or if another Lock of this Locker
	// still stood before it in line. The lock is not bound to ctx: once granted, the end of ctx
	// ends nothing. An outage of the store of up to 5 s is ridden out; then ErrUnavailable, at most
	// 6 s later, for all that wait for the name with this Locker. Lock returns ErrLost only if ctx ended for that.
	//
	// A ctx that carries a live lease of this name (Lease.Context) gives ErrDeadlock, or with
	// WithReentrancy another lease on the same hold.
	Lock(ctx context.Context) (*Lease, error)

	// TryLock takes the lock if it is free, and otherwise returns ErrLocked, also where Lock
	// returns ErrDeadlock. It never waits for a holder, and never overtakes a waiter where Traits.FIFO. A lock whose
	// holder is dead is taken as soon as its time is over. A store that does not answer gives
	// ErrUnavailable after 5 s; if ctx ends first, the error matches ctx.Err() and
	// context.Cause(ctx).
	TryLock(ctx context.Context) (*Lease, error)
}

// The vocabulary that drivers and programs share, defined in package backend.
type (
	// Token is a fencing token; 0 means none.
	Token = backend.Token
	// Info describes one name as the store sees it.
	Info = backend.Info
	// Held is one of several that hold a name.
	Held = backend.Held
	// Mode is how a lease holds its name.
	Mode = backend.Mode
	// Traits are a backend's promises, as data.
	Traits = backend.Traits
	// Need is what a program requires of a backend; see Require.
	Need = backend.Need
	// Fencing is how far a backend's tokens can be relied on.
	Fencing = backend.Fencing
	// Reason says how a lease was lost.
	Reason = backend.Reason
	// LostError says that a lease ended without Unlock; it matches ErrLost.
	LostError = backend.LostError
	// StaleError says that a guard saw a newer token; it matches ErrStale.
	StaleError = backend.StaleError
	// UndoneError says that Unlock freed the lock but rolled back what was written through its
	// transaction.
	UndoneError = backend.UndoneError
	// OpError wraps, once, every error of this package with what was being done.
	OpError = backend.OpError
)

// The values of Fencing.
const (
	NoFencing = backend.NoFencing
	Anchored  = backend.Anchored
	Durable   = backend.Durable
)

// The modes of a lease.
const (
	Exclusive = backend.Exclusive // of a Mutex, and of an RWMutex that was locked for writing
	Reader    = backend.Reader
	Permit    = backend.Permit
)

// The reasons of a LostError.
const (
	Expired     = backend.Expired
	Revoked     = backend.Revoked
	SessionLost = backend.SessionLost
	MaxHold     = backend.MaxHold
)

// The errors, matched with errors.Is.
var (
	// ErrLocked: another holder has it. A wait that its ctx ended matches it if
	// the last answer was "held"; see Mutex.
	ErrLocked = backend.ErrLocked
	// ErrLost: the lease ended without Unlock; errors.As gives the *LostError.
	ErrLost = backend.ErrLost
	// ErrReleased: the lease was unlocked before.
	ErrReleased = backend.ErrReleased
	// ErrDeadlock: Lock with a ctx that carries a live lease of this name of this
	// Locker, without WithReentrancy.
	ErrDeadlock = backend.ErrDeadlock
	// ErrStale: a guard saw a newer token; errors.As gives the *StaleError.
	ErrStale = backend.ErrStale
	// ErrUnavailable: the store cannot be reached or has no quorum; it wraps the cause.
	ErrUnavailable = backend.ErrUnavailable
	// ErrUnsupported: this backend cannot do that.
	ErrUnsupported = backend.ErrUnsupported
	// ErrInvalid: a bad name, option, URL, configuration, rights, or foreign data
	// under our key; it says which part and what is allowed.
	ErrInvalid = backend.ErrInvalid
	// ErrClosed: the Locker is closed, or being closed.
	ErrClosed = backend.ErrClosed
)
