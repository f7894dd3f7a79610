package fencelock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// An Observer sees what a Locker does, after the fact and outside all locks of this package. It
// should not block, and must not call back into the Locker or its leases.
//
// Each call of Lock, TryLock and Unlock ends in exactly one event of its own, observed by the
// goroutine that called: see the kinds. So is the event of a Renew that asked the store. ctx is the
// caller's. An Observer that blocks holds up that call, and one that panics ends it with the panic:
// a Lock has given the lease back by then, and an Unlock is done.
//
// All other events come from one goroutine of the Locker, in order, with an empty ctx. An Observer
// that blocks there holds up later events, and Close for up to 5 s, but no lease: while 65,536
// events wait, further ones of renewals and clean-ups are left out. A panic there is kept, and
// Close returns it.
//
// Of one hold, Acquired comes first; Released or Lost comes exactly once, and before Close returns,
// if the Observer keeps up. Events that were on their way when the hold ended may come after that: a
// renewal, or the Joined or Left of another lease. Events of different holds have no order.
//
// An Observer that is a [Beginner] too sees the start of these calls.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// A Beginner is an Observer that also sees the start of Lock, TryLock and Unlock: for spans, and
// for what is going on now. It is found by type assertion, so an Observer that wraps another one
// must pass Begin on.
//
// Begin is called with the caller's ctx, by the goroutine that called, before anything else is
// done, and outside all locks. It must not block and must not call back. e has the Kind Locking,
// TryLocking or Unlocking, and Backend, Name, Owner and At; for Unlocking also Token and Hold.
// Calls of Begin overlap with each other and with Observe, also for one name and for one hold.
//
// LockAll is a Lock of each of its names. For a lock that was free it calls Begin once it has that, with
// At from before.
//
// The context that Begin returns must be ctx, or be derived from it by values alone: it is not nil
// and has no end of its own. The call goes on with it, so the store's client sees its values, and
// the one event in which the call ends is observed with it or with one derived from it: Acquired,
// Joined or NotAcquired after Locking and TryLocking; Released, Left or NotReleased after
// Unlocking. No other event is. Only a panic leaves the event out. Events that no call brought
// about have no Begin: Lost, the renewals, and the Released of a lease that Close freed.
type Beginner interface {
	Observer
	Begin(ctx context.Context, e Event) context.Context
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
	// RenewFailed: a renewal was not confirmed; it is tried again until the
	// Deadline. Err matches ErrReleased if Unlock overtook it.
	RenewFailed
	// Released: Unlock or Close freed the lock, or left that for later (WithMinHold). Took is how
	// long it was held. Err is nil or an *UndoneError.
	Released
	// Lost: the lease ended without Unlock. Took is how long it was held.
	Lost
	// CleanedUp: what an unwanted or unknown acquisition may have left is gone. Took is how long
	// that has taken.
	CleanedUp
	// Joined: Lock or TryLock returned another lease on a hold that its ctx carries
	// (WithReentrancy), or RLock one on the hold of another reader.
	Joined
	// Left: Unlock ended one of several leases on a hold, which goes on.
	Left
	// NotReleased: Unlock failed. Err says why; if it matches ErrUnavailable, the lease may go on
	// for now. Where Unlock found out after the loss that what was written is committed, and returned
	// nil, Err is the loss.
	NotReleased

	// Locking: Lock was called. This and the next two are given to Beginner.Begin only.
	Locking
	// TryLocking: TryLock was called.
	TryLocking
	// Unlocking: Unlock was called.
	Unlocking
)

var kinds = [...]string{
	Acquired: "acquired", NotAcquired: "not acquired", Renewed: "renewed",
	RenewFailed: "renew failed", Released: "released", Lost: "lost", CleanedUp: "cleaned up",
	Joined: "joined", Left: "left", NotReleased: "not released",
	Locking: "locking", TryLocking: "trylocking", Unlocking: "unlocking",
}

// String returns the kind in words.
func (k EventKind) String() string {
	if k > 0 && int(k) < len(kinds) {
		return kinds[k]
	}
	return fmt.Sprintf("event %d", int(k))
}

// Event is one thing that happened.
type Event struct {
	Kind    EventKind
	Backend string // Traits.Name of the name's backend
	Name    string // what the caller gave: with NotAcquired it may be a bad one
	Owner   string
	Mode    Mode
	Slot    int    // of a permit
	Token   Token  // 0 where there is no Hold
	Hold    HoldID // zero with Locking, TryLocking, NotAcquired and CleanedUp
	At      time.Time
	Took    time.Duration // of the call; see the kinds
	// Margin is how long before the store's expiry the holder was told of a loss by Expired or
	// MaxHold; negative if too late.
	Margin time.Duration
	Reason Reason // of Lost
	Err    error  // never shows a secret
}

// HoldID tells the holds of a process apart: all events of one hold have the same, and no two holds
// do, not even of two Lockers. It is for comparing, and as a key of a map that forgets the hold at
// its end.
type HoldID struct{ h *hold }

// observers are several, in the order in which they were given.
type observers []Observer

// joined returns the Observer that is a, which may be nil, and then b.
func joined(a, b Observer) Observer {
	if a == nil {
		return b
	}
	all, ok := a.(observers)
	if !ok {
		all = observers{a}
	}
	return append(slices.Clip(all), b)
}

// Begin gives each Beginner the context that the one before it returned.
func (os observers) Begin(ctx context.Context, e Event) context.Context {
	for _, o := range os {
		if b, ok := o.(Beginner); ok {
			ctx = b.Begin(ctx, e)
		}
	}
	return ctx
}

// Observe gives each the context that all of them made. One that panics keeps the event from no other.
func (os observers) Observe(ctx context.Context, e Event) {
	if len(os) > 1 {
		defer os[1:].Observe(ctx, e)
	}
	os[0].Observe(ctx, e)
}

// begin tells the observer of the start of a call, and returns the context to go on with.
func (l *Locker) begin(ctx context.Context, e Event) context.Context {
	b, ok := l.set.observer.(Beginner)
	if !ok {
		return ctx
	}
	e.Backend = l.backendOf(e.Name)
	return b.Begin(ctx, e)
}

// emit sends e to the observer, completed with what the Locker knows.
func (l *Locker) emit(ctx context.Context, e Event) {
	if l.set.observer == nil {
		return
	}
	e.Backend, e.At = l.backendOf(e.Name), time.Now()
	l.set.observer.Observe(ctx, e)
}

// event begins an event of the hold.
func (h *hold) event(k EventKind) Event {
	return Event{Kind: k, Name: h.Name, Owner: h.Owner, Mode: h.Mode, Slot: h.Slot, Token: h.Token, Hold: HoldID{h}}
}

// show sends Acquired, for which the hold's other events wait: a lease may be lost, or Close may
// free it, before Lock has returned.
func (h *hold) show(ctx context.Context, took time.Duration) {
	if h.l.set.observer == nil {
		return
	}
	defer func() { // also if the observer panics
		h.mu.Lock()
		defer h.mu.Unlock()
		h.shown = true
		for _, e := range h.early {
			h.l.tell(e)
		}
		h.early = nil
	}()
	e := h.event(Acquired)
	e.Took = took
	h.l.emit(ctx, e)
}

// tell sends an event of the hold that ends no call.
func (h *hold) tell(e Event) {
	if h.l.set.observer == nil {
		return
	}
	e.At = time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shown {
		h.l.tell(e)
	} else {
		h.early = append(h.early, e)
	}
}

// freed is the event of a release. err is nil, or the *UndoneError.
func (h *hold) freed(err error) Event {
	e := h.event(Released)
	e.Took, e.Err = time.Since(h.granted), err
	return e
}

// eventsMost is how many events wait for the observer before renewals and clean-ups are left out.
const eventsMost = 1 << 16

// events are those that end no call: losses, renewals in the background, clean-ups, and what Close released. One
// goroutine gives them to the observer in order, and is there only while there are any. So an observer that is slow,
// or blocks, panics or ends its goroutine, holds up nothing but further events.
type events struct {
	l *Locker

	mu      sync.Mutex
	waiting []Event
	running bool
	drained chan struct{} // closed when nothing waits any more; nil while nobody waits for that
	panics  int
	first   error // the first panic
}

// tell is emit for an event that ends no call.
func (l *Locker) tell(e Event) {
	if l.set.observer == nil {
		return
	}
	e.Backend = l.backendOf(e.Name)
	if e.At.IsZero() {
		e.At = time.Now()
	}
	es := &l.events
	es.mu.Lock()
	defer es.mu.Unlock()
	if len(es.waiting) >= eventsMost && (e.Kind == Renewed || e.Kind == RenewFailed || e.Kind == CleanedUp) {
		return
	}
	es.waiting = append(es.waiting, e)
	if !es.running {
		es.running = true
		go es.deliver()
	}
}

// deliver gives the observer what waits for it.
func (es *events) deliver() {
	es.mu.Lock()
	for len(es.waiting) > 0 {
		e := es.waiting[0]
		es.waiting = es.waiting[1:]
		es.mu.Unlock()
		es.observe(e)
		es.mu.Lock()
	}
	es.running = false
	if es.drained != nil {
		close(es.drained)
		es.drained = nil
	}
	es.mu.Unlock()
}

// observe keeps a panic of the observer for Close: it must not end the program from a goroutine
// that is not the caller's.
func (es *events) observe(e Event) {
	returned := false
	defer func() {
		r := recover()
		switch {
		case returned:
			return
		case r == nil: // it has ended this goroutine, as FailNow does
			go es.deliver()
			return
		}
		es.mu.Lock()
		defer es.mu.Unlock()
		if es.panics++; es.panics == 1 {
			es.first = fmt.Errorf("the observer panicked on %q: %v", e.Kind, r)
		}
	}()
	es.l.set.observer.Observe(context.Background(), e)
	returned = true
}

// close waits until the observer has been given everything, or until late, and says what went wrong with it.
func (es *events) close(late <-chan struct{}) error {
	es.mu.Lock()
	if es.running && es.drained == nil {
		es.drained = make(chan struct{})
	}
	drained := es.drained
	es.mu.Unlock()
	var stuck error
	if drained != nil {
		select {
		case <-drained:
		case <-late:
			stuck = errors.New("the observer is behind, or does not return: it was not given every event")
		}
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	first := es.first
	if es.panics > 1 {
		first = fmt.Errorf("%w (and on %d events more)", first, es.panics-1)
	}
	return errors.Join(stuck, first)
}
