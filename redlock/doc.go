// Package redlock is the Redlock backend: a lock that a majority of N independent Redis servers has granted, through
// go-redis v9. N is odd, from 3; the servers do not replicate to each other.
//
//	redlock://[user:password@]h1[:6379],h2,h3[/db]     redlocks:// with TLS
//
// Keys of the URL: prefix, ttl; quarantine, fresh, drift (below); client_name, dial_timeout, read_timeout, pool_size,
// min_idle_conns; tls_ca, tls_cert, tls_key, tls_server_name, tls_skip_verify. All nodes share them. [New] takes
// clients that the program has.
//
// The algorithm is that of https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, with repairs:
// docs/redlock.md has what was improved, the proof's bounds, the dispute's sources, and what cannot be promised.
//
// # What a lease is made of
//
// On each node the lock is the key prefix+name, a string "id:number:owner" with an expiry, set only
// where there is none: so a program that uses the canonical SET key value NX PX on that key at a
// majority excludes us and is excluded. The lock is held while a majority of the nodes has it for
// the same id. The id is the nonce of the acquisition, and in later ballots the nonce and the number
// of the ballot, for what is late of one ballot must not touch the next. An operator sees on each
// node:
//
//	prefix+name        the lock
//	fl\0rl             the node's state: a hash of the run id that its data belongs to, what the
//	                   server was promoted from (promoted), the end of its quarantine (until), the
//	                   number that all its numbers exceed (base), at most 4,096 counters (c…), how
//	                   many calls have changed something (s…, one for each version of the
//	                   library), and what it is (about)
//	fl\0rl:w<lock>     who waits: nonce, with its place, until when it counts as alive, and its process
//	fl\0rl:v<lock>     the waiter that a freed lock is kept for, for 0.2 s
//	fl\0rl:x<id>       tombstone of a ballot that was given up while a request was under way
//	fl\0rl:r<bucket>   the last 128 ids released, for a release that is sent again: after more, that
//	                   is ErrUnavailable; expires one or two minutes after the last of them
//	fl\0rl:g<prefix>   gates of the keyspace, if a migration has set any: a hash, by migration
//	fl\0rl:k<prefix>\0<migration>  what the migration's clients report of themselves; expires with the last of them
//
// What is left of a name once nobody holds it or waits for it: nothing. The rest is constant.
//
// # Votes
//
// Every node is asked at once, in one call: of a function of Redis 7 (library
// fencelock_redlock_<hash of its text>, which the client loads where it is missing, and which stays
// on the node), or of a script where the node or the user's rights know no functions. What several
// goroutines want of a node while a call to it is under way goes into the next call together, which
// reads for all of them at once what their votes and releases need. A caller goes on as soon as a
// majority has answered. Stragglers are finished in the background: their votes stay, or are undone
// if the ballot did not win; a node that does not answer is sent what it is owed when it does. A
// call to a node ends after 2 s, and a claim waits for the votes of a majority for a quarter of the
// TTL, 1.2 s at most.
//
// The lease is trusted for the TTL without the drift (1 % of the TTL and 2 ms; drift= is the
// share), counted from before the votes were asked for; the engine takes its own margin off
// besides. An error is not a refusal: without the answer of a majority an acquisition ends with
// ErrUnavailable, and with ErrLocked where a majority answers and refuses. When several clients
// have split the votes, each undoes its own and comes back at a random moment.
//
// # Quarantine
//
// A node that has forgotten its votes must not vote again before the leases that it voted for have
// ended: it votes only once the quarantine has passed, quarantine=60s by default, the same on all
// clients. A TTL + Grace above it is ErrInvalid. No persistence is needed, and no delayed restart
// by an operator.
//
// A node that has settled and has not got a lock which a majority has is asked for its vote again
// by the holder's renewals and looks. So a lease outlives restarts of all nodes, one after the
// other, if they are a quarantine and the lease's TTL apart: then the node that came back has a
// vote for it, before the next one goes.
//
// Every vote and every renewal asks whether the node forgot, in two ways:
//
//   - It compares the server's run id with the one in the data. They differ after a restart, a
//     FLUSHALL, with another server's data, and on a new node.
//   - The library counts the calls that change something, in its own memory and in the data, and
//     compares the two. They differ where the data has gone back while the process lives: keys that
//     were restored. Redis 7 drops the memory of its libraries whenever it loads a data set (a
//     failover to a replica and back, DEBUG RELOAD), and a library without a memory takes a count
//     in the data for a loss. So do not delete the library that is in use: the node would be in
//     quarantine.
//
// A script has no memory. It asks INFO each time for the run id, and for what the server was
// promoted from, which finds a failover and back, but neither restored keys nor DEBUG RELOAD. Two
// versions of the library count for themselves: what one of them has changed, and the data has
// lost, only a client of the same version finds. A virtual machine that is set back together with
// the memory of its processes looks to all of them as if nothing had happened: that is not
// detected.
//
// New nodes cannot be told from nodes that lost everything, so a new cluster waits once, unless an
// operator says fresh=1: no lock was forgotten. That is heeded only if every node answers and none
// has settled since its start, and does nothing for a node that restarts; but a cluster of which all nodes
// were restarted within one quarantine is taken for a new one, so take it out of the URL once the cluster runs.
//
// # Tokens
//
// Each node answers with a number: above its counter, above its base (its clock at the end of its
// last quarantine), at least the client's clock in µs (as far as that is not ahead of the node's by
// more than a quarter of the quarantine), and above the floor. The greatest of the votes is the
// token. If not a majority gave it, it is written back before the grant, and that counts only where
// the lock is still ours and still has the number that this client was given. So each later grant
// has a vote from a node that knows the token. Package tests/models/redlock checks this by visiting
// every state.
//
// # Waiting
//
// A waiter joins the waiters of every node in the request that was refused, and listens to all
// nodes, one connection to each for the process. A node where the lock is freed tells the first
// live waiter, keeps the lock for it for 0.2 s, and tells the next to look after that. Places are
// by the clients' clocks, so waiters are served in the order of their coming as a rule, which is no
// promise (Traits.FIFO is false). A waiter also looks when the holder's keys would expire, every 3
// s at the latest (1 s while a program that knows no waiters holds the lock), and after every
// re-subscription.
//
// # Gates
//
// A node compares in its vote the gates that it has with those that the client has judged the
// request by, in an EXISTS that it asks anyway while it has none; where they are others, the client
// judges by those that a majority has. A change of a gate must reach every node, or it is an error
// that names those that are missing; the first node of the URL decides between several who change
// one at once (with nodes in another order both may fail, and try again). A majority is enough to
// read them. A node without a gate that another has, or with an older one, is given the latest by
// the next client that sees it, in a vote or in Gates: so it has it back before the end of its
// quarantine as a rule, and one such node opens nothing. A majority that loses its data together,
// or before any client has looked, has lost its gates.
//
// Undrained searches all nodes, wants a majority of which none forgot anything since a quarantine
// ago, and counts a lock that even one of them has: what a lost ballot left behind can delay it by a
// TTL. Behind the owner in a lock's value a NUL and a migration mark a holder in PhaseBoth.
//
// # What is not promised
//
// Mutual exclusion when a node's wall clock jumps forward, so that it expires a lock early, and the
// lock has then no majority any more: that of one node is enough if the others of the majority were
// just enough. The tokens still differ, and a resource that checks them refuses the older holder.
// Tokens across a loss of data where a node's clock was set back by more than the quarantine, or
// after a floor that was ahead of the nodes' clocks. Anything where nodes evict keys, replicate to
// each other, or clients disagree about the quarantine or the nodes: one that is to be replaced is
// stopped for good before the first program lists the new one, and all programs are stopped before
// the number of nodes is another.
//
// # What the servers need
//
// Redis 6 or later, maxmemory-policy noeviction, clocks that are kept by slewing. With ACLs: the
// lock keys and ~fl*, the channels &fl*, and the commands EVAL, EVALSHA, INFO, TIME, GET, SET, DEL,
// EXISTS, PEXPIRE, PTTL, the H and L commands of the scripts, RPUSH, SCAN, PUBLISH, SUBSCRIBE; and
// FCALL, FUNCTION|LOAD on Redis 7, and MGET, without which each vote costs more of the node's time.
// A holder looks every 0.6 s whether a majority still has its lock, so a Break is noticed within a
// second.
//
// go-redis logs failed dials on standard error by itself; a program that does not want that
// calls its SetLogger.
package redlock
