package history

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fencelock/fencelock/backend"
)

// A State is the state of one fenced lock and the resource behind it at a moment.
type State struct {
	Holder backend.Token // of the lease that has the lock; 0: it is free
	// when that lease may be taken over: the start of its last grant or renewal + TTL − margin, its
	// deadline
	Until     Moment
	LastToken backend.Token // the greatest that was granted
	StoreMax  backend.Token // the greatest that the resource has seen
	Now       Moment        // the earliest at which it can be this state, by the calls so far
}

// An Op is one call, with the window in which it happened: so a model with time in it stays a function.
type Op struct {
	Verb      Verb
	Token     backend.Token
	Called    Moment
	Returned  Moment // forever if the call did not return
	Until     Moment // Acquire, Renew: the lease's deadline
	Result    Result
	Exclusive bool // Acquire, Release: it is judged whether another had the lock
}

// A Verb is the kind of an Op.
type Verb string

// The calls that a lock and its resource have.
const (
	Acquire Verb = "acquire"
	Renew   Verb = "renew"
	Release Verb = "release"
	Access  Verb = "access"  // a read or a write that shows a token
	Inspect Verb = "inspect" // the store is asked who has the lock: Token, or 0
)

// forever is when a call returns that did not.
const forever = Moment(1) << 61

// Step returns the state after a call, and whether the call could have ended as it did.
//
// A lease is taken over at its deadline at the earliest: an acquisition that returned before that
// is legal only if the lock was free. No clock of a server is guessed.
func (s State) Step(o Op) (State, bool) {
	if s.Now = max(s.Now, o.Called); s.Now > o.Returned { // the calls before it came too late for it
		return s, false
	}
	over := o.Returned >= s.Until
	own := s.Holder == o.Token
	switch o.Verb {
	case Acquire:
		if o.Token <= s.LastToken || o.Exclusive && s.Holder != 0 && !over {
			return s, false
		}
		if o.Exclusive && s.Holder != 0 {
			s.Now = max(s.Now, s.Until)
		}
		s.Holder, s.Until, s.LastToken = o.Token, o.Until, o.Token
	case Renew:
		if own {
			s.Until = o.Until
		}
		return s, own || !o.Exclusive
	case Release:
		legal := !o.Exclusive || o.Result == Unclear || o.Result == OK && own || o.Result == Refused && (!own || over)
		if own { // also Refused: one that was done, and whose reply never came, ends at the deadline as a loss
			s.Holder = 0
		}
		return s, legal
	case Access:
		legal := o.Result == Unclear || (o.Result == OK) == (o.Token >= s.StoreMax)
		if o.Result != Refused {
			s.StoreMax = max(s.StoreMax, o.Token)
		}
		return s, legal
	case Inspect:
		return s, !o.Exclusive || own || o.Token == 0 && over
	}
	return s, true
}

// Model is the model of one lock for porcupine. Its inputs are Ops.
var Model = porcupine.Model{
	Init: func() any { return State{} },
	Step: func(state, input, _ any) (bool, any) {
		next, legal := state.(State).Step(input.(Op))
		return legal, next
	},
	Hash: func(state any) uint64 {
		s := state.(State)
		h := uint64(s.Holder)*0x9E3779B97F4A7C15 ^ uint64(s.Until)*0xBF58476D1CE4E5B9 ^
			uint64(s.LastToken)*0x94D049BB133111EB ^ uint64(s.StoreMax)*0xD6E8FEB86659FD93 ^
			uint64(s.Now)*0xA0761D6478BD642F
		return h ^ h>>31
	},
	DescribeOperation: func(input, _ any) string {
		o := input.(Op)
		text := fmt.Sprintf("%s %d: %s", o.Verb, o.Token, o.Result)
		if o.Until != 0 {
			text += " until " + time.Duration(o.Until).String()
		}
		return text
	},
	DescribeState: func(state any) string {
		s := state.(State)
		if s.Holder == 0 {
			return fmt.Sprintf("free, last token %d, resource %d", s.LastToken, s.StoreMax)
		}
		return fmt.Sprintf("%d until %v, last token %d, resource %d",
			s.Holder, time.Duration(s.Until), s.LastToken, s.StoreMax)
	},
}
