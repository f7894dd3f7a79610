// Package backend is what a driver of Fencelock implements, and the words that
// drivers, the engine (package fencelock) and their users share: [Driver],
// [Request], [Grant], [Hold], [Info], [Traits], the errors, and the registry of
// URL schemes. It imports the standard library only.
//
// # The life of a lease
//
//	             Acquire: granted
//	(none) ─────────────────────────────▶ held ◀────────────┐
//	  ▲ │                                  │ │ │             │ Renew: nil
//	  │ │ Acquire: error, ctx over,        │ │ └─────────────┘ before Deadline
//	  │ │ grant seen after its deadline    │ │
//	  │ ▼                                  │ └── Unlock ────▶ releasing
//	abandoned ◀── Abandon until nil        │                  │   │  │
//	  ▲                                    │    Release: nil  │   │  │ Release: unknown: may be
//	  │                                    │        ┌─────────┘   │  │ called again; no renewal any more
//	  │                                    │        ▼             │  ▼
//	  │                                    │     released         │ held, unrenewed
//	  │     Deadline, ErrLost of a Renew   ▼                      │  │
//	  └──── or Check, Request.Lost ─────▶ lost ◀──────────────────┴──┘
//	        MaxHold                              ErrLost, Deadline
//
// Released and lost are final. A lost hold is abandoned in the background, so that the store
// does not keep it longer than it must. There is no way from lost or released back to held.
//
// # The time model
//
// A holder trusts its lease until
//
//	Deadline = (moment before the request was sent) + TTL − margin
//	margin   = max(20 ms, 2 % of the TTL, Traits.Margin)
//
// on its own monotonic clock, sleep of the machine included ([Instant]); the store
// frees the lock no earlier than TTL + Grace after it applied the request, by its own
// clock. The request was applied after it was sent, so the holder stops first, whatever the
// network did to the reply, as long as the two clocks' rates differ by less than the
// margin's share of the TTL. Wall clocks of clients play no part. What a driver's store
// assumes of its server's clock stands in the driver's package comment and in
// Traits.ClockFree.
//
// A request's reply that comes after the deadline that it would set is no grant: the engine
// gives it back. A deadline is moved only by a renewal that the store confirmed
// before the old deadline.
//
// What no lease can promise: that a process which is stopped between its look at
// the lease and its write does not write too late. The fencing token is for that:
// the resource itself must check it.
//
// # Checklist for a new driver
//
//  1. A Traits entry in [Catalog], a scheme registered from init, a constructor that takes the client a
//     program already has and returns (*Driver, error). Keys come from [Query]; prefix= is one of them.
//  2. Encode names so that every valid one works and no two meet: with separators, long, in
//     another case or Unicode form.
//  3. Acquire is one atomic step: own nonce first (a re-sent request finds its grant), then the queue,
//     then the free lock, and the token in the same step, as max(source + 1, clock in µs, floor + 1)
//     where the store has a clock.
//  4. Every write compares the nonce: Renew, Release, Abandon. Renew never creates.
//  5. Set Grant.Asked just before the send that sets the expiry. Use relative expiries and the store's clock.
//  6. A release that is sent again after it was applied says nil: remember released nonces for a while.
//  7. An abandoned request that arrives late finds that it was abandoned.
//  8. A free lock with a queue belongs to the queue's first live waiter, whoever looks.
//  9. Wake exactly one waiter by push; look again after every (re)subscription; keep the floor timer ([Wait]).
//  10. Skip dead waiters within Traits.DeadWaiter. State per name is gone once nobody holds it or waits.
//  11. Call Request.Lost when the store says so, or implement [Checker].
//  12. Own the goroutines and clients that you started, end them in Close, and leave alone what you were given.
//  13. A value of the wrong type or shape under our key is ErrInvalid, never a free lock.
//  14. Run the conformance suite, and add the broken twin of your driver for what is special about it.
package backend
