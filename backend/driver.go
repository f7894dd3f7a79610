package backend

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"
)

// Token is a fencing token: a number that is strictly greater for every later
// grant of the same name, so that a resource can refuse a holder that was
// overtaken. It is below 2^53, so that JSON and Lua keep it exact. Zero means
// that there is none.
type Token = int64

// A Request asks for one name. The engine makes it and checks it; a driver
// never changes it and may keep it until the call that is about it returns.
// Every call about one acquisition carries the same *Request, in its [Claim].
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
	// expiry is TTL + Grace after it applied the last Ask or Keep, by its
	// own clock. Zero unless Traits.Grace.
	Grace time.Duration
	// Floor is a number that the granted token must exceed.
	Floor Token
	// Reserve asks for so many tokens after the granted one, for holders of the same process
	// to whom this one may pass the lock on without asking the store. A driver grants as
	// many of them as costs nothing more, or none: see [Grant.Reserved].
	Reserve int
	// Mode is how the name is asked for, and Limit how many may hold it at once, this one included, if that
	// is Permit: 2 to [MostPermits]. See Request.Admits. A driver whose Traits have neither Readers nor
	// Permits sees Exclusive only.
	Mode  Mode
	Limit int
	// Wait: queue until granted. Otherwise one attempt.
	Wait bool
	// Auto: the engine will renew this hold by itself until it is released or lost, and it has
	// neither a Grace nor a bound (WithMaxHold, WithMinHold). A driver may let such requests of one
	// TTL share what its store calls a lease or session, and end that when it is closed.
	Auto bool
	// Move is the migration that the acquisition takes part in, and Phase how; both
	// are empty for a client that knows of none. A [Mover] keeps them, so that a holder in
	// PhaseBoth can be told from others in its store.
	Move  string
	Phase Phase
	// Lost is called by a driver that learns by itself (a push, a watch, the end
	// of a session or connection) that the lock is no longer ours: with [ErrLost]
	// for a lock that was taken away, with a *[LostError] to say more. It may be
	// called from any goroutine, more than once, also before Ask has returned
	// and after the release; it never blocks. A driver never calls it on a guess.
	Lost func(error)

	// Claim is what the engine has made of the request. A driver leaves it alone.
	Claim any
}

// A Grant is the store's yes.
type Grant struct {
	// Token is greater than the token of every earlier grant of this name and than
	// Request.Floor. The store computes it in the step that grants, once
	// ownership is certain, and when a waiter merely joins the queue only if
	// nothing that was granted or raised since can have gone above it.
	//
	// A Reader beside whom others read has their token, unless its Floor is not below that: so readers
	// never shut each other out at a guard, and a writer that came between two of them is told from both.
	Token Token
	// Slot is the number of a Permit, from 0 and below Limit: the least that no other holder of the name has.
	Slot int
	// Reserved is how many numbers after Token belong to this grant too, at most Request.Reserve:
	// no other grant of the name, before or after, has one of them, and every later grant has a
	// greater one, through all that Token itself survives. A source that follows a clock is not
	// moved ahead of it for them by more than 3 ms. Zero is always right, and the only answer of a
	// driver whose holds end with more than the lock, such as a transaction.
	Reserved int
	// Asked is the moment just before the request was sent whose effect set the
	// store's expiry: for a lock that was waited for, the last request before the
	// grant was seen. The zero value stands for the moment before the first Ask.
	Asked Instant
	// Sent is how long after Asked the request was sent that the store answered with this grant,
	// where the one that Asked tells of was an earlier one, such as the renewal of a session that
	// many locks share.
	Sent time.Duration
	// Max bounds what may be trusted after Asked where the store trusts less
	// than the TTL (a session, a validity computed from several nodes); 0: TTL.
	Max time.Duration
	// Short, where it is not 0, stands for TTL + Grace after Asked until the engine has renewed, which
	// it does soon: a store that pushes a grant to a waiter, which may be dead, keeps it for no longer
	// than that.
	Short time.Duration
	// Ungated: the request takes part in a migration, and the store has no gate of
	// that migration for the name. It never had one, or has lost it.
	Ungated bool
	// Handle is the driver's own, shown to users through Lease.Handle for functions of the driver's
	// package.
	Handle any
}

// Info describes one name as the store sees it. A process that passes a lock on within itself does
// not tell the store: other processes then see the Token of the first of its holders, and the present
// holder's is up to Grant.Reserved more.
type Info struct {
	Name      string        `json:"name"`
	Owner     string        `json:"owner"`      // empty when unknown: free, or held by a stranger
	Held      bool          `json:"held"`       // by any program
	Token     Token         `json:"token"`      // 0 when unknown
	ExpiresIn time.Duration `json:"expires_in"` // by the store's clock; 0: no expiry of its own
	Waiters   int           `json:"waiters"`    // waiting processes; -1 when the store cannot tell
	Leaked    bool          `json:"leaked"`     // held without expiry: nobody will ever free it
	// Mode is how it is held. Of Reader and Permit Holders is how many do; Token is then the greatest of
	// theirs, ExpiresIn the longest, and Owner empty if they are several.
	Mode    Mode `json:"mode,omitempty"`
	Holders int  `json:"holders,omitempty"`
	// Holds are those Holders, in the order in which they expire, and the first [MostHolds] of them only.
	Holds []Held `json:"holds,omitempty"`

	// For the engine, of Look:
	Both    string `json:"-"` // the migration of a holder in PhaseBoth
	Pending bool   `json:"-"` // kept for a waiter that has not asked for it yet
	// Nameless: the store does not know the name, which may be any; Name says what it knows.
	Nameless bool `json:"-"`
}

// Held is one of several that hold a name.
type Held struct {
	// ID tells it from others: a driver gives Request.Nonce, of which the engine shows the first 12 digits.
	ID        string        `json:"id"`
	Owner     string        `json:"owner"`
	Token     Token         `json:"token"` // 0: kept for a waiter that has not asked for it yet
	Slot      int           `json:"slot"`  // of a permit
	ExpiresIn time.Duration `json:"expires_in"`
}

// MostHolds is how many of Info.Holds there are at most.
const MostHolds = 100

// FirstHolds returns what Info.Holds shows of all holds of a name.
func FirstHolds(all []Held) []Held {
	slices.SortFunc(all, func(a, b Held) int { return cmp.Compare(a.ExpiresIn, b.ExpiresIn) })
	return all[:min(len(all), MostHolds)]
}

// Calls is how a driver wants to be called.
type Calls struct {
	// Most is how many claims one call of Ask or Leave may be about, at least 1. With 1 they are never
	// combined. A batch returns with its slowest claim.
	Most int
	// Abreast is how many such calls are under way at a time before others wait to go together; 0 is 1.
	Abreast int
	// Mixed: Ask takes leaves too (Claim.Leaving), and Leave is never called.
	Mixed bool
	// Aside: an Ask or Leave may outlive the end of its ctx, so none is made on the caller's own goroutine. Other
	// methods return when ctx ends.
	Aside bool
	// Tells: the store itself calls Request.Lost when a lock is taken away, and is not looked at.
	Tells bool
	// Looks is how many claims a Keep that only looks may be about; 0 is 2,000.
	Looks int
}

// A Range is which names a Look is about: Name, which is described even if it is free, or else all
// names that begin with Prefix and are held or waited for.
type Range struct {
	Name, Prefix string
	// Strict: each one that was held when Look began, and is held yet, or an error.
	Strict bool
}

// A Driver speaks to one store. Each method sends each thing once: it neither sends again nor waits
// for a lock nor loops over time; the engine does that, and validation, defaults, nonces, the queue
// inside the process, deadlines, the schedule of renewals, clean-up and events. A method returns
// when ctx ends (but see Calls.Aside), and is called from many goroutines at once, for any names.
//
// # What overlaps
//
// Of one claim at most one Enter, Ask or Leave is in flight, ever: the engine waits for one that has
// outlived its caller. Keep may overlap Leave, and a renewal another one, and either may come after a
// Leave, so Keep writes nothing into the claim. Close is called once, when nothing else is in flight
// but calls that outlive their ctx.
//
// # Errors
//
// [ErrLocked], [ErrLost], [ErrGates], [ErrInvalid], [ErrUnsupported], bare or wrapped. Any other
// error means that the outcome is unknown, unless it is a [Refusal], and the engine sends again; in
// the end it reports ErrUnavailable around it. An error holds no secret, and a driver never logs.
type Driver interface {
	// Traits says what this driver promises. It is constant and asks no server.
	Traits() Traits
	// Calls says how it wants to be called, and is constant too.
	Calls() Calls

	// Enter makes what is pushed about c reach Wake, and returns when it does. It comes before every
	// Ask of a waiter but the first, and never for a lock that was free. A [Silence], of Ask too, says
	// that the store is slow, and answers others: that is no outage.
	Enter(ctx context.Context, c *Claim) error

	// Ask tries each claim once. One atomic step looks at: its own nonce, which finds its own grant
	// or its own place in the queue again; a refused nonce, which is answered ErrLost; the queue,
	// whose first live waiter a free lock belongs to; the gates, unless the claim holds the lock
	// already; and it draws the token (see Grant.Token). A claim with Wait whose lock is not free joins the queue, if
	// it has entered.
	Ask(ctx context.Context, cs []*Claim)

	// Keep renews each claim (extend): it sets the expiry to TTL + Grace from now if the lock is
	// still the claim's, and never creates; or it only looks. Result i is for cs[i]: nil, ErrLost,
	// surely not the claim's any more, or any other error, unknown. There are up to 2,000 claims (but see
	// Calls.Looks), of similar TTLs. Where the store does not tell of losses (Calls.Tells) and Traits.Revoked is not
	// 0, the engine looks so often that Traits.Revoked is kept.
	Keep(ctx context.Context, cs []*Claim, extend bool) []error

	// Leave gives each claim up in one step: out of the queue, the lock freed if it is the claim's,
	// the next one woken; and if the claim is Unsure, a copy of it that comes later is refused until
	// TTL + Grace are over. It never touches another holder. Sent again it has the effect of once.
	// ErrLost: a lock that was Held was not the claim's any more. A transactional driver returns an
	// *[UndoneError] if it freed the lock and rolled back the holder's writes; see [Undoer].
	//
	// A claim may be another program's, of which an operator knows the nonce and the mode from Info.Holds: its
	// holder learns of that within Traits.Revoked.
	Leave(ctx context.Context, cs []*Claim)

	// Look describes names, each once, in no order. It ends after the first error.
	Look(ctx context.Context, r Range) iter.Seq2[Info, error]

	// Break frees the lock whoever holds it, without its Grace, and wakes the next one. A free one
	// is no error. The holder learns of it within Traits.Revoked. The engine sends it once.
	Break(ctx context.Context, name string) error

	// Close ends the driver's goroutines, waits for them, and closes the clients that the driver has
	// opened itself; never one that its caller gave.
	Close() error
}

// A Mover is a Driver whose store can take part in a migration, as the old one or as the new one.
type Mover interface {
	Driver

	// Load yields the records whose keys begin with prefix, as of a moment after the call; of
	// [GateKey] at least one for each place, with Version "" if that has none.
	Load(ctx context.Context, prefix string) iter.Seq2[Record, error]

	// Swap writes each record if its version at its place is still rs[i].Version, else ErrGates; nil
	// Data deletes it. The store forgets it after keep (0: never). Where one fails, it may have
	// written those after it or not.
	Swap(ctx context.Context, rs []Record, keep time.Duration) error

	// Source returns a number that no token of the keyspace exceeds yet.
	Source(ctx context.Context) (Token, error)

	// Raise makes every later token greater than floor: the tokens of held's name, in one step with
	// seeing that the lock is still held's (else ErrLost), or with nil the tokens of all names.
	Raise(ctx context.Context, floor Token, held *Claim) error
}

// A Handler is something with a driver's handle of a hold: what *fencelock.Lease
// offers to functions of a driver's package.
type Handler interface {
	Handle() any
}

// An Undoer is the Handle of a Grant through which the holder writes in the lock's own transaction.
// The engine calls Undo where the holder did not mean to commit: a function of Locker.Do that
// failed, panicked or was cancelled, and Locker.Close; and when the lease is lost. The next Leave of the
// claim rolls back, and returns an *[UndoneError] with the first cause if anything was written. Undo sends
// nothing and never blocks, and no lock that it takes is held while a driver calls Request.Lost. It may be
// called more than once, and after the release, when it changes nothing. A Leave of the held claim that
// went unanswered may be asked again after one that is not Held: what became of what was written is to be
// known yet.
type Undoer interface {
	Undo(cause error)
}
