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
// of the ballot, so that a late request of one ballot cannot touch the next. An operator sees on each
// node:
//
//	prefix+name        the lock
//	fl\0rl             the node's state: a hash of the run id that its data belongs to, what the
//	                   server was promoted from (promoted), the end of its quarantine (until), the
//	                   number that all its numbers exceed (base), at most 4,096 counters (c…), how
//	                   many calls have changed something (s…, one for each version of the
//	                   library), and what it is (about)
//	fl\0rl:q<lock>     the waiters: nonce, by its place
//	fl\0rl:w<lock>     until when each of them counts as alive, and its process
//	fl\0rl:v<lock>     the waiter that a freed lock is kept for, for 0.2 s
//	fl\0rl:x<id>       tombstone of a ballot that was given up while a request was under way
//	fl\0rl:r<bucket>   the last 128 ids released, for a release that is sent again: after more, that
//	                   is ErrUnavailable; expires one or two minutes after the last of them
//	fl\0rl:g<prefix>   gates of the keyspace, if a migration has set any: a hash, by migration
//	fl\0rl:k<prefix>\0<migration>  what the migration's clients report of themselves; expires with the last of them
//
// A name that is neither held nor waited for leaves nothing. The rest is constant.
//
// # Votes
//
// The client asks all nodes at once, each in one call of a function of Redis 7 (library
// fencelock_redlock_<hash of its text>, which the client loads if it is missing, and which stays on
// the node), or of a script if the node has no functions or the user no right to them. While a call
// to a node is under way, the requests of other goroutines wait, and go in the next call together,
// which reads what they need for all of them at once. A caller goes on as soon as a majority has
// answered. The other answers are awaited in the background: their votes stay, or are undone if the
// ballot did not win. A node that does not answer gets the undoing when it answers again.
//
// A call to a node ends after 2 s. A claim waits for the votes of a majority for a quarter of the
// TTL, at most 1.2 s. If a majority has answered, but not voted for it, the claim waits for the other
// nodes: at least 20 ms, and twice as long as the majority or their own last calls took. A node
// that may have to connect again has four times as long as its last call, up to 500 ms.
//
// The lease is trusted for the TTL minus the drift (1 % of the TTL and 2 ms; drift= is the share),
// counted from before the votes were asked for; the engine takes its own margin off besides. An
// error is not a refusal: an acquisition ends with ErrUnavailable if no majority answers, and with
// ErrLocked if a majority answers and refuses. When several clients have split the votes, each undoes
// its own and comes back at a random moment, but all nodes keep the lock for the waiter among them
// that came first.
//
// # Quarantine
//
// A node that has forgotten its votes must not vote again before the leases that it voted for have
// ended: it votes only once the quarantine has passed, quarantine=60s by default, the same on all
// clients. A TTL + Grace above it is ErrInvalid. No persistence is needed, and no delayed restart
// by an operator.
//
// If a node has settled and lacks a lock that a majority has, the holder's renewals and looks ask it
// for its vote again. So a lease outlives restarts of all nodes, one after the other, if they are a
// quarantine and the lease's TTL apart: the node that came back has voted for it before the next one
// goes.
//
// Every vote and every renewal checks in two ways whether the node forgot:
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
// versions of the library count for themselves: if the data loses a change that one of them made,
// only a client of the same version finds that out. A virtual machine that is set back together with
// the memory of its processes looks to all of them as if nothing had happened: that is not detected.
//
// New nodes cannot be told from nodes that lost everything, so a new cluster waits once, unless an
// operator says fresh=1: no lock was forgotten. The nodes heed that only if all of them answer and
// none has settled before, as its data tells, so it does nothing for a single node that restarts. But a
// cluster whose nodes were all restarted without their data within one quarantine looks like a new one:
// take fresh=1 out of the URL once the cluster runs.
//
// # Tokens
//
// Each node answers with a number: above its counter, above its base (its clock at the end of its
// last quarantine), at least the client's clock in µs (as far as that is not ahead of the node's by
// more than a quarter of the quarantine), and above the floor. The greatest of the votes is the
// token. If fewer than a majority gave it, the client writes it back before the grant, and counts
// only nodes on which the lock is still ours and still has the number that this client was given. So
// each later grant has a vote from a node that knows the token. Package tests/models/redlock checks
// this by visiting every state.
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
// In its vote a node compares its gates with those by which the client has judged the request, in an
// EXISTS that it asks anyway while it has none. If they differ, the client judges by the gates of a
// majority. A change of a gate must reach every node, or it is an error that names the missing nodes.
// If several clients change a gate at once, the first node of the URL decides between them (if their
// URLs list the nodes in different orders both may fail, and try again). A majority is enough to read
// the gates. If a node lacks a gate that another has, or has an older one, the next client that sees
// it, in a vote or in Gates, gives it the latest: as a rule before the end of its quarantine, and one
// such node opens nothing. A majority that loses its data together, or before any client has looked,
// has lost its gates.
//
// Undrained searches all nodes, wants a majority that forgot nothing since a quarantine ago, and
// counts a lock that even one node has: the remains of a lost ballot can delay it by a TTL. Behind
// the owner in a lock's value, a NUL and a migration mark a holder in PhaseBoth.
//
// # What is not promised
//
//   - Mutual exclusion when a node's wall clock jumps forward, so that it expires a lock early and
//     the lock has no majority any more. One such node is enough if the majority was a bare one. The
//     tokens still differ, and a resource that checks them refuses the older holder.
//   - Rising tokens across a loss of data if a node's clock was set back by more than the quarantine,
//     or after a floor that was ahead of the nodes' clocks.
//   - Anything if nodes evict keys or replicate to each other, or if clients disagree about the
//     quarantine or the nodes. Stop a node that is to be replaced for good before the first program
//     lists the new one, and stop all programs before you change the number of nodes.
//
// # What the servers need
//
// Redis 6 or later, maxmemory-policy noeviction, clocks that are kept by slewing. With ACLs: the
// lock keys and ~fl*, the channels &fl*, and the commands EVAL, EVALSHA, INFO, TIME, GET, SET, DEL,
// EXISTS, PEXPIRE, PTTL, the H, L and Z commands of the scripts, RPUSH, SCAN, PUBLISH, SUBSCRIBE; and
// FCALL, FUNCTION|LOAD on Redis 7, and MGET, without which each vote costs more of the node's time.
// A holder looks every 0.6 s whether a majority still has its lock, so a Break is noticed within a
// second.
//
// go-redis logs failed dials on standard error by itself; a program that does not want that
// calls its SetLogger.
package redlock
