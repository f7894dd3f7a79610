// Package fencelock is a distributed mutex with leases and fencing tokens, one
// interface over many stores.
//
// A [Locker] is opened on a backend by URL, or made from a driver with [New]. It makes a [Mutex] by
// name; Lock returns a [Lease], which is renewed in the background until it is unlocked, and which
// says by itself, with no help of the network, when it may not be trusted any more:
//
//	locks, err := fencelock.Open(ctx, "redis://localhost:6379/0")
//	…
//	lease, err := locks.Mutex("jobs/nightly").Lock(ctx)
//	…
//	held, cancel := lease.Context(ctx) // ends with the lease
//	defer cancel()
//	err = work(held, lease.Token())
//	err = errors.Join(err, lease.Unlock(ctx)) // ErrLost: the work may have overlapped
//
// or in one call: [Locker.Do].
//
// # What is promised
//
// The holder is told that its lease is over before any other client is granted the lock, whatever the
// network does: its Deadline is counted from before the request was sent and ends before the store's
// own expiry, and a local timer closes Done then. This holds as long as the store keeps its data and
// its time, the lock is not broken ([Locker.Break]) and, where a transaction holds the lock, its
// connection lives. A request whose reply was lost and that is sent again has the effect of one. An
// Unlock never frees another holder's lock. Every exclusive grant of a name has a greater [Token] than
// every grant before it. The [Traits] of a backend say what it adds to that and what it cannot promise;
// docs/guarantees.md says under which faults of its servers a second holder is possible.
//
// # What is not
//
// A lease cannot stop a process that looked at it, was paused, and writes too
// late. Only the resource itself can refuse that write, by checking the fencing token. On
// systems other than Linux the time during which the machine was suspended is not seen.
package fencelock
