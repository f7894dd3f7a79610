package fencelock

import (
	"context"
	"fmt"
	"time"
)

// An Observer sees what a Locker does. Observe is called synchronously, by many
// goroutines, after the fact and outside all locks of this package; it must not
// block and must not call back into the Locker or its leases. ctx is the caller's where
// there is one. A panic of Observe is the program's.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// EventKind says what happened.
type EventKind int

// The kinds of events.
const (
	// Acquired: a lease was granted. Took includes the wait.
	Acquired EventKind = iota + 1
	// NotAcquired: Lock or TryLock failed. Err says why.
	NotAcquired
	// Renewed: a renewal was confirmed.
	Renewed
	// RenewFailed: a renewal was not confirmed; it is tried again until the Deadline.
	RenewFailed
	// Released: Unlock freed the lock. Took is how long it was held.
	Released
	// Lost: the lease ended without Unlock. Took is how long it was held.
	Lost
	// CleanedUp: what an unwanted or unknown acquisition may have left is gone.
	CleanedUp
)

var kinds = [...]string{Acquired: "acquired", NotAcquired: "not acquired", Renewed: "renewed", RenewFailed: "renew failed", Released: "released", Lost: "lost", CleanedUp: "cleaned up"}

// String returns the kind in words.
func (k EventKind) String() string {
	if k > 0 && int(k) < len(kinds) {
		return kinds[k]
	}
	return fmt.Sprintf("event %d", int(k))
}

// Event is one thing that happened.
type Event struct {
	Kind                 EventKind
	Backend, Name, Owner string
	Token                Token
	At                   time.Time
	Took                 time.Duration // of the call; see the kinds
	Margin               time.Duration // Lost by Expired or MaxHold: how long before the store's expiry the holder was told; negative if too late
	Reason               Reason        // Lost
	Err                  error         // never shows a secret
}

// emit sends e to the observer, completed with what the Locker knows.
func (l *Locker) emit(ctx context.Context, e Event) {
	if l.set.observer == nil {
		return
	}
	e.Backend, e.At = l.traits.Name, time.Now()
	l.set.observer.Observe(ctx, e)
}
