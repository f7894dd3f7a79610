// Package zookeeper is the ZooKeeper backend: a server or an ensemble, through go-zookeeper.
//
//	zookeeper://[user:password@]h1[:2181],h2,h3[/chroot][?prefix=…]
//
// zookeepers:// is with TLS. Keys of the URL: prefix, ttl; for TLS tls_ca, tls_cert, tls_key,
// tls_server_name, tls_skip_verify. User and password authenticate with the digest scheme; then only
// that user has access to what the driver makes. [New] takes the servers and [Options]. The driver
// opens its sessions by itself, because a lease lasts as long as its session.
//
// # What a lease is made of
//
// A lease is an ephemeral node of a session that is longer than TTL + grace (see "Time"). Holds of
// one length share a session, and a hold also takes a session that is up to a quarter longer. A
// session that no hold has used for half its length is closed.
//
// The servers end a session in one transaction, which lists the paths of all its nodes. With the
// default of jute.maxbuffer they can write such a transaction of more than two megabytes, and never
// read it again: then no server of the ensemble starts any more (ZOOKEEPER-4306). So the paths of a
// session's nodes have at most 512 KiB together, and the driver opens another session for more: a
// session has some 6,000 names of 20 bytes, or some 320 names of 512 bytes that are all escaped.
//
// Under chroot/prefix an operator sees:
//
//	locks                                 its data are the gates of migrations
//	locks/<name>                          container: there while the name is held or waited for;
//	                                      its data say what the last release left that somebody
//	                                      waited for, or may have, or an era that a floor began
//	locks/<name>/held-<nonce>             ephemeral: the holder; its data are the base of its
//	                                      token and the owner, as JSON
//	locks/<name>/wait-<nonce>-<number>    ephemeral, sequential: the queue; the data are the owner
//	locks/<name>/read-…, perm-…           ephemeral: holders that are readers or have permits
//	locks/<name>/waitread-…, waitperm-…   ephemeral, sequential: their places in the same queue
//	tokens                                its data are the base of the tokens
//	tokens/last-<random>                  written by every grant
//	done/<session>-<n>                    ephemeral: the last request of a session that released
//	                                      and was done
//	clients/<migration>%.<id>             what a client of a migration has reported; deleted by
//	                                      others once it is forgotten
//
// In a path, bytes other than letters, digits and -_.:=+@,~ are written %XX, and so is a dot in the
// first place. A release leaves nothing of a name. A holder that dies leaves an empty container,
// which the next holder takes over or the servers remove within a minute.
//
// One multi acquires a free lock: it checks the gates and the base, writes tokens/last-…, makes the
// container, which fails if the name is held or waited for, and makes the holder's node. One multi
// releases: it deletes both, and writes its number into a node of the session. That number tells, if
// the answer is lost, whether the release was done or the lock had been taken away. A request that
// deletes a holder's node names it with its nonce, so no late release can touch the next holder.
//
// While such a multi is under way on a session, the grants and releases of other names wait, and
// leave together in the next one: up to 128 of them, as soon as half as many wait as are under way,
// with at most four multis under way. If one operation of a multi fails, its own caller gets the
// error, and the others leave again. A grant guesses that its lock is free, a release that no one
// waits. After a wrong guess, operations of the opposite guess leave in a multi of their own for two
// seconds; and an operation whose multi has failed twice for the guesses of others makes no guess
// any more: it looks first, or releases as though there were waiters. If a name was found held a
// moment ago, a waiter queues at once and a try looks first, because a write that fails costs the
// servers more.
//
// A request that is given up is not forgotten. If it has not left, the driver takes it back; if it
// has left, the driver waits for its answer and undoes it. ZooKeeper does the requests of a session
// in order, also when the session moves to another server (the server that it left is refused from
// then on). So nothing of an abandoned acquisition can come after its undoing.
//
// # Time
//
// Pings keep a session alive whatever its holders do. So two parties keep the store's side of a TTL.
// While the process lives and can reach a server, the driver deletes the node of a hold that was not
// renewed for TTL + grace. When the process dies, is stopped, is cut off, or closes the driver in the
// grace of a lost hold, the servers end its session once they have not heard of it for its length.
//
// The Deadline is counted from before the request, as everywhere. The servers count from when the
// leader hears of the session, and round up to a tick, so that is never less. But the leader does
// not hear at once (read from the classes of 3.8.0):
//
//   - It is the leader that ends sessions. A request that a follower passes on to it does not
//     count for the session, only the follower's next report does, with which it answers the
//     leader's ping (LearnerHandler.ping, every half tick). A follower that hangs, or is cut off
//     together with its client, just after it has answered, makes no report: the leader counts
//     from an earlier request, and ends the session that much sooner.
//   - The leader does what a follower sends in order. So the answer to a write proves that the
//     leader has heard all reports that the follower had made when it passed the write on. A request
//     that was answered a tick before the write was sent was in one of these reports: half a tick is
//     for the report, and half for the ways between servers and their delays.
//   - The leader hears at once of a session that is opened, or that comes to a server
//     (Leader.REVALIDATE). A new leader begins to count anew.
//
// So a grant or a renewal counts only if the session, from the last request that is proved in this
// way, lasts until TTL + grace after it was sent. Otherwise its outcome is unknown: the Deadline
// stays, and the next request, a tick later, proves this one. To make that rare, the session is
// longer than TTL + grace by a sixth, which is the time between two pings, and by 1¼ ticks and
// 50 ms. If the servers' longest session leaves no room for that, the pings come more often, down to
// 1/24. A TTL + grace that does not fit even then is ErrInvalid, and the error names the longest.
// This is the one place where the time matters that a message takes between servers: a report that
// takes half a tick too long, from a server that falls silent then.
//
// The servers do not say how long a tick is. The driver takes it for half of minSessionTimeout,
// which is two ticks by default; a process asks for that when it first connects, by opening a
// session of 1 ms, which it leaves. So minSessionTimeout must be two ticks at least, and clients must
// be restarted after tickTime was raised.
//
// A dead process's lock comes free when its session has ended: up to TTL + grace + a sixth + 2¼
// ticks later, and with the default tickTime of 2 s not before 4 s. That delays the others, and is
// safe.
//
// A renewal is a multi that looks at the holder's nodes, up to 500 of them, through the leader. A
// session that is disconnected is suspended: its leases run on to their Deadline, and go on if it
// comes back. A session that has expired has lost its leases at once (SessionLost), and so has one
// that a server makes shorter than its leases count on, because maxSessionTimeout was lowered. If
// maxSessionTimeout was raised, a session keeps the length that it was made with, because a new
// leader knows only that; longer leases get another session. A node with our nonce that an older
// session made does not count as ours.
//
// If no answer comes on a connection for 3 s although one is due (for short leases two thirds of
// TTL + grace), the driver gives it up for the next server. Each time that this happens without an
// answer in between, it waits twice as long, up to two thirds of the session. If the client library
// makes no attempt to connect any more, the driver replaces the session.
//
// A server hangs up on a client that has seen more than the server has, and on every client while
// there is no leader. If all servers hang up again and again, a session first asks for another one,
// of 1 ms, on a connection of its own: a server that opens it has a leader and all that was agreed
// on. If that server still hangs up on the old session, the ensemble has lost its data. The session
// then connects without what it has seen, to be told that it is over.
//
// # Waiting
//
// A waiter makes a node in the queue, and watches the one before it and no other. The first waiter
// takes the free lock in one multi, which deletes its node and makes the holder's. When the holder
// that it watched has gone it needs no other look, because a first waiter remains the first. When a
// waiter before it has gone, that one holds the lock, has held it, or has given up: the next waiter
// looks for its holder's node, then for its nonce in the data of the lock's node, and only then at
// the queue. A first waiter that leaves the lock free for 2 s counts as dead and loses its place; if
// it is alive, it joins again at the end. A waiter looks by itself every 2 s, in case a push is lost;
// with many in front it lists the queue more seldom.
//
// # Readers and permits
//
// Each holder has a node whose name has its nonce, and the limit and slot of a permit: so a list of
// the nodes tells who holds. One multi takes a free lock, as ever. Beside other holders a claim joins
// the queue first, and then lists the nodes for its place and the holders: three requests; one more
// if the lock was not known to be held; and, for a reader, one or two for the token of the reader
// that it joins. Two rules make sure that no step comes too late for what the list showed.
//
//   - Only the first in the queue becomes a holder, by deleting its place in the same multi. While
//     that place is there no other claim becomes one, so the holders that the first has seen only
//     become fewer: it stays admitted, and a free slot stays free. A reader that sees no holder
//     begins an era.
//   - A reader with only readers before it need not be the first: it joins a reader that holds,
//     whose node the multi checks. So it has the token of a reader that holds at that moment, and no
//     writer has come since that one was granted. If that reader has left meanwhile, or a reader with
//     a floor has begun to read, it looks again.
//
// A reader whose floor is not below the token of the readers beside it draws a token of its own, and
// leaves it in the lock's node for later readers, which may have seen only the older one.
//
// A waiting reader watches the last waiter or holder before it that is no reader, so all readers
// behind a writer wake at once. The first waiter for a permit watches the list, because any release
// may let it in. A writer that waits behind a group, and any other first waiter that may not hold
// yet, writes a sign of life into its node each second. One that has written nothing for 3.5 s loses
// its place: claims behind it might be admitted, and would otherwise wait until its session ends.
//
// A try that may hold as soon as the claims before it do waits in the queue for them, and leaves it
// when they have not moved for 200 ms and five looks.
//
// All programs that use a name in these ways must know of them. An older program never gets in
// beside a group: it finds nodes that it does not know, and says ErrInvalid.
//
// # Tokens
//
// The token of a grant is the base, a number that all processes know, plus 256 times the zxid of the
// multi that made the holder's node; the other 255 numbers are for tokens that are reserved with it.
// The servers count transactions in the zxid, in the order in which they are done, so no grant waits
// for the draws of others, and many grants share a multi. The answer to the write of tokens/last-…
// tells the zxid. A process that reads the holder's node, such as its holder after a lost answer,
// knows it from the node's creation. A reader that joins others has their token, which stands in its
// node. Different names may have the same token.
//
// Every multi that grants checks the version of the base's node, so a grant with an outdated base is
// refused: the process reads the base and asks again. The base changes, on the condition that no
// other process has changed it,
//
//   - when a process comes to a server, at first, after a broken connection or the end of a session,
//     and the base was not changed in the last second: it becomes what brings the next token to the
//     servers' clock in µs, unless it is there already. The servers may have lost their data, or have
//     been set back;
//   - after an election, in which the zxid jumps by 2^32: the base falls, so that the next token is
//     the clock in µs or, if that is greater, exceeds the last token that was granted or raised to,
//     of which the zxid of tokens/last-… tells. The condition is that there was no grant meanwhile.
//     An election breaks all connections, so no process grants before, with the one exception below;
//   - for a floor, and for the number that a migration raises the tokens to, if later tokens would
//     not exceed it: to that number, or to a tenth of a second above the clock, so that the next
//     floors of a source that is not further ahead need no change.
//
// In every order of these steps tokens rise, which a test of this package shows. After a loss of
// data, or a return to an older state, they rise if the leader's clock is ahead of them. It is,
// unless floors put the tokens above it, or the ensemble wrote more than 3,900 transactions a second
// for long. A process remembers what it was granted itself.
//
// One request is not held up by an election or a loss of data: one that was about to leave when its
// connection broke, and leaves on the next. After an election it puts the tokens twelve days ahead of
// the clock; after a loss of data it may have a token as of before.
//
// # Gates
//
// The gates of a keyspace are the data of the node locks, as JSON, so they need no node of their
// own that may be missing. Every multi that makes a holder's node checks the version of that data,
// once for all grants that leave together. So a gate costs no request but the reads of the gates: at
// a process's first grant, after each change, and after a broken connection. The write of that node
// closes a gate for all clients, whatever server they are connected to, and a request is refused only
// after its client has read the gates from the leader. If the data are no list of gates, no request
// is let in, and ErrInvalid names the node. The node of a holder in backend.PhaseBoth shows its
// migration in the first line, so that it can be found when it holds up a drain.
//
// A client's report is a persistent node, because an ephemeral one would end with a session that is
// shorter. It counts as forgotten once it is older, by the leader's clock, than it was to be kept.
// The next look at the clients of any migration deletes it, or one of the next clients that report
// for the first time, each of which looks at up to 32. So a few reports may stay after a migration
// until some client looks.
//
// # What is not promised
//
// Mutual exclusion through a loss or a setting back of the ensemble's data. The tokens still rise, as
// long as the clock is ahead of them (see "Tokens"), so a resource that checks them stays safe. A
// holder learns of it when its session is refused, or at its Deadline.
//
// # What the servers need
//
//   - ZooKeeper 3.5.3 or later, which has container nodes; znode.container.checkIntervalMs not 0.
//   - maxSessionTimeout at least the longest TTL + grace and a little more: the default of 40 s does
//     for the default TTL of 30 s and a grace of up to 5 s.
//   - minSessionTimeout at least two ticks, as by default.
//   - maxClientCnxns (60 for one address by default) at least the number of processes times the
//     sessions of each, plus two. A process has one session for each length of leases, and one for
//     each 512 KiB of paths.
//   - Users with all rights on what is under chroot/prefix. A user that only locks needs to read the
//     node locks; one that moves names to another store needs to write it.
//
// Nothing else may be put there: a strange node under a name is ErrInvalid.
package zookeeper
