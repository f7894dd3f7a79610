// Package backend is what a driver of Fencelock implements, and the words that
// drivers, the engine (package fencelock) and their users share: [Driver],
// [Claim], [Request], [Grant], [Info], [Traits], the errors, and the registry of
// URL schemes. It imports the standard library only.
//
// # The life of a lease
//
//	asking ────────────────────▶ held ◀───┐
//	  │         granted           │ │ └───┘ Keep: nil before the Deadline
//	  │                           │ │
//	  │ an error, ctx over,       │ │ Unlock, Close
//	  │ granted too late,         │ └──────────────▶ releasing ◀──┐
//	  │ taken away at once        │                   │ │  │      │ Unlock again,
//	  │                           │       Leave: nil  │ │  │      │ Close
//	  │                           │       ┌───────────┘ │  ▼      │
//	  │                           │       │             │ unrenewed
//	  │                           ▼       ▼             │  │
//	  │                         lost   released         │  │
//	  │                         │  ▲                    │  │
//	  │         after the Grace │  └────────────────────┴──┘
//	  ▼                         │     ErrLost, Deadline, MaxHold
//	abandoned ◀─────────────────┘
//
// What happens in each state:
//
//   - asking: the claim is with the driver. A try that is answered ErrLocked within 100 ms ends here.
//     Every other end but a grant leads to abandoned, and so does a grant that is seen after the
//     deadline that it would set, or after Request.Lost was called.
//   - held: the engine renews the hold, unless the program does, and looks at it. It is
//     lost at its Deadline or MaxHold, by ErrLost of Keep, and by Request.Lost. Unlock of
//     one of several leases on it (WithReentrancy) changes nothing here.
//   - passed on: Unlock may give a hold to the next waiter of the same process instead of releasing
//     it. Its lease is released then, and the next lease is held on the same [Claim], with the next
//     token. The driver is not asked.
//   - releasing: Leave is with the driver. A hold that Close cannot get confirmed is lost.
//   - unrenewed: the outcome of Leave is unknown. The hold is neither renewed nor looked at, and
//     Request.Lost is no news.
//   - kept: Unlock or Close before the time of WithMinHold is over renews the hold instead of
//     releasing it: the driver is asked with Keep, and the lease is released or lost by its answer.
//     The hold is abandoned when the time is over; a Close before that leaves it to the store's
//     expiry, which a driver with Traits.MinHold does not bring forward when it is closed.
//   - released, lost: final. A lost hold is abandoned once its Grace and the time of WithMinHold are
//     over, so that the store does not keep it longer than it must; a Close before that leaves it to
//     the store's expiry. If the Observer panics, so that Lock cannot return the lease, the lease is
//     released and abandoned.
//   - abandoned: Leave is called, with growing pauses, until the store answers. ErrInvalid is no
//     answer if the claim was granted, has waited, or was sent in vain: the rights of the program
//     may come back. Once TTL + Grace are over, at most 10,000 requests are kept. Close gives them
//     a few more tries.
//
// # The time model
//
// A holder trusts its lease until
//
//	Deadline = (moment before the request was sent) + TTL − margin
//	margin   = max(20 ms, 2 % of the TTL, Traits.Margin)
//
// or sooner if [Grant].Max or WithMaxHold says so, on its own monotonic clock, sleep of the machine
// included ([Instant]). The store frees the lock no earlier than TTL + Grace after it applied the
// request, by its own clock. The request was applied after it was sent, so the holder stops first,
// whatever the network did to the reply, as long as the two clocks' rates differ by less than the
// margin's share of the TTL. Wall clocks of clients play no part. The package comment of a driver
// and Traits.ClockFree say what is assumed of the clock of its server.
//
// A request's reply that comes after the deadline that it would set is no grant: the engine gives
// it back. A deadline is moved only by a renewal that the store confirmed before the old deadline.
//
// No lease can promise that a process which is stopped between its look at the lease and its write
// does not write too late. The fencing token is for that: the resource itself must check it.
//
// # The way of a Lock
//
// From the call to the wire, where the lock is free and nobody else is under way:
//
//	mutex.Lock
//	└ mutex.acquire        the event that the call ends in, the wrapping of its error
//	  └ mutex.take         the name's checks, reentry, the line of this process
//	    └ mutex.ask        a Request; once more if its grant came too late
//	      └ Client.Acquire   its Claim; the wait, if the lock is held
//	        └ Client.ask     the gates that are known judge it; once more if the store has others
//	          └ Client.send  again while no answer comes, and the Claim is Unsure from then on
//	            └ lane.send    alone, or with the claims that came while others were under way
//	              └ driver.Ask   one request to the store
//
// The grant goes back the same way: mutex.ask sets the Deadline from Grant.Asked and plans the
// renewals, and mutex.acquire tells the Observer.
//
// # Checklist for a new driver
//
//  1. Traits (this library's own drivers have them in [Catalog]), a scheme registered from init, a
//     constructor that takes the client a program already has and returns (*Driver, error). Keys
//     come from [Query]; prefix= is one.
//  2. Encode names so that every valid one works and no two meet: with separators, long, in
//     another case or Unicode form.
//  3. Ask is one atomic step: own nonce first (a re-sent request finds its grant), then the
//     queue, then the free lock, and the token in the same step, as
//     max(source + 1, clock in µs, floor + 1) where the store has a clock.
//  4. Every write compares the nonce: Keep and Leave. Keep never creates.
//  5. Set Grant.Asked just before the send that sets the expiry. Use relative expiries and the
//     store's clock.
//  6. A release that is sent again after it was applied says nil: remember released nonces for a
//     while.
//  7. An abandoned request that arrives late finds that it was abandoned.
//  8. A free lock with a queue belongs to the queue's first live waiter, whoever looks.
//  9. Wake exactly one waiter by push, and every waiter after each (re)subscription; say in
//     Claim.Next by when to look anyway.
//  10. Skip dead waiters within Traits.DeadWaiter. State per name is gone once nobody holds it or
//     waits.
//  11. Call Request.Lost when the store says so, or let Keep look (Calls.Tells).
//  12. Own the goroutines and clients that you started, end them in Close, and leave alone what you
//     were given.
//  13. A value of the wrong type or shape under our key is ErrInvalid, never a free lock.
//  14. Run the conformance suite, and add the broken twin of your driver for what is special about
//     it.
package backend
