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
//	                                    next::<owner> (it waits, or holds if it is first; see
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
// The id is the nonce of an acquisition; once that has been released and nothing of it can be under
// way any more, a later one of the same name and process uses its key again: etcd keeps a key that
// was deleted in its index until it is compacted, and passes by all of those whenever it looks at
// the queue.
//
// In a name the slash, the percent sign and control characters are percent-encoded, so that no
// queue lies in another; a ~ of the prefix is doubled. The token stands in the key from the
// holder's first renewal on, and +63 after it for a grant with a reserve of 63 tokens; before that
// there is +63, or nothing. What is left of a name once nobody holds it or waits for it: nothing.
// etcdctl del of the holders' keys is what Break does; a holder notices within a second, by looking
// at its keys every 0.6 s, 120 of them in a transaction.
//
// The auto-renewed locks of one TTL share one etcd lease, so that thousands of them are renewed by
// one keep-alive. A lock that is renewed by hand, or has a grace, a minimum or a maximum hold, is under a
// lease of its own, for TTL + grace, which costs a request more, unless one is left over of a lock
// that was released: 512 of one length are kept. All waiters of a process share a
// lease of 3 s that is kept alive while any of them waits. TTLs are whole seconds, rounded up, and
// the server grants no less than one and a half election timeouts (2 s by default): more than was
// asked delays only others. A Deadline counts from before the last request that set the expiry of
// the lease, which for a shared one may be an eighth of the TTL before the lock was asked for.
//
// # Waiting
//
// An uncontended lock is one transaction: if the queue is empty, put the key and read the base.
// While two of a process are under way, the locks and releases of other names that come share the
// next one, 60 at most; but for locks with a floor or a reserve, readers and permits. It asks for
// all of them or nothing, and, if one was not free, once more for each by itself. If the queue is
// not empty the waiter watches it for deletions, those in front of it and its own, and puts its key
// under the waiters' lease. When nobody is in front any more it holds the lock as an heir, or else
// moves its key under the lock's lease, in a transaction that compares that this is so; that is
// the grant then. First come, first served, by create revision. A process has one watch for each
// name that it waits for, kept for ten seconds after. The client begins the watches of one stream
// one after the other, so many go over up to eight, and one whose watch is late puts its key all
// the same and looks every 2 s until it has begun. Each release is told to every process that
// waits for the name; the one whose turn it is acts. A waiter looks for itself every 5 s, in case
// a push is lost. A waiter whose entry is gone, because its process, its network or the server
// stood still for 3 s or an operator deleted it, queues again behind the others.
//
// # Heirs
//
// Most waiters put a key that makes them heirs: those that are renewed by themselves, alone in
// their lock, without a floor or a reserve, in a keyspace without gates. An heir holds the lock from
// the deletion on that leaves nobody in front of it. It learns that from its watch, which tells the
// deletions in their order, its own among them, and asks nothing: a hand-over is a deletion and its
// event. Its key stays under the waiters' lease of 3 s until its first renewal, 10 ms later, moves
// it under the lock's: until then it trusts its grant for what that lease has left, mostly more than
// half of it. So who dies in these moments delays the others no longer than a dead waiter; and a
// cluster that answers nothing from then on for a second or two, as in an election, costs the lock,
// whose holder is told in time. While the server has no space to write, a release takes the heirs out
// of the queue; one that is first without a release, for a holder has died, loses the lock with that
// lease. Where a server, without the fixes of etcd-io/etcd#18089 and #19179, misses a deletion as it
// compacts, the first renewal finds what the heir was not told.
//
// Its token is the base as of the put of its key, plus the create revision. The heirs in front have
// lower ones, for their keys are older. Who is granted the lock by a transaction writes its own key
// in that. The event of a deletion shows what the key said last, and since when. If that is newer
// than the heir's own key, and says no token below the heir's, the heir takes its turn by a
// transaction; that writes nothing if the base is what it was at the put. A holder that raises the
// base deletes the heirs behind it while it holds the lock, and they join again. Who writes the first
// gate of a keyspace first writes a list without any, from when on nobody becomes an heir, and then
// deletes those that do not hold. Package tests/models/heirs is a model of this, with each rule left
// out in turn.
//
// # Tokens
//
// A token is the base plus the create revision of the key, both read in the transaction that
// grants, or, of an heir, in the one that puts its key. Create revisions rise with every write and
// are as durable as etcd's log. They go back only when the cluster is replaced by an older state
// of itself (a restored snapshot, a copied data directory) or by an empty one; so the base is
// compared with this client's clock, in microseconds, in the grant or put itself: at a process's
// first, at every one more than a second after the last comparison, and when an answer shows a
// lower revision or raft term than one before, or no base. It is never lowered. Hence tokens rise
// over a restore if the clock of the client that is granted the lock next is not behind the clocks
// of those before by more than the time since their grants, and, where that client noticed neither
// the broken connection nor the lower revision, if the outage was longer than a second, and it is
// no heir that has waited through it. etcdutl snapshot restore --bump-revision --mark-compacted
// closes that too.
//
// A grant with a reserve (backend.Request.Reserve) raises the base, in its own transaction, to the
// clock and by as many numbers more as it reserves: the last of them is the new base plus the
// create revision, and whoever comes later has a greater revision and no lower base. Where the base
// is ahead of the client's clock already, be it for another client's clock or for a floor, nothing
// is reserved.
//
// # Readers and permits
//
// Their keys stand in the queue of their name, among the exclusive ones. A reader may hold the lock
// if all keys in front of its own are readers'. A permit may if all in front are permits', and no
// more than its own limit and theirs allow. Keys in front only vanish, so a claim that may hold the
// lock may for good: a waiter finds out by the watch, and moves its key under the lock's lease by
// itself. Until it does it counts as a holder, for as long as its lease of 3 s lasts. The recipe of
// one key each, and programs of before there were readers, see all of them as keys in front of
// their own; but Break of such a program ends the first hold only.
//
// The token and, of a permit, the slot are chosen from the queue as it was read. The transaction
// compares that no other key of the mode has changed since, and, where the claim has no key yet,
// that none was created; otherwise they are chosen again. So the first holder costs one
// transaction, which guesses that the queue is empty, and each further one two. A reader takes the
// token of the readers that hold, and its transaction compares that the key which has it is there
// yet. A reader with a floor that is not below that token draws one of its own, and later readers
// take the greatest.
//
// To draw a token is to raise the base to this client's clock, or to what it is if that is more.
// The key says the token as a number, or, with an @, the base to which its create revision is to be
// added. Where a waiter in front may hold the lock and has not moved its key yet, the token counts
// from the create revision of that waiter's key, and the base is raised by one more, so that the
// waiter has a greater token. None is reserved.
//
// Package tests/models/etcd is a model of this, with each compare left out in turn.
//
// # Gates
//
// All gates of a keyspace are in the one key ~gates, as JSON. Every transaction that grants, to a
// first asker or to a waiter whose turn has come, or makes an heir, compares that key with what the
// process has seen there: so a gate costs no request, but for one after each change of any gate. Once
// there is that key there are no heirs, and a hand-over takes a transaction more. What is no list of
// gates lets nobody in: ErrInvalid names the key. The entry of a holder in backend.PhaseBoth shows
// its migration from the grant on, so that those who hold up a drain can be told from it. What a
// client reports is under an etcd lease of its own, of whole seconds.
//
// # What is not promised
//
// One holder, where a leader that was stopped goes on after its successor was chosen and the holder
// is cut off just then: it can end leases that the new leader keeps. That a lock survives a restore
// from an older state: its holder is told within a second or so of being connected again, but
// another may be granted the lock before that. Its token tells the two apart; but a reader that
// joins readers of the older state has their token. That a waiter keeps its place, rather than a
// place, over a cut of its network of more than 3 s. That a dead waiter delays the others by less
// than 5 s while the cluster elects a leader, which prolongs every lease. Inspect of an exclusive
// lock that was never renewed shows token 0 if the store has been compacted since its grant. A
// Release whose answer was lost is told apart from a loss by the store's history; if that is
// compacted within the seconds before its repetition, the repetition is an error.
//
// # What the server needs
//
// The default settings do: --max-txn-ops of 128 or more, an election timeout of 2 s or less (a
// longer one makes the server grant waiters a longer lease, so that a dead one delays the others
// for longer than 5 s). Auto-compaction on, as for any etcd: every lock and release is a revision.
// With authentication: read and write on the range of keys that begin with the prefix. Where a user
// has a password the client has it checked for each stream that it opens, which is slow on purpose.
// A driver that was opened by its URL shares one check among the streams of a second; that of a
// client of the program's does not, and may not get through to a server that takes longer than
// 1.4 s for a check. Certificates cost nothing.
//
// The recipe of one key each, ordered by create revision, is that of etcd's own concurrency package
// and of "ZooKeeper: Wait-free coordination for Internet-scale systems", section 2.4.
package etcd
