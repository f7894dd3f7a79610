// Package etcd is the etcd backend: a cluster of etcd or a single member, through clientv3. It
// needs etcd 3.5.13 (of 3.4, 3.4.31), which has the fix of etcd-io/etcd#15247: without it a leader
// that hung could renew or end leases after it had been replaced. A URL of an older one is refused.
//
//	etcd://[user:password@]host[:2379][,host[:2379]…]     etcds:// with TLS
//
// Keys of the URL: prefix, ttl; dial_timeout (default 2s); for etcds tls_ca, tls_cert, tls_key,
// tls_server_name, tls_skip_verify. [New] takes a client that the program has; give
// such a client DialKeepAliveTime (10 s or so), so that it leaves a member that has vanished, and
// grpc.WithConnectParams with a short back-off, for gRPC's own pauses grow up to two minutes.
//
// # What a lease is made of
//
// A lock is a queue of keys, one for each acquisition that holds it or waits for it. The one that
// was created first holds it. Each is under an etcd lease: when that ends, etcd deletes the key,
// and the next one is first. With the prefix "fencelock:" an operator sees
//
//	fencelock:~lock/orders%2F17/<id>    held:<token>:<owner>, both:<token>:<migration>:<owner>,
//	                                    next::<owner> (it waits, or holds if it is first: see
//	                                    "Heirs") or wait::<owner>
//	fencelock:~lock/orders%2F17/+r<id>  the same of a reader
//	fencelock:~lock/pool/+p5.<id>       of a permit of five; held/<slot>:<token>:<owner>, held: for slot 0
//	fencelock:~base                     what is added to a create revision to make a token
//	fencelock:~last                     the nonce of the last release, or of those in one transaction
//	fencelock:~gone/<nonce>             tombstone of an acquisition; ends after two minutes
//	fencelock:~token/<resource>         what a [Guard] remembers; kept for ever
//	fencelock:~gates                    the gates of migrations; kept for ever
//	fencelock:~client/<migration>/<id>  what a client of a migration has reported, under a lease
//
// The id is the nonce of an acquisition. After a release, when no request of that acquisition can be
// under way any more, the process uses its key again for a later one of the same name: etcd keeps a
// deleted key in its index until it is compacted, and passes all of those keys whenever it looks at
// the queue.
//
// In a name the slash, the percent sign and control characters are percent-encoded, so that no
// queue lies in another; a ~ of the prefix is doubled. One of the holder's first renewals writes the
// token into the key, with +63 after it for a grant with a reserve of 63 tokens; before that there
// is +63, or nothing. A name that is neither held nor waited for leaves nothing. Break deletes the
// holders' keys, as etcdctl del would. A holder notices that within a second: it looks at its keys
// every 0.6 s, 120 of them in a transaction.
//
// The auto-renewed locks of one TTL share one etcd lease, so one keep-alive renews thousands of them.
// A lock that is renewed by hand, or has a grace, a minimum or a maximum hold, is under a lease of its
// own, for TTL + grace. That costs a request more, unless a lease is left over from a lock that was
// released: 512 of one length are kept. All waiters of a process share a lease of 3 s, which is kept
// alive while any of them waits. TTLs are whole seconds, rounded up, and the server grants at least
// one and a half election timeouts (2 s by default): a longer lease delays only others. A Deadline
// counts from before the last request that set the expiry of the lease. A shared lease may have been
// renewed up to an eighth of the TTL before the lock was asked for.
//
// # Waiting
//
// An uncontended lock is one transaction: if the queue is empty, put the key and read the base.
// While a process has two transactions under way, its locks and releases of other names wait and
// share the next one, at most 60 of them; locks with a floor or a reserve, readers and permits go
// alone. A shared transaction grants all its locks or none; if one was not free, each is asked for
// again by itself.
//
// If the queue is not empty, the waiter watches the deletions in front of it and its own, and puts
// its key under the waiters' lease. When no key is in front any more, the waiter holds the lock as an
// heir; a waiter that is no heir then moves its key under the lock's lease, in a transaction that
// compares that no key is in front, and which is the grant. First come, first served, by create
// revision.
//
// A process has one watch for each name that it waits for, and keeps it for ten seconds after. The
// client begins the watches of one stream one after the other, so many watches use up to eight
// streams. A waiter whose watch is late puts its key all the same, and looks every 2 s until the
// watch has begun. Each release is told to every process that waits for the name; the process whose
// turn it is acts. A waiter looks by itself every 5 s, in case a push is lost. If a waiter's entry is
// gone, because its process, its network or the server stood still for 3 s or an operator deleted it,
// it queues again behind the others.
//
// # Heirs
//
// Most waiters put a key that makes them heirs: those that are renewed by themselves, alone in
// their lock, without a floor or a reserve, in a keyspace without gates. An heir holds the lock from
// the deletion that leaves no key in front of it. Its watch tells it the deletions in their order,
// its own among them, so it asks nothing: a hand-over is a deletion and its event. Its key stays
// under the waiters' lease of 3 s until its first renewal, 10 ms later, moves it under the lock's.
// Until then it trusts its grant for the rest of the waiters' lease, mostly more than half of it. So
// an heir that dies in these moments delays the others no longer than a dead waiter. But if the
// cluster answers nothing for the next second or two, as in an election, the heir loses the lock, and
// is told in time.
//
// While the server has no space to write, a release takes the heirs out of the queue. An heir that
// becomes the first because a holder has died loses the lock with the waiters' lease then. A server
// without the fixes of etcd-io/etcd#18089 and #19179 can miss a deletion while it compacts; the first
// renewal finds what the heir was not told.
//
// The token of an heir is the base as of the put of its key, plus the create revision. The heirs in
// front have lower tokens, because their keys are older. A claim that is granted by a transaction
// writes its own key in it. The event of a deletion shows what the key said last, and since when. If
// that is newer than the heir's own key, and says no token below the heir's, the heir takes its turn
// by a transaction, which writes nothing if the base is what it was at the put. A holder that raises
// the base deletes the heirs behind it while it holds the lock, and they join again. A client that
// writes the first gate of a keyspace first writes an empty list, after which no waiter becomes an
// heir, and then deletes the heirs that do not hold. Package tests/models/heirs is a model of this,
// with each rule left out in turn.
//
// # Tokens
//
// A token is the base plus the create revision of the key. Both are read in the transaction that
// grants or, for an heir, in the one that puts its key. Create revisions rise with every write and
// are as durable as etcd's log. They go back only when the cluster is replaced by an older state of
// itself (a restored snapshot, a copied data directory) or by an empty one. So the grant or put
// itself compares the base with this client's clock, in microseconds: the first of a process, every
// one that comes more than a second after the last comparison, and after an answer that shows a lower
// revision or raft term than before, or no base. The base is never lowered.
//
// Hence tokens rise over a restore if the clock of the client that is granted the lock next is not
// behind the clocks of the clients before by more than the time since their grants. If that client
// noticed neither the broken connection nor the lower revision, the outage must also have been longer
// than a second, and the client no heir that has waited through it. etcdutl snapshot restore
// --bump-revision --mark-compacted closes that gap too.
//
// A grant with a reserve (backend.Request.Reserve) raises the base, in its own transaction, to the
// clock plus as many numbers as it reserves. The last of them is the new base plus the create
// revision, and every later grant has a greater revision and no lower base. If the base is already
// ahead of the client's clock, for another client's clock or for a floor, nothing is reserved.
//
// # Readers and permits
//
// Their keys stand in the queue of their name, among the exclusive ones. A reader may hold the lock
// if all keys in front of its own are readers'. A permit may if all keys in front are permits', and
// no more than its own limit and theirs allow. Keys in front only vanish, so a claim that may hold
// the lock may hold it from then on: a waiter learns that from the watch, and moves its key under the
// lock's lease. Until it does, it counts as a holder for as long as its lease of 3 s lasts. Programs
// with the recipe of one key each, and those from before there were readers, see all of them as keys
// in front of their own; but Break of such a program ends the first hold only.
//
// The token, and the slot of a permit, are chosen from the queue as it was read. The transaction
// compares that no other key of the mode has changed since and, if the claim has no key yet, that
// none was created; otherwise they are chosen again. So the first holder costs one transaction, which
// guesses that the queue is empty, and each further holder two. A reader takes the token of the
// readers that hold, and its transaction compares that the key with that token is still there. A
// reader with a floor that is not below that token draws one of its own, and later readers take the
// greatest.
//
// To draw a token, the transaction raises the base to this client's clock, unless it is higher. The
// key has the token as a number or, after an @, the base to which its create revision is to be added.
// If a waiter in front may hold the lock and has not moved its key yet, the token counts from the
// create revision of that waiter's key, and the base is raised by one more, so that the waiter has a
// greater token. None is reserved.
//
// Package tests/models/etcd is a model of this, with each compare left out in turn.
//
// # Gates
//
// All gates of a keyspace are in the one key ~gates, as JSON. Every transaction that grants, or that
// makes an heir, compares that key with what the process has seen there. So a gate costs no request,
// except one after each change of any gate. A keyspace with that key has no heirs, and a hand-over
// takes a transaction more. If its value is no list of gates, no request is let in, and ErrInvalid
// names the key. The entry of a holder in backend.PhaseBoth shows its migration from the grant on, so
// that it can be found when it holds up a drain. A client's report is under an etcd lease of its own,
// of whole seconds.
//
// # What is not promised
//
//   - A single holder, if a leader that was stopped goes on after its successor was chosen while the
//     holder is cut off: it can end leases that the new leader keeps.
//   - That a lock survives a restore from an older state. Its holder is told within a second or so of
//     being connected again, but another may be granted the lock before that. The token tells the two
//     apart; but a reader that joins readers of the older state has their token.
//   - That a waiter keeps its own place in the queue if its network is cut for more than 3 s: it
//     queues again.
//   - That a dead waiter delays the others by less than 5 s while the cluster elects a leader, which
//     prolongs every lease.
//   - A token in Inspect of an exclusive lock that was never renewed, if the store has been compacted
//     since its grant: it shows 0.
//   - An answer to a release that is sent again because its answer was lost, if the store's history is
//     compacted in the seconds between: that is an error then.
//   - That a released lock is free, if the client has a KV of the program's own (as of package namespace),
//     a proxy answers that a request was cancelled, and passes it on later. clientv3 repeats such a request
//     by itself, which that KV hides, so nothing refuses the late copy. It holds the lock until the process
//     ends or an operator breaks it.
//   - That a shared lease survives a restore of a backup on a server that is full. The holders are told
//     in time.
//
// # What the server needs
//
// The default settings do: --max-txn-ops of 128 or more, and an election timeout of 2 s or less. (With
// a longer one the server grants waiters a longer lease, and a dead one delays the others for more
// than 5 s.) Auto-compaction on, as for any etcd: every lock and release is a revision. With
// authentication: read and write on the range of keys that begin with the prefix. If a user has a
// password, the server checks it for each stream that the client opens, which is slow on purpose. A
// driver that was opened by its URL shares one check among the streams of a second. A client of the
// program's does not, and may not get through to a server that takes longer than 1.4 s for a check.
// Certificates cost nothing.
//
// The recipe of one key each, ordered by create revision, is that of etcd's own concurrency package
// and of "ZooKeeper: Wait-free coordination for Internet-scale systems", section 2.4.
package etcd
