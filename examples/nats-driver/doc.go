// Package natskv is a driver of Fencelock for NATS JetStream, outside the library: the worked example of docs/drivers.md.
//
// Each name is one key of a JetStream KV bucket, and all that is known of it is one small JSON record there: the
// holder, the queue, the last token, and how the last acquisitions ended. Every change is a publish on the
// condition that the record still has the revision that was read, so each is one atomic step, and the stream is the judge.
//
// # What it promises, and what that rests on
//
// One holder, as long as the stream keeps what it acknowledged. A lease runs from the time that the server stamped on the
// record's message, by the server's clock; clients compare with their own estimate of that clock, which is never
// ahead of it. A server clock that is set forward ends leases early for those who wait.
//
// First come, first served among live waiters: the queue is part of the record. A waiter that has not renewed its place
// for 4.5 s is passed over. Waiters are woken by the stream, which publishes every record once more when it is
// stored, and look again after every reconnection and every 2 s.
//
// Tokens follow the server's clock in µs and, while the name's record lasts (a minute after its last use), its last token.
// They rise over the loss of the data. A server clock that is set back by more than a minute can
// send back the tokens of a name that nobody used meanwhile.
//
// Not promised: that a lock outlives a power loss of the server, unless it runs with sync_interval: always (the default
// writes to the disk every two minutes); that it outlives the death of a node. A released or abandoned acquisition is
// remembered for a minute and through the 32 next of its name. It takes no part in migrations (backend.Gater).
package natskv
