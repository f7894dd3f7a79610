// Package zookeeper is the ZooKeeper backend: a server or an ensemble, through go-zookeeper.
//
//	zookeeper://[user:password@]h1[:2181],h2,h3[/chroot][?prefix=…]
//
// zookeepers:// is with TLS. Keys of the URL: prefix, ttl, and of TLS tls_ca, tls_cert, tls_key, tls_server_name,
// tls_skip_verify. User and password authenticate with the digest scheme; then what
// the driver makes is accessible to that user only. [New] takes the servers and [Options]; the
// driver opens its sessions by itself, because how long a session lives is how long its leases
// last.
//
// # What a lease is made of
//
// A lease is an ephemeral node of a session that is longer than TTL + grace (see "Time"). Holds of
// one length share a session, and that of holds up to a quarter longer is used too; one that
// nobody has used for half that length is closed. The servers end a session in one transaction,
// which lists the paths of all its nodes. One of more than two megabytes, with the default of
// jute.maxbuffer, can be written and never be read again: then no server of the ensemble starts
// any more (ZOOKEEPER-4306). So the paths of a session's nodes have 512 KiB together at the most,
// and what is beyond them is in another session: of names of 20 bytes a session has some 6,000, of
// names of 512 bytes that are all escapes some 320.
//
// Under chroot/prefix an operator sees:
//
//	locks                                 its data are the gates of migrations
//	locks/<name>                          container: there while the name is held or waited for;
//	                                      its data are those of the last release that somebody
//	                                      waited for, or may have, or of an era that a floor began
//	locks/<name>/held-<nonce>             ephemeral: the holder; its data are the base of its
//	                                      token and the owner, as JSON
//	locks/<name>/wait-<nonce>-<number>    ephemeral, sequential: the queue; the data are the owner
//	locks/<name>/read-…, perm-…           ephemeral: holders that are readers or have permits
//	locks/<name>/waitread-…, waitperm-…   ephemeral, sequential: their places in the same queue
//	tokens                                its data are the base of the tokens
//	tokens/last-<random>                  written by whatever grants
//	done/<session>-<n>                    ephemeral: the last of a session's requests with releases
//	                                      that was done
//	clients/<migration>%.<id>             what a client of a migration has reported; deleted by
//	                                      others once it is forgotten
//
// In a path bytes other than letters, digits and -_.:=+@,~ are written %XX, and so is a dot in the
// first place. Of a name nothing is left after the release; of one whose holder died an empty
// container, which the next holder takes over or the servers remove within a minute.
//
// One multi acquires a free lock: it checks the gates and the base, writes tokens/last-…, makes the container, which
// fails if somebody holds or waits, and makes the holder's node. One multi releases: it deletes both and
// writes its number into a node of the session, so that it is found out, if the answer is lost,
// whether it was done or the lock had been taken away. Whatever deletes a holder's node names it
// with its nonce, so no late release can touch the next holder. While one of these multis is under
// way on a session, the grants and releases of other names that come up meanwhile leave together in
// the next, up to 128: when half as many have come up as are under way, and at most four multis
// are. An operation that fails is that of its own caller: the others leave again. Where that was a
// guess, that nobody has the lock or waits for it, what guesses otherwise leaves apart for the next
// two seconds, and whose multi has failed twice for guesses of others does not guess any more: it
// looks, or is released as though somebody waited. A name that was
// found held a moment ago is queued for at once, or looked at by who does not wait, which costs the
// servers less than a write that fails.
//
// A request that is given up is not forgotten: what has not left is taken back, and what has left
// is waited for before it is undone. ZooKeeper does the requests of a session in order, also when
// the session moves to another server (the one it left is refused from then on), so nothing of an
// abandoned acquisition can come after its undoing.
//
// # Time
//
// Pings keep a session alive whatever its holders do. So the store's side of a TTL is kept by two:
// while the process lives and can reach a server, the driver deletes the node of a hold that
// nobody renewed for TTL + grace; when the process dies, is stopped, is cut off, or closes the
// driver in the grace of a lost hold, the servers end its session when they have not heard of it
// for its length.
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
//     leader has heard all reports that the follower had made when it passed the write on. What
//     was answered a tick before the write was sent was in one of them: half a tick for the
//     report, and half for the ways between servers and for what delays them.
//   - The leader hears at once of a session that is opened, or that comes to a server
//     (Leader.REVALIDATE). A new leader begins to count anew.
//
// So a grant or a renewal counts only if the session, from the last request that is proved in this
// way, lasts until TTL + grace after it was sent. Otherwise its outcome is unknown: the Deadline
// stays, and the next one, a tick later, proves this one. So that this is rare the session is
// longer than TTL + grace by a sixth, which is the time between two pings, and by 1¼ ticks and 50
// ms. Where the servers' longest session leaves no room for that the pings come more often, down
// to 1/24; a TTL + grace for which that does not do is ErrInvalid, and the error names the
// longest. This is the one place where the time that a message takes between servers matters: a
// report that takes half a tick longer than it should, of a server that falls silent then.
//
// How long a tick is the servers do not say. It is taken for half of minSessionTimeout, as which
// that is two ticks by default; a process asks for it when it first connects, by opening a session
// of 1 ms and closing it. So minSessionTimeout must not be set to less than two ticks, and clients
// are to be restarted after tickTime was raised.
//
// A dead process's lock comes free when its session has ended: up to TTL + grace + a sixth + 2¼
// ticks later, and with the default tickTime of 2 s not before 4 s. That delays others and
// endangers nobody.
//
// A renewal is a multi that looks at the holder's nodes, up to 500 of them, through the leader. A
// session that is disconnected is suspended: its leases run on to their Deadline, and go on if it
// comes back. One that has expired is lost, at once: SessionLost; so is one that a server, where
// maxSessionTimeout was lowered, makes shorter than its leases count on. Where it was raised a session keeps the
// length that it was made with, which is what a new leader knows of it; longer leases get another session. A node of
// ours that an older session made is not ours.
//
// A connection on which no answer comes for 3 s although one is due (for short leases two thirds of
// TTL + grace) is given up for the next server; each time that this happens without an answer in
// between it is given twice as long, up to two thirds of the session. A session whose client
// library makes no attempt to connect any more is replaced by another.
//
// A server hangs up on a client that has seen more than it has, and on any as long as there is no
// leader. Where all hang up, again and again, a session first asks for another one, of 1 ms, on a
// connection of its own: a server that opens it has a leader and all that was agreed on. If that
// one hangs up all the same the ensemble has lost its data, and the session asks without what it
// has seen, to be told that it is over.
//
// # Waiting
//
// A waiter makes a node in the queue, and watches the one before it and no other. The first in the
// queue takes the free lock by deleting its node and making the holder's, in one multi, and without
// another look when the holder that it watched has gone, for who is first remains so. When a waiter
// has gone it holds the lock, has held it, or has given up: the next one looks for that one's
// holder's node, then for its nonce in the data of the lock's node, and only then at the queue. If
// it leaves the lock free for 2 s it is dead, or as good as dead, and loses its place; who is alive
// then joins again at the end. A waiter looks by itself every 2 s, in case a push is lost.
//
// # Readers and permits
//
// Each that holds has a node, with its nonce, of a permit its limit and slot too, in the name: so a list of the nodes
// tells who may hold. One multi takes a free lock, as ever. Beside others a claim stands in the queue first, and a
// list after that shows its place and who holds: three requests, and one more where it was not known that the lock is
// held, and one or two of a reader for the token of whom it joins. That no step comes too late for what the list
// showed rests on two rules.
//
//   - Only the first in the queue becomes a holder, by deleting its place in the same multi. As long
//     as that place is there nobody else does, so what the first has seen of holders only shrinks: it
//     stays admitted, and a slot that was free stays free. A reader that sees no holder begins an era.
//   - A reader that readers alone stand before need not be the first: it joins a reader that holds,
//     whose node the multi checks. So it has the token of somebody who holds at that moment, and no
//     writer has come since that was granted. If that reader has left meanwhile, or one with a floor has begun to read,
//     it looks again.
//
// A reader whose floor is not below the token of those beside it has one of its own, and leaves that in
// the lock's node for those who come later: the one that it saw may have the older one.
//
// A reader that waits watches the last in front of it that is no reader, so all behind a writer are
// woken at once; the first that waits for a permit watches the list, since anybody's release may let
// it in. A writer that waits behind a group, or whoever else is the first in the queue and may not
// hold yet, writes into its node each second that it lives. One that has said nothing for 3.5 s, and
// nothing since that was seen, loses its place: those behind it might be let in, and would wait for as
// long as its session lasts.
//
// A try that may hold once those in front of it do stands in the queue until they do, and leaves it when
// they have not moved for 200 ms and five looks.
//
// All programs that use a name in these ways must know of them. An older one never gets in beside a
// group: it finds nodes that it does not know, and says ErrInvalid.
//
// # Tokens
//
// The token of a grant is a number that all processes know, the base, plus 256 times the zxid of the multi that made
// the holder's node; the other 255 numbers are for what is reserved with it. The servers count transactions in the
// zxid, in the order in which they are done, so nobody waits for the draws of others, and many grants share a multi.
// The answer to the write of tokens/last-… tells the zxid; whoever reads the holder's node, also its holder after a
// lost answer, knows it from the node's creation. A reader that joins others has their token, which stands in its
// node. Different names may have the same token.
//
// Every multi that grants checks the version of the base's node, so nobody grants with a base that is out of date: it
// is refused, reads the base, and asks again. The base changes, on the condition that nobody else changed it,
//
//   - when a process comes to a server, at first, after a broken connection or the end of a session, and nobody
//     changed it in the last second: the base becomes what brings the next token to the servers' clock in µs, unless
//     it is there already. For the servers may have lost their data, or have been set back;
//   - after an election, in which the zxid jumps by 2^32: the base falls, so that the next token is the clock, or
//     above the last that was granted or raised to, of which the zxid of tokens/last-… tells, if that is greater. The
//     condition is that there was no grant meanwhile. An election breaks all connections, so nobody grants before,
//     but for what is said below;
//   - for a floor, and for what a migration raises the tokens to, if those that follow would not exceed it: to that,
//     or to a tenth of a second above the clock, so that the next floors of a source that is not further ahead need
//     no change.
//
// In every order of these steps tokens rise, which a test of this package shows. After a loss of data, or a return to
// an older state, they do if the leader's clock is ahead of them, as it is unless floors put them above it, or the
// ensemble wrote more than 3,900 transactions a second for long. A process remembers what it was granted itself.
//
// One request is not held up by an election or a loss of data: that which was about to leave when its connection
// broke, and leaves on the next. After an election it puts the tokens twelve days ahead of the clock; after a loss of
// data it may have a token as of before.
//
// # Gates
//
// The gates of a keyspace are the data of the node locks, as JSON, so they need no node of their
// own that may be missing. Every multi that makes a holder's node checks the version of that data,
// once for all grants that leave together: a gate costs no request, but for reading them at a
// process's first grant, after each change, and after a broken connection. A gate closes for
// everybody at the write of that node, whatever server they are connected to; a refusal is told
// only after the gates have been read from the leader. What is no list of gates lets nobody in:
// ErrInvalid names the node. The node of a holder in backend.PhaseBoth shows its migration in the
// first line, so that those who hold up a drain can be told from it.
//
// What a client reports is a persistent node, for an ephemeral one would end with a session that is
// shorter. It counts as forgotten once it is older, by the leader's clock, than it was to be kept.
// The next look at the clients of any migration deletes it, or one of the next clients that report
// for the first time, each of which looks at up to 32. So after the last of a migration a few may
// stay until somebody looks.
//
// # What is not promised
//
// Mutual exclusion through a loss or a setting back of the ensemble's data. The tokens still rise, as long as the
// clock is ahead of them (see "Tokens"), so a resource that checks them stays safe. A holder learns of that when its
// session is refused or at its Deadline.
//
// # What the servers need
//
// ZooKeeper 3.5.3 or later, which has container nodes, and of which
// znode.container.checkIntervalMs must not be 0. maxSessionTimeout at least the longest TTL +
// grace and a little more: the default of 40 s does for the default TTL of 30 s and a grace of up
// to 5 s. minSessionTimeout at least two ticks, as by default. maxClientCnxns (60 for one address
// by default) at least the number of processes times the sessions that each has, plus two: one
// session for each length of leases, and one for each 512 KiB of paths. Users with all rights on
// what is under chroot/prefix; who only locks needs to read the node locks, and who moves names to
// another store to write it. Nothing else may be put there: a strange node under a name is
// ErrInvalid.
package zookeeper
