package backend

import (
	"context"
	"iter"
	"time"
)

// Token is a fencing token: a number that is strictly greater for every later
// grant of the same name, so that a resource can refuse a holder that was
// overtaken. It is below 2^53, so that JSON and Lua keep it exact. Zero means
// that there is none.
type Token = int64

// A Request asks for one name. The engine makes it and checks it; a driver
// never changes it and may keep it until the call that is about it returns.
// Every call about one acquisition (Acquire, sent again or not, and Abandon)
// carries the same *Request; so does every [Hold] that came of it.
type Request struct {
	// Name is valid by [CheckName]. The driver encodes it so that two different
	// names never meet in its store.
	Name string
	// Nonce is 32 hex digits, random and new for every acquisition. It proves
	// ownership: the driver compares the whole of it on every write.
	Nonce string
	// Owner is what Inspect shows of the holder: valid UTF-8, at most 512 bytes.
	// It is never compared.
	Owner string
	// TTL is how long the holder may trust one grant or renewal.
	TTL time.Duration
	// Grace is how much longer than TTL the store keeps others out. The store's
	// expiry is TTL + Grace after it applied the last Acquire or Renew, by its
	// own clock. Zero unless Traits.Grace.
	Grace time.Duration
	// Floor is a number that the granted token must exceed.
	Floor Token
	// Reserve asks for so many tokens after the granted one, for holders of the same process
	// to whom this one may pass the lock on without asking the store. A driver grants as
	// many of them as costs nothing more, or none: see [Grant.Reserved].
	Reserve int
	// Wait: queue until granted. Otherwise one attempt.
	Wait bool
	// Auto: the engine will renew this hold by itself until it is released or lost, and it has
	// neither a Grace nor a bound (WithMaxHold, WithMinHold). A driver may let such requests of one
	// TTL share what its store calls a lease or session, and end that when it is closed.
	Auto bool
	// Move is the migration that the acquisition takes part in, and Phase how; both
	// are empty for a client that knows of none. A [Gater] checks its gates for
	// them in the step that grants, and a holder in PhaseBoth can be told from others in its store.
	Move  string
	Phase Phase
	// Lost is called by a driver that learns by itself (a push, a watch, the end
	// of a session or connection) that the lock is no longer ours: with [ErrLost]
	// for a lock that was taken away, with a *[LostError] to say more. It may be
	// called from any goroutine, more than once, also before Acquire has returned
	// and after the release; it never blocks. A driver never calls it on a guess.
	Lost func(error)

	// Claim is what the engine has made of the request for a [Store]. A Driver leaves it alone.
	Claim any
}

// A Grant is the store's yes.
type Grant struct {
	// Token is greater than that of every earlier grant of this name and than
	// Request.Floor. The store computes it in the step that grants, once
	// ownership is certain, and never when a waiter merely joins the queue.
	Token Token
	// Reserved is how many numbers after Token belong to this grant too, at most Request.Reserve:
	// no other grant of the name, before or after, has one of them, and every later grant has a
	// greater one, through all that Token itself survives. A source that follows a clock is not
	// moved ahead of it for them by more than 3 ms. Zero is always right, and the only answer of a
	// driver whose holds end with more than the lock, such as a transaction.
	Reserved int
	// Asked is the moment just before the request was sent whose effect set the
	// store's expiry: for a lock that was waited for, the last request before the
	// grant was seen. The zero value stands for the moment before Acquire was called.
	Asked Instant
	// Sent is how long after Asked the request was sent that the store answered with this grant,
	// where the one that Asked tells of was an earlier one, such as the renewal of a session that
	// many locks share.
	Sent time.Duration
	// Max bounds what may be trusted after Asked where the store trusts less
	// than the TTL (a session, a validity computed from several nodes); 0: TTL.
	Max time.Duration
	// Ungated: the request takes part in a migration, and the store has no gate of
	// that migration for the name. It never had one, or has lost it.
	Ungated bool
	// Handle is the driver's own: given back in Hold, and shown to users through
	// Lease.Handle for functions of the driver's package.
	Handle any
}

// A Hold is a granted Request. The engine makes one for each grant and gives
// the same pointer to every call about it.
type Hold struct {
	*Request
	Grant
}

// Info describes one name as the store sees it. A process that passes a lock on within itself does
// not tell the store: elsewhere Token is then that of the first of its holders, and the present
// one's is up to Grant.Reserved more.
type Info struct {
	Name      string        `json:"name"`
	Owner     string        `json:"owner"`      // empty when unknown: free, or held by a stranger
	Held      bool          `json:"held"`       // someone holds it, whoever that is
	Token     Token         `json:"token"`      // 0 when unknown
	ExpiresIn time.Duration `json:"expires_in"` // by the store's clock; 0: no expiry of its own
	Waiters   int           `json:"waiters"`    // waiting processes; -1 when the store cannot tell
	Leaked    bool          `json:"leaked"`     // held without expiry: nobody will ever free it

	// For the engine, of a Store's Look:
	Both    string `json:"-"` // the migration of a holder in PhaseBoth
	Pending bool   `json:"-"` // kept for a waiter who has not asked for it yet
	// Nameless: the store does not know the name, which may be any; Name says what it knows.
	Nameless bool `json:"-"`
}

// A Driver speaks to one store. It does one thing per call; validation,
// defaults, nonces, the queue inside the process, deadlines, the schedule of
// renewals, clean-up, wrapping of errors and events are the engine's.
//
// # Who calls, and what overlaps
//
// The engine calls from many goroutines at once, for any names. Of one Request
// it has at most one call in flight, with one exception: Release or Abandon may
// overtake a Renew or Check, which may even begin after them and must then change nothing. Close is
// called once, when no other call is in flight but a List whose caller's loop goes on, or one that
// outlives its ctx.
//
// # Errors
//
// [ErrLocked], [ErrLost], [ErrUnsupported], [ErrInvalid], bare or wrapped;
// ctx.Err() when ctx ended. Any other error is the store's own and means that
// the outcome is unknown: the engine reports ErrUnavailable around it and, for
// an Acquire, calls Abandon. A driver never logs, never outlives ctx, sends a
// request four times at most without being asked, and a release for 1.5 s, and
// puts no secret into an error.
type Driver interface {
	// Traits says what this driver promises. It is constant and asks no server.
	Traits() Traits

	// Acquire takes the lock, in one round trip if it is free.
	//
	// Sent again with the same Nonce it has the effect of once, the token included: it finds its
	// own grant or its own place in the queue. A request that arrives after its nonce was
	// abandoned, or released while it went unanswered, is answered ErrLost.
	//
	// Without Wait it answers ErrLocked at once if another holds the lock, or
	// waits for it where Traits.FIFO. With Wait it returns when granted, when ctx
	// ends, or on an error that waiting cannot mend; first come, first served where
	// Traits.FIFO; an outage of the store is ridden out for [Patience]. Ended by
	// ctx, its error matches ctx.Err(), and ErrLocked too if the store's last
	// answer was that another holds it. [Wait] does this for a driver whose store
	// is asked again and again.
	//
	// After any error but ErrLocked without Wait, the engine calls Abandon. A driver that sent a
	// try again at once, and is told ErrLocked then, abandons it itself: the first copy may come
	// late and be granted. (The engine does so for a try that took more than 100 ms.)
	Acquire(ctx context.Context, r *Request) (Grant, error)

	// Renew sets the expiry of many holds to TTL + Grace from now, in as few round trips as the
	// store allows. Result i is for hold i: nil; ErrLost, surely not ours any more; or any other
	// error, unknown. It compares and sets in one step and never creates: a hold that has vanished
	// stays so. The engine gives it up to 2,000 holds, of similar TTLs, and a ctx that ends after a
	// third of the shortest (at least 100 ms, at most 5 s). A Renew that the program asked for is
	// about one hold, and may take until its Deadline (at most 5 s).
	Renew(ctx context.Context, hs []*Hold) []error

	// Release frees the lock if it is ours, and wakes one waiter. It returns nil also when it is
	// repeated after it was applied, and ErrLost if the lock was not ours any more. It never
	// touches another holder. A transactional driver returns an *[UndoneError] if it freed the lock
	// and rolled back the holder's writes; see [Undoer].
	Release(ctx context.Context, h *Hold) error

	// Abandon undoes a request whose outcome is unknown or unwanted: it leaves the queue, and frees
	// the lock if it was granted, which wakes the next waiter. A request of the same nonce that is
	// still under way must find that it was abandoned. nil or ErrLost: nothing is left. After
	// ErrInvalid and ErrUnsupported too the engine does not ask again; after any other error it
	// does. The first try has half a second, each further one 2 s.
	Abandon(ctx context.Context, r *Request) error

	// Inspect describes one name. A free one is no error.
	Inspect(ctx context.Context, name string) (Info, error)

	// List yields every name with this prefix that is held or waited for, each
	// once, in no order and not as of one moment. It ends after the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]

	// Break frees the lock whoever holds it, without its Grace, and wakes one waiter. A free one is
	// no error. The holder learns of it within Traits.Revoked.
	Break(ctx context.Context, name string) error

	// Close ends the driver's goroutines, waits for them, and closes the clients
	// that the driver opened itself; never one that its caller gave.
	Close() error
}

// A Checker is a Driver that can look whether holds are still its own without
// changing anything. Result i is for hold i as for Renew, and ctx ends as there. Where the store
// does not tell a holder that its lock was taken away, the engine calls Check for all holds that
// nothing has just confirmed, so often that Traits.Revoked is kept. Without Traits.Revoked it never
// does.
type Checker interface {
	Check(ctx context.Context, hs []*Hold) []error
}

// A Raiser is a Driver that can raise its token source: every later grant of
// any name has a token greater than floor. It never lowers it.
type Raiser interface {
	Raise(ctx context.Context, floor Token) error
}

// A Handler is something with a driver's handle of a hold: what *fencelock.Lease
// offers to functions of a driver's package.
type Handler interface {
	Handle() any
}

// An Undoer is the Handle of a Grant through which the holder writes in the lock's own transaction.
// The engine calls Undo where the holder did not mean to commit: a function of Locker.Do that
// failed, panicked or was cancelled, and Locker.Close. The next Release of the hold rolls back, and
// returns an *[UndoneError] with the first cause if anything was written. Undo sends nothing and
// never blocks. It may be called more than once, and after the release, when it changes nothing.
type Undoer interface {
	Undo(cause error)
}
