// Package bench measures backends side by side: the same operations over the public interface
// (fencelock.Locker) on each, and in the same run the raw store through its own client.
//
// Rounds alternate: ours, raw, ours, raw, and so on, so that other work of the machine falls on both.
// The ratio of the two rates is the measure; one rate alone depends on the machine. Docs: docs/performance.md.
//
// The operations ([Ops]):
//
//   - cycle: lock and unlock of free names, one for each goroutine.
//   - contended: many goroutines of one process want one name. The raw side has a sync.Mutex
//     of the process in front, since not every raw store has a queue.
//   - handover: from the call of Unlock to the grant of a waiter of another client. Both clients
//     are in this process, so that one monotonic clock times both ends.
//   - held: leases that are held and renewed. There is no raw side: a raw store renews nothing.
//   - readers: many goroutines of one client or of several read one name. No raw store has readers: on the raw
//     side each goroutine has the cheapest lock of a name of its own.
//   - turns: handover between a reader and a writer.
//   - permits: many goroutines of one process want one of ten permits. The raw side has ten names, and a list of
//     the free ones in the process.
//
// A run has a prefix of its own, which it empties at the end, also after an error and when the ctx ends.
// The keys of a backend's tokens stay, a bounded number, because no token may ever go back.
package bench
