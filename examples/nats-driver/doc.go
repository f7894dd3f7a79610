// Package natskv is a driver of Fencelock for NATS JetStream, outside the library: the worked
// example of docs/drivers.md.
//
// Each name is one key of a JetStream KV bucket, and package backend/record does the rest. A change is a
// publish on the condition that the record still has the revision that was read, and the stream decides.
// Package backend/record describes its promises and their conditions.
//
// The clock is the server's, which stamps each message. The stream wakes waiters: it publishes every
// record once more when it is stored.
//
// These are not promised: a lock does not outlive a power loss of the server, unless the server runs with
// sync_interval: always (the default writes to the disk every two minutes); it does not outlive the death
// of a node; and the stream must not be deleted while clients are connected.
package natskv
