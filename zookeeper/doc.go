// Package zookeeper is the ZooKeeper backend: a server or an ensemble, through go-zookeeper.
//
//	zookeeper://[user:password@]h1[:2181],h2,h3[/chroot][?prefix=…]
//
// Keys of the URL: prefix, ttl. User and password authenticate with the digest scheme; then what the driver makes is
// accessible to that user only. [New] takes the servers and [Options]; the driver opens its sessions by itself,
// because how long a session lives is how long its leases last.
//
// # What a lease is made of
//
// A lease is an ephemeral node of a session that was opened for TTL + grace. Holds of one length share a session, and
// a session of up to a quarter more is used too; one that nobody has used for half its length is closed. Under
// chroot/prefix an operator sees:
//
//	locks                                 its data are the gates of migrations
//	locks/<name>                          container: there while the name is held or waited for; its data are those of the last release that somebody waited for
//	locks/<name>/held-<nonce>             ephemeral: the holder; its data are the token and, in the second line, the owner
//	locks/<name>/wait-<nonce>-<number>    ephemeral, sequential: the queue; the data are the owner
//	tokens/00 … tokens/ff                 counters: no name whose hash is that has had a greater token
//	done/<session>-<n>                    ephemeral: the last of a session's requests with releases that was done
//	clients/<migration>%.<id>             what a client of a migration has reported; deleted by others once it is forgotten
//
// In a path bytes other than letters, digits and -_.:=+@,~ are written %XX, and so is a dot in the first place. The counters
// stay: 256 however many names there are. Of a name nothing is left after the release; of one whose holder died an
// empty container, which the next holder takes over or the servers remove within a minute.
//
// One multi acquires a free lock: it makes sure of its token, makes the container, which fails
// if somebody holds or waits, and makes the holder's node. One multi releases: it deletes both and writes its number
// into a node of the session, so that it is found out, if the answer is lost,
// whether it was done or the lock had been taken away. Whatever deletes a holder's node names it with its
// nonce, so no late release can touch the next holder. While one of these multis is under way on a session, the grants and releases of
// other names that come up meanwhile leave together in the next, up to 128: when half as many have come up as are under way, and
// at most four multis are. An operation that fails is that of its own caller: the others leave again. A name that was found held a
// moment ago is queued for at once, or looked at by who does not wait, which costs the servers less than a write that fails.
//
// A request that is given up is not forgotten: what has not left is taken back, and what has left is waited for before it is
// undone. ZooKeeper does the requests of a session in order, also when the session moves to another server
// (the one it left is refused from then on), so nothing of an abandoned acquisition can come after its undoing.
//
// # Time
//
// The client library's pings keep a session alive whatever its holders do. So the store's side of a TTL is kept by two: while
// the process lives and can reach a server, the driver deletes the node of a hold that nobody renewed for TTL + grace; when
// the process dies, is stopped, or is cut off, the servers end its session when they have not heard of it for TTL + grace.
// They check on every tick, and let no session be shorter than minSessionTimeout, by default two ticks: a dead
// process's lock comes free up to a tick late, and with the default tickTime of 2 s not before 4 s. That
// delays others and endangers nobody. Longer than maxSessionTimeout, by default 20 ticks, TTL + grace cannot be: ErrInvalid names
// the longest.
//
// The Deadline is counted from before the request, as everywhere, and the servers count from when they hear of it. It
// is the leader that ends sessions, and of what a follower answered it hears only with the follower's next report, half a tick later.
// So after a silence of more than two thirds of the session a renewal does not count before the leader has surely heard of
// it, a third of the session later. This is the one place where the time that a message takes between servers matters.
//
// A renewal is a multi that looks at the holder's nodes, up to 500 of them, through the leader. A session that is
// disconnected is suspended: its leases run on to their Deadline, and go on if it comes back. One that has expired is lost, at
// once: SessionLost. A node of ours that an older session made is not ours.
//
// # Waiting
//
// A waiter makes a node in the queue, and watches the one before it and no other. The first in the queue
// takes the free lock by deleting its node and making the holder's, in one multi, and without another look
// when the holder that it watched has gone, for who is first remains so. When a waiter has gone it holds the lock, has held it, or has given up: the
// next one looks for that one's holder's node, then for its nonce in the data of the lock's node, and only then at the queue. If it leaves the lock free for 2 s
// it is dead, or as good as dead, and loses its place; who is alive then joins again at the end. A waiter looks by itself every
// 2 s (every 5 s behind the second place), in case a push is lost.
//
// # Tokens
//
// A process draws the numbers above a counter by setting it, on the condition that nobody did since: to the counter's value plus one, the
// servers' clock in µs, or the floor plus one, whichever is greatest, and to 500 more in stock, but never more than 3 ms ahead of the clock for
// those. What it drew are its tokens as long as the counter stands: every multi that grants checks its version, or sets it. So a token is known before the
// request is sent, and is part of the grant, and so are those that are reserved with it. It is
// as durable as everything else in the ensemble, and rises through every restart, election and hand-over. The clock, which is
// estimated from the times in the servers' answers and never ahead of them, matters only when the ensemble has lost its data
// or was set back to an older state: then tokens rise if the clock of the leader is not behind that of the one before by more
// than the time since the last grant.
//
// # Gates
//
// The gates of a keyspace are the data of the node locks, as JSON, so they need no node of their own that may be missing. Every multi that makes a
// holder's node checks the version of that data, once for all grants that leave together: a gate costs no request, but for
// reading them at a process's first grant, after each change, and after a broken connection. A gate closes for everybody at the write of that
// node, whatever server they are connected to; a refusal is told only after the gates have been read from the leader. What is
// no list of gates lets nobody in: ErrInvalid names the node. The node of a holder in backend.PhaseBoth shows its
// migration in the first line, so that those who hold up a drain can be told from it.
//
// What a client reports is a persistent node, for an ephemeral one would end with a session that is shorter. It counts as
// forgotten once it is older, by the leader's clock, than it was to be kept. The next look at the clients of any migration
// deletes it, or one of the next clients that report for the first time, each of which looks at up to 32. So after the last of
// a migration a few may stay until somebody looks.
//
// # What is not promised
//
// Mutual exclusion through a loss or a setting back of the ensemble's data. The tokens still rise, so a resource that checks them
// stays safe. A holder learns of that when its session is refused or at its Deadline.
//
// # What the servers need
//
// ZooKeeper with container nodes (since 3.5.3; tested with 3.8 only), of which znode.container.checkIntervalMs must not be 0. maxSessionTimeout at least the
// longest TTL + grace: the default of 40 s fits the default TTL of 30 s. maxClientCnxns (60 for one address by default) at
// least the number of processes times the lengths of leases that each has, plus one. Users with all rights on what is under
// chroot/prefix; who only locks needs to read the node locks, and who moves names to another store to write it. Nothing else may be put there: a strange node under a name is ErrInvalid.
package zookeeper
