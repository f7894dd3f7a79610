// Package natskv is a driver of Fencelock for NATS JetStream, outside the library: the worked
// example of docs/drivers.md.
//
// Each name is one key of a JetStream KV bucket, and package backend/record does the rest: a change
// is a publish on the condition that the record still has the revision that was read, and the
// stream is the judge. What that promises, and what it rests on, stands there.
//
// The clock is the server's, which stamps each message. Waiters are woken by the stream, which
// publishes every record once more when it is stored.
//
// Not promised: that a lock outlives a power loss of the server, unless it runs with
// sync_interval: always (the default writes to the disk every two minutes); that it outlives the
// death of a node; that somebody may delete the stream while clients are connected.
package natskv
