package core

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A Hold is a granted Request. The engine makes one for each grant and gives the same pointer to every
// call about it.
type Hold struct {
	*backend.Request
	backend.Grant
}

// A Caller is how the engine, and a migration in its stead, calls a store: each call ends when ctx does
// and sends as often as it takes until then.
//
// Of one Request at most one call is in flight, with one exception: Release or Abandon may overtake a
// Renew or Check, which may even begin after them and must then change nothing. Close is called once,
// when no other call is in flight but a List whose caller's loop goes on, or one that outlives its ctx.
//
// Errors are as of [backend.Driver], without ErrGates; ctx.Err() when ctx ended. Any other one means that
// the outcome is unknown: the engine reports ErrUnavailable around it and, for an Acquire, calls Abandon.
type Caller interface {
	Traits() backend.Traits

	// Tells reports whether the store tells of losses by itself, so that Check is of no use.
	Tells() bool

	// Acquire takes the lock, in one round trip if it is free.
	//
	// Sent again with the same Nonce it has the effect of once, the token included: it finds its
	// own grant or its own place in the queue. A request that arrives after its nonce was
	// abandoned, or released while it went unanswered, is answered ErrLost.
	//
	// Without Wait it answers ErrLocked at once if another holds the lock, or waits for it where
	// Traits.FIFO. With Wait it returns when granted, when ctx ends, or on an error that waiting cannot
	// mend; first come, first served where Traits.FIFO; an outage of the store is ridden out for
	// [Patience]. Ended by ctx, its error matches ctx.Err(), and ErrLocked too if the store's last
	// answer was that another holds it.
	//
	// After any error but ErrLocked without Wait, the engine calls Abandon. A Caller that sent a try
	// again at once, and is told ErrLocked then, abandons it itself: the first copy may come late and
	// be granted. (The engine does so for a try that took more than 100 ms.)
	Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error)

	// Outage returns why the last look of an Acquire that waits for the name failed; nil: it was answered, or nobody
	// waits.
	Outage(name string) error

	// Renew sets the expiry of many holds to TTL + Grace from now. Result i is for hold i: nil;
	// ErrLost, surely not ours any more; or any other error, unknown. The engine gives it up to 2,000
	// holds, of similar TTLs, and a ctx that ends after a third of the shortest (at least 100 ms, at
	// most 5 s). A Renew that the program asked for is about one hold, and may take until its Deadline
	// (at most 5 s).
	Renew(ctx context.Context, hs []*Hold) []error

	// Check looks whether holds are still their own, and changes nothing. Result i and ctx are as for
	// Renew; there are up to backend.Calls.Looks holds. The engine calls it unless the store tells, for all
	// holds that nothing has just confirmed, so often that Traits.Revoked is kept; without
	// Traits.Revoked never.
	Check(ctx context.Context, hs []*Hold) []error

	// Release frees the lock if it is ours, and wakes one waiter. It returns nil also when it is
	// repeated after it was applied, and ErrLost if the lock was not ours any more. A transactional
	// driver's returns an *UndoneError if it freed the lock and rolled back the holder's writes.
	Release(ctx context.Context, h *Hold) error

	// Abandon undoes a request whose outcome is unknown or unwanted: it leaves the queue, and frees
	// the lock if it was granted, which wakes the next waiter. A request of the same nonce that is
	// still under way must find that it was abandoned. nil or ErrLost: nothing is left. The engine does not
	// ask again after ErrUnsupported either, nor after ErrInvalid if the store can have nothing of the request;
	// after any other error it does. The first try has half a second, each further one 2 s.
	Abandon(ctx context.Context, r *backend.Request) error

	// Inspect describes one name. A free one is no error.
	Inspect(ctx context.Context, name string) (backend.Info, error)

	// List yields every name with this prefix that is held or waited for, each
	// once, in no order and not as of one moment. It ends after the first error.
	List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error]

	// Break frees the lock whoever holds it, without its Grace, and wakes one waiter. A free one is
	// no error. The holder learns of it within Traits.Revoked.
	Break(ctx context.Context, name string) error

	// Settle waits for what the Caller may send yet of a Renew that has returned. It comes before the
	// driver is closed.
	Settle()

	// Close closes the driver. Land is to follow.
	Close() error

	// Land waits for calls that outlived their callers, once the driver is closed.
	Land()
}

// A Gater is a Caller whose store can take part in a migration, as the old store or the new one.
//
// Acquire then checks the gates of the driver's keyspace in the step that grants, or in one after
// which no gate comes before the grant, also for a waiter whose turn has come, and for requests
// without a Phase: it refuses what backend.Admit refuses, with a *backend.GateError. A request that
// was granted before and is sent again is no new grant and is not checked; the confirmation of a
// claim is. While another holds the lock, a request that a gate would refuse may be refused,
// answered ErrLocked, or queue until its turn. Renew, Release and Abandon never look at gates. A
// store without gates costs no request more.
type Gater interface {
	Caller

	// Raise raises the token source: every later grant of any name has a token greater than floor. It
	// never lowers it.
	Raise(ctx context.Context, floor backend.Token) error

	// Gates returns the gates of the keyspace, as of a moment after the call.
	Gates(ctx context.Context) ([]backend.Gate, error)

	// SetGate writes the gate of g.Move where the stored epoch is was (0: there is none; backend.Lower:
	// any below g.Epoch). The caller sees to it that g.Epoch is above was. It returns nil also
	// where g stands already, and backend.ErrGateMoved if anything else does. A store that keeps the gate
	// in several places may have changed some of them then, and after any error: the gate is Torn.
	SetGate(ctx context.Context, g backend.Gate, was int64) error

	// Undrained describes the locks in g's scope that are held by anyone whom g, closed, would not
	// admit: other phases, other migrations, strangers. It is called while g is closed, and when it
	// returns none, then there is no such hold and cannot be one before the gate opens. It may stop
	// after a hundred.
	Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error)

	// Source returns a number that no token of the keyspace exceeds yet.
	Source(ctx context.Context) (backend.Token, error)

	// RaiseHeld raises the token source of h's name to at least floor if the lock is still h's, in one
	// step: every later grant of the name has a greater token. ErrLost if it is not h's any more.
	RaiseHeld(ctx context.Context, h *Hold, floor backend.Token) error

	// Report writes c, which the store forgets keep after the last report; c.Move and c.ID are its key.
	Report(ctx context.Context, c backend.Client, keep time.Duration) error

	// Withdraw deletes what Report wrote.
	Withdraw(ctx context.Context, c backend.Client) error

	// Clients returns what the clients of a migration have reported, in no order.
	Clients(ctx context.Context, move string) ([]backend.Client, error)
}

// Composite makes a backend.Driver of a Caller, for what is made of other drivers: what embeds it is
// both, and may have methods of its own in place of some of the Caller's. The engine calls it as a
// Caller; a claim that it is asked for all the same is refused, and so is what hides that it is one. A
// backend.Router embeds it without a Caller, for the engine calls its routes.
type Composite struct{ Caller }

var errComposite = backend.Unsupported("this driver is made of others, and takes no claim itself")

// Calls implements backend.Driver: it takes no claims.
func (Composite) Calls() backend.Calls { return backend.Calls{} }

// Enter implements backend.Driver.
func (Composite) Enter(context.Context, *backend.Claim) error { return errComposite }

// Ask implements backend.Driver.
func (Composite) Ask(_ context.Context, cs []*backend.Claim) { refuse(cs) }

// Leave implements backend.Driver.
func (Composite) Leave(_ context.Context, cs []*backend.Claim) { refuse(cs) }

func refuse(cs []*backend.Claim) {
	for _, c := range cs {
		c.Err = errComposite
	}
}

// Keep implements backend.Driver.
func (Composite) Keep(_ context.Context, cs []*backend.Claim, _ bool) []error {
	return slices.Repeat([]error{errComposite}, len(cs))
}

// Look implements backend.Driver.
func (d Composite) Look(ctx context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	if r.Name == "" {
		return d.List(ctx, r.Prefix)
	}
	return func(yield func(backend.Info, error) bool) { yield(d.Inspect(ctx, r.Name)) }
}
