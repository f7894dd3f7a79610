// Package bench measures backends side by side: the same operations over the public interface
// (fencelock.Locker) on each, and in the same run the raw store through its own client.
//
// Rounds alternate: ours, raw, ours, raw, and so on, so that other work of the machine falls on both.
// A rate alone says little; the ratio of the two is the measure. Docs: docs/performance.md.
//
// What is measured ([Ops]):
//
//   - cycle: lock and unlock of free names, one for each goroutine.
//   - contended: many goroutines of one process want one name. The raw store has a sync.Mutex
//     of the process before it, for it has no queue of its own that all stores have.
//   - handover: from the call of Unlock to the grant of a waiter of another client. Both clients
//     are in this process, so that one monotonic clock times both ends.
//   - held: leases that are held and renewed. There is no raw side: a raw store renews nothing.
//   - readers: many goroutines read one name, of one client or of several. No raw store has readers: there each
//     goroutine has the cheapest lock of a name of its own.
//   - turns: handover between a reader and a writer.
//   - permits: many goroutines of one process want one of ten permits. The raw store has ten names, and before it
//     the process has a list of those that are free.
//
// Everything is under a prefix of its own, which is emptied at the end, also after an error and
// when the ctx ends. The keys of a backend's tokens stay, a bounded number: no token may ever go back.
package bench
