package backend

import (
	"errors"
	"time"
)

// A Claim is one acquisition, from its first Ask until its Leave was answered. The engine makes it
// and gives the same pointer to every call about it. What a [Driver] must remember of the
// acquisition it keeps in Place, and nowhere else.
//
// The engine writes Request, Held, Unsure, Leaving and Waker, and a driver reads them. A driver
// writes Place, and its answer: Grant, Err, Queued, Next, and Gates with [ErrGates]. Once a call
// has returned, the driver touches no field of the claim: it speaks through Wake and Request.Lost.
type Claim struct {
	*Request // never changed

	// Held: a grant was handed out, so Leave is a release. Otherwise Leave undoes what may be left.
	Held bool
	// Unsure: a send of the claim went unanswered once, so a copy of it may still come. Only then
	// does Leave have to leave something by which the store refuses that copy.
	Unsure bool
	// Gates are what the engine has judged the request by; nil: there are none. Ask compares the
	// version in the step that grants, or in one after which no gate comes before the grant. Where
	// the store has others it puts those here, or nil for none, and answers [ErrGates].
	Gates *Record
	// Leaving: this entry of Ask is a Leave. Only a driver with Calls.Mixed sees it.
	Leaving bool
	// Place is the driver's own. It is written in Enter, Ask and Leave only.
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
