// Package postgres is the PostgreSQL backend, through pgx v5: modes row and advisory, whose lease is
// an open transaction that the holder can write in, and mode lease, whose leases are rows with an
// expiry.
//
//	postgres://[user[:password]@]host[:5432][,host…][/database]?mode=row     the default
//	postgres://[user[:password]@]host[:5432][,host…][/database]?mode=advisory
//	postgres://[user[:password]@]host[:5432][,host…][/database]?mode=lease   postgresql:// is the same
//
// Keys of the URL: mode, prefix, ttl, schema, listen_url; those of pgx and pgxpool (sslmode,
// connect_timeout, target_session_attrs, pool_max_conns, default_query_exec_mode, …); and the
// run-time parameters of the server that make sense here (application_name, search_path, options,
// statement_timeout, synchronous_commit, …). Any other is refused. A pool from a URL has up to 50
// connections, and connect_timeout is 2 s by default: TLS and a password take six round trips, so
// give more where one takes 300 ms. At most eight are begun at once, and while none gets through one
// after the other, so that a server that is back after an outage is found soon, and not flooded.
// [New] takes a pool that the program has, and makes a few connections of its own beside it.
// [NewSQL] takes a sql.DB instead, over pgx/v5/stdlib, lib/pq or another driver, for mode lease;
// [CheckTokenSQL] is the guard in its transactions. PostgreSQL 15 or later.
//
// # Mode row: what a lease is made of
//
// A row of fencelock_row, locked with SELECT … FOR UPDATE by a transaction that is open as long as
// the lease is. The server's lease is idle_in_transaction_session_timeout, set for that transaction
// to TTL + grace; every statement renews it. Taking a free lock is one round trip, token included,
// and releasing it another. [Tx] gives the transaction: what is written in it commits with Unlock
// and rolls back with any loss. No client's and no server's wall clock plays a part. [LockTx] takes
// the same lock inside a transaction of the program's own.
//
// The row is made by whoever locks the name, and deleted by the release once nobody wants it. Where
// a process releases a name twice within 300 ms, the row stays, until the name has not been released
// for 300 to 600 ms, or Close: such a lock costs a third less. What is not deleted so, as where the
// process dies, others delete, which look for such rows once a minute while they release locks.
//
// Being connected is holding. A connection that breaks has lost its lease, at once and for good; a
// read that is parked on each held connection after 50 ms notices that the server has ended it. So
// pg_terminate_backend, a restart or a cut are seen within a second, and a dead process frees its
// locks when the server sees its connections close, not after the TTL: also inside a statement,
// where client_connection_check_interval sees to it. A process that is stopped inside a statement,
// or does not read its result, frees them within twice TTL + grace: statement_timeout and
// tcp_user_timeout bound both. WithGrace holds for a holder that is silent; one whose connection is
// seen to break frees the lock at once.
//
// A lease costs a connection and, while it is idle, a goroutine; so does each name that the process
// waits for, however many goroutines wait. One connection of the pool is kept back for Inspect,
// Break and tokens. When the rest is used up, TryLock returns ErrUnavailable, and so does Lock once
// it has waited 5 s for one; both name pool_max_conns.
//
// Waiters queue in the server, at an advisory lock (the row's door), for that queue is strictly
// first come, first served, which that of row locks is not. A waiter that was granted the lock has
// it for 2 s, until its confirmation sets the TTL: before Lock returns, or, where it waited for less
// than a second, 10 ms after that. client_connection_check_interval, set for its
// transaction, takes a dead waiter out within half a second; a host that vanished without a word
// costs those 2 s. While it waits, a process asks every 2 s whether the server is there, once for
// all its waiters.
//
// # Mode advisory: the same without the row
//
// The transaction holds the door alone, in exclusive and in share mode: that tells it from a
// transaction of [LockTx]. So it has no transaction id until the holder writes, and no snapshot
// while it is idle (that of a result that was read lasts until the next statement or renewal), and
// vacuum goes on. To draw a token takes an id, so another connection, to the same server, draws it
// once the door is won, in a transaction of its own, as in mode row behind a floor that is far ahead:
// that is one round trip more, and a third gives the session its label.
// Where nothing was written, the COMMIT of a release notes the nonce in fencelock_ring, by which a
// release whose reply was lost finds out what became of it; where Tx was used, it first learns the
// transaction's number, in a round trip more. (A note is forgotten after some 16,000 other releases,
// as in mode lease.) What else is said of mode row holds, but a row that is
// locked by hand is no lock here. The modes exclude each other, for they share the door.
//
// A waiter of either mode is a statement that runs, so its snapshot holds back vacuum.
//
// A COMMIT whose answer was lost is asked about by the transaction's number, and the answer waits for
// a synchronous standby as the COMMIT did. A server that has crashed since, or was promoted, may have
// given that number to another transaction: where it says "committed", Unlock is ErrUnavailable, and
// the resource tells what became of the write.
//
// # Mode lease: what a lease is made of
//
// A row of fencelock_lease with the holder's nonce and expires_at, by the server's
// clock_timestamp(). Acquire is one statement; a try that fails only reads. Any number of leases
// share the pool; renewals and checks are one statement for all, and a crowd's acquires and
// releases go many in one, two statements at a time. A release does not wait for the disk: a crash
// of the server may undo the last of them, those of about half a second, which leaves such a lock
// held until its TTL is over; no grant is undone by that. Nothing but the listener needs a session
// of its own, so it works behind a pooler in transaction mode, such as PgBouncer: what a session has
// prepared it may forget.
//
// A waiter joins fencelock_queue. A release hands the lock to the first waiter whose process is
// alive, as a claim of 2 s that the waiter confirms with its own acquire, and notifies the one
// channel of that process. The process listens with a connection of its own while somebody waits,
// and for 30 s after. Behind a pooler in transaction mode give the server's own address by
// listen_url= or Options.Listen; over a sql.DB nobody listens without that. Every second (a quarter
// of one where no push arrives) a waiting process gives a sign of life, one statement for all its
// waiters, which also finds what a lost push has missed. One that gives none for 4 s is skipped.
//
// Readers and permits are rows of fencelock_hold, each with its own expiry, beside a row of
// fencelock_lease that marks their name: so a free lock is granted without a look at that table.
// They wait in the same queue, and whatever frees the name, or takes a waiter out, hands it to all
// at the head of the queue who may have it, as claims.
//
// # Tokens
//
// Each grant draws max(last + 1, the server's clock in µs), once the lock is won, from a sequence
// that no rollback takes back. A sequence alone forgets its last values if the server crashes while
// the transaction is open; the clock does not. A floor that is ahead of the clock is kept as the
// lead of the name's slot (one of 1,024), in a transaction that has committed before the token is
// handed out. In mode lease a grant can reserve numbers behind its own, by which the sequence gets
// at most 3 ms ahead of the clock; mode row reserves none, for its hold ends with its transaction.
// So tokens rise over release, loss, kill -9 and a promoted replica; also over the loss of all
// data, if no floor was ahead of the clock. A floor more than an hour ahead of the clock is
// ErrInvalid. The exception: the new server's clock is behind the old one's by more than the time
// since the last grant, and the sequence or the lead was lost with the old one. [CheckToken] is the
// guard.
//
// # Gates
//
// The driver implements backend.Mover. A migration's gate is a row of fencelock_gate. A client
// judges its requests by the gates that it knows, and sends a hash of them, which the function that
// grants a lock compares with the table's; where they differ it tells the client what they are, and
// grants nothing. It compares once it has what keeps all others from the lock, so whoever asks what
// is not drained finds every grant that an open gate let through: holders by their doors (mode row)
// or rows (mode lease), and those still under way, which are returned or waited for. In mode row a
// client in PhaseBoth marks its transaction by an advisory lock; in mode lease the row names its
// migration. A try that is refused leaves no row. In mode lease one whose lock another holds is
// answered ErrLocked first.
//
// # What is not promised
//
// Mutual exclusion through a failover to a replica that was behind (make it synchronous), in modes
// row and advisory through one after which the old primary goes on, and in mode lease with
// synchronous_commit=off through a crash. The tokens still rise. Mode row excludes through all
// of them what is written in its own transaction, which is gone with it. In mode lease a
// server whose wall clock jumps expires leases early or late. Mode row does not work behind a
// pooler in statement mode; in transaction mode a pooler hides dead clients from the server:
// connect directly.
//
// # What the server needs
//
// A role that may create tables once, or schema.sql run by hand with the GRANTs at its head. The
// schema of the tables is found once, on a new connection, and named in every statement, so that no
// search_path decides which lock is meant. For Break, and to clean up after lost replies, mode row
// ends sessions of its own role (pg_terminate_backend): all clients of a lock should share a role,
// or have pg_signal_backend. Mode row needs max_connections for all its leases and waiters, and a
// server on Linux, macOS or a BSD (client_connection_check_interval). A transaction with an id holds
// back vacuum: leases of mode row should be short, or of mode advisory. In mode lease over a URL, a
// statement that has no answer in time costs its connection. For 10 s after that, a late statement
// keeps its connection for up to 2 s: a busy server can make few new ones.
//
// # What an operator sees
//
//	fencelock_row       mode row: a row for each name that is held or waited for, or was just now
//	fencelock_lease     mode lease: name, nonce, owner, token, expires_at
//	fencelock_hold      mode lease: the same of each reader and permit
//	fencelock_queue, fencelock_process    mode lease: who waits, and until when a process is alive
//	fencelock_ring, fencelock_gone        nonces released last, and those that were given up
//	fencelock_token, fencelock_lead       the last number drawn, and the slots that are ahead of it
//	fencelock_guard     what CheckToken has seen, a row for each resource
//	fencelock_gate, fencelock_client      the gates of migrations, and what their clients report
//
// Names are bytes: encode(name, 'escape') shows them. A session of mode row has the
// application_name "fl <token> <nonce> <timeout> <owner>", with token 0 while it waits; the nonce's
// first digits, the timeout in ms in base 36, and as much of the owner as fits into 63 bytes. A
// moment after the last who held or waited nothing is left of a name; what dead processes leave, any
// other's release deletes after a minute or so.
package postgres
