package backend

import (
	"context"
	"errors"
	"iter"
	"time"
)

// A Claim is one acquisition, from its first Ask until its Leave was answered. The engine makes it
// and gives the same pointer to every call about it. What a [Store] must remember of the
// acquisition it keeps in Place, and nowhere else.
//
// The engine writes Request, Held, Unsure, Leaving and Waker, and a store reads them. A store
// writes Place, and its answer: Grant, Err, Queued, Next, and Gates with [ErrGates]. Once a call
// has returned, the store touches no field of the claim: it speaks through Wake and Request.Lost.
type Claim struct {
	*Request // never changed

	// Held: a grant was handed out, so Leave is a release. Otherwise Leave undoes what may be left.
	Held bool
	// Unsure: a send of the claim went unanswered once, so a copy of it may still come. Only then
	// does Leave have to leave something by which the store refuses that copy.
	Unsure bool
	// Gates are what the engine has judged the request by; nil: there are none. Ask compares the
	// version in the step that grants. Where the store has others it puts those here, or nil for
	// none, and answers [ErrGates].
	Gates *Record
	// Leaving: this entry of Ask is a Leave. Only a store with Calls.Mixed sees it.
	Leaving bool
	// Place is the store's own. It is written in Enter, Ask and Leave only.
	Place any
	// Waker is for Wake.
	Waker Waker

	// Grant is the store's yes, set by the Ask that grants and by nothing else. Asked is the moment
	// just before the send; Ungated is the engine's.
	Grant
	// Err is the answer to the last Ask or Leave: nil is yes, and [ErrLocked] of Ask is not yet. The
	// engine clears it, Queued and Next before each.
	Err error
	// Queued, with ErrLocked: the claim stands in the queue, and whatever makes another look worth
	// while calls Wake from now on. A waiter that is not Queued gets an Enter and another Ask.
	Queued bool
	// Next, with ErrLocked: look again at the latest then; 0: as late as the engine likes. With an
	// error after which the engine sends again: the pause before that; 0: the engine's own.
	Next time.Duration
}

// Wake makes the engine ask again, in that time (0: now). It may be called from any goroutine, too
// early, and after the claim has ended, and never blocks.
func (c *Claim) Wake(in time.Duration) { c.Waker.Wake(in) }

// A Waker is the engine's side of [Claim.Wake].
type Waker interface{ Wake(in time.Duration) }

// ErrGates is Ask's answer where the store's gates are not those of [Claim.Gates], and Swap's where
// a record is not of the version that its caller has seen.
var ErrGates = errors.New("the gates have changed")

// Refusal marks err as the store's word that it has done nothing of what was asked, and may do it
// later: a server that is loading, was demoted, or has no memory left. The engine asks again, and
// knows that no copy of the send is under way.
func Refusal(err error) error { return &refusal{err} }

// Refused reports whether err is such a word.
func Refused(err error) bool {
	_, ok := errors.AsType[*refusal](err)
	return ok
}

type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// A Record is a small piece of data that a store keeps for the engine.
type Record struct {
	Key   string
	Place string // where, in a store that keeps each record in several places that stand alone
	Data  []byte
	// Version differs for different Data, through all that the store loses or brings back; "" is the
	// version of a record that is not there.
	Version string
}

// The keys of the engine's records.
const (
	// GateKey and a migration's name is the key of its gate.
	GateKey = "gate/"
	// ClientKey, a migration's name, a zero byte and an id is the key of what a client has reported.
	ClientKey = "client/"
	// AnyVersion, as the version that Swap expects, stands for every one.
	AnyVersion = "*"
	// UnknownVersion is the one that Load gives a place that has not answered, with [GateKey] and no
	// Data. No record has it.
	UnknownVersion = "?"
)

// Calls is how a store wants to be called.
type Calls struct {
	// Most is how many claims one call of Ask or Leave may be about. 1: they are never combined. A
	// batch returns with its slowest claim.
	Most int
	// Abreast is how many such calls are under way at a time before others wait to go together.
	Abreast int
	// Mixed: Ask takes leaves too (Claim.Leaving), and Leave is never called.
	Mixed bool
	// Aside: a call may outlive the end of its ctx, so none is made on the caller's own goroutine.
	Aside bool
	// Tells: the store itself calls Request.Lost when a lock is taken away, and is not looked at.
	Tells bool
}

// A Range is which names a Look is about: Name, which is described even if it is free, or else all
// names that begin with Prefix and are held or waited for.
type Range struct {
	Name, Prefix string
	// Strict: each one that was held when Look began, and is held yet, or an error.
	Strict bool
}

// A Store is what a driver implements. Each method sends each thing once: it neither sends again
// nor waits for a lock nor loops over time; the engine does. It returns when ctx ends (but see
// Calls.Aside), and is called from many goroutines at once, for any names.
//
// # What overlaps
//
// Of one claim at most one Enter, Ask or Leave is in flight, ever: the engine waits for one that
// has outlived its caller. Keep may overlap Leave and come after it, so it writes nothing into the
// claim. Close is called once, when nothing else is in flight but calls that outlive their ctx.
//
// # Errors
//
// [ErrLocked], [ErrLost], [ErrGates], [ErrInvalid], [ErrUnsupported], bare or wrapped. Any other
// error means that the outcome is unknown, unless it is a [Refusal], and the engine sends again.
type Store interface {
	// Traits says what this store promises. It is constant and asks no server.
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
	// already; and it draws the token. A claim with Wait whose lock is not free joins the queue, if
	// it has entered.
	Ask(ctx context.Context, cs []*Claim)

	// Keep renews each claim (extend): it sets the expiry to TTL + Grace from now if the lock is
	// still the claim's, and never creates; or it only looks. Result i is for cs[i]: nil, ErrLost,
	// or any other error, unknown.
	Keep(ctx context.Context, cs []*Claim, extend bool) []error

	// Leave gives each claim up in one step: out of the queue, the lock freed if it is the claim's,
	// the next one woken; and if the claim is Unsure, a copy of it that comes later is refused until
	// TTL + Grace are over. Sent again it has the effect of once. ErrLost: a lock that was Held was
	// not the claim's any more.
	Leave(ctx context.Context, cs []*Claim)

	// Look describes names, each once, in no order. It ends after the first error.
	Look(ctx context.Context, r Range) iter.Seq2[Info, error]

	// Break frees the lock whoever holds it, without its Grace, and wakes the next one. A free one
	// is no error. The holder learns of it within Traits.Revoked. The engine sends it once.
	Break(ctx context.Context, name string) error

	// Close ends the store's goroutines, waits for them, and closes the clients that the store has
	// opened itself; never one that its caller gave.
	Close() error
}

// A Mover is a Store that can take part in a migration, as the old store or as the new one.
type Mover interface {
	Store

	// Load yields the records whose keys begin with prefix, as of a moment after the call; of
	// [GateKey] at least one for each place, with Version "" if that has none.
	Load(ctx context.Context, prefix string) iter.Seq2[Record, error]

	// Swap writes each record if its version at its place is still rs[i].Version, else ErrGates; nil
	// Data deletes it. The store forgets it after keep (0: never). Where one fails, it may have
	// written those after it or not.
	Swap(ctx context.Context, rs []Record, keep time.Duration) error

	// Source returns a number that no token of the keyspace exceeds yet.
	Source(ctx context.Context) (Token, error)

	// Raise makes every later token greater than floor: those of held's name, in one step with
	// seeing that the lock is still held's (else ErrLost), or with nil those of all names.
	Raise(ctx context.Context, floor Token, held *Claim) error
}
