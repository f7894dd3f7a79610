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
// statement_timeout, synchronous_commit, …). Any other key is refused. A pool from a URL has up to
// 50 connections. connect_timeout is 2 s by default: TLS and a password take six round trips, so
// give more where a round trip takes 300 ms. The driver begins at most eight connections at once,
// and one after the other while none gets through: so it soon finds a server that is back after an
// outage, and does not flood it.
//
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
// The client that locks a name makes its row, and the release deletes the row if no other client
// wants the name. If a process releases a name twice within 300 ms, the row stays until the name has
// not been released for 300 to 600 ms, or until Close: such a lock costs a third less. A process
// that dies leaves its rows behind. Other processes look for such rows once a minute, while they
// release locks, and delete them.
//
// Being connected is holding. A connection that breaks has lost its lease, at once and for good.
// After 50 ms the driver parks a read on each held connection, which notices that the server has
// ended it. So a holder sees pg_terminate_backend, a restart or a cut within a second. The locks of
// a dead process are free when the server sees its connections close, not after the TTL; inside a
// statement client_connection_check_interval makes the server look. If synchronous_standby_names is
// set, every renewal also needs a commit by another connection, and every grant needs one that is at
// most a third of the TTL old. A primary whose standby was promoted beside it can commit nothing, so
// its holders lose their leases in time. A process that is stopped inside a statement, or does not
// read its result, frees its locks within twice TTL + grace: statement_timeout and tcp_user_timeout
// bound both. WithGrace protects a holder that is silent. A holder whose connection breaks frees the
// lock at once.
//
// A lease costs a connection and, while it is idle, a goroutine. So does each name that the process
// waits for, however many goroutines wait. One connection of the pool is kept back for Inspect,
// Break and tokens. When the rest is used up, TryLock returns ErrUnavailable, and so does Lock after
// it has waited 5 s for a connection; both errors name pool_max_conns.
//
// Waiters queue in the server at an advisory lock, the door of the row: its queue is strictly first
// come, first served, and the queue of a row lock is not. A granted waiter has the lock for 2 s,
// until its confirmation sets the TTL. It confirms before Lock returns or, if it waited for less
// than a second, 10 ms after that. client_connection_check_interval, set for its transaction, takes
// a dead waiter out within half a second; a host that vanished without a word costs those 2 s. While
// it waits, a process asks every 2 s whether the server is there, once for all its waiters.
//
// # Mode advisory: the same without the row
//
// The transaction locks the door only, in exclusive and in share mode; the share mode tells it from
// a transaction of [LockTx]. It has no transaction id until the holder writes, and no snapshot while
// it is idle, so vacuum goes on. (The snapshot of a result lasts until the next statement or
// renewal.) Drawing a token takes a transaction id. So once the door is won, another connection to
// the same server draws the token in a transaction of its own, as in mode row behind a floor that is
// far ahead. That is a second round trip, and a third gives the session its label.
//
// If the holder wrote nothing, the COMMIT of the release notes the nonce in fencelock_ring: a release
// whose reply was lost is sent again and finds the note there. (A note is forgotten after some 16,000
// other releases, as in mode lease.) If Tx was used, the release first learns the transaction's
// number, which is a round trip more. All else is as in mode row, except that a row that is locked by
// hand is no lock here. The two modes exclude each other, because they share the door.
//
// In both modes a waiter is a running statement, so its snapshot holds back vacuum.
//
// If the answer to a COMMIT is lost, the driver asks what became of the transaction by its number,
// and the answer waits for a synchronous standby as the COMMIT did. A server that has crashed or was
// promoted since may have given that number to another transaction. If it says "committed" then,
// Unlock returns ErrUnavailable, and only the resource can tell whether the write was done.
//
// # Mode lease: what a lease is made of
//
// A row of fencelock_lease with the holder's nonce and expires_at, by the server's
// clock_timestamp(). Acquire is one statement, and a try that fails only reads. Any number of leases
// share the pool. One statement renews or checks all of them; many acquires or releases of other
// goroutines share a statement, and two statements are under way at a time. A release does not wait
// for the disk unless it grants the lock by a push (see below): a crash of the server may undo the
// releases of the last half second or so, which leaves those locks held until their TTL is over. It
// undoes no grant. Only the listener needs a session of its own, and the driver copes with a session
// that forgets what it prepared, so the mode works behind a pooler in transaction mode, such as
// PgBouncer.
//
// A waiter joins fencelock_queue. A release hands the lock to the first waiter whose process is
// alive, and notifies the channel of that process alone. The grant lasts for 2 s. The push alone
// gives the lock to a waiter that wants it exclusively, without a floor, without WithManualRenew and
// outside of a migration, and that asked less than two thirds of a second ago. Such a waiter renews
// the grant 10 ms later. All others confirm it with their own acquire first, and so does every
// waiter where synchronous_standby_names is set. Package tests/models/pushes is a model of this,
// with each safeguard left out in turn. A process listens with a connection of its own while it
// waits, and for 30 s after. Behind a pooler in transaction mode give the server's own address by
// listen_url= or Options.Listen; over a sql.DB no process listens without that. Every second (every
// quarter of one if no push arrives) a waiting process gives a sign of life, one statement for all
// its waiters, which also finds a grant whose push was lost. A process that gives none for 4 s is
// skipped.
//
// Readers and permits are rows of fencelock_hold, each with its own expiry, beside a row of
// fencelock_lease that marks their name. So a free lock is granted without a look at that table. They
// wait in the same queue. When a name comes free or a waiter leaves, the lock goes, as claims, to
// all at the head of the queue that may hold it together.
//
// # Tokens
//
// Once the lock is won, a grant draws max(last + 1, the server's clock in µs) from a sequence, which
// no rollback takes back. A sequence alone forgets its last values if the server crashes while the
// transaction is open; the clock does not. A floor that is ahead of the clock is kept as the lead of
// the name's slot (one of 1,024), in a transaction that commits before the token is handed out. In
// mode lease a grant can reserve the numbers behind its own, which puts the sequence at most 3 ms
// ahead of the clock. Mode row reserves none, because a hold ends with its transaction.
//
// So tokens rise over release, loss, kill -9 and a promoted replica, and also over the loss of all
// data if no floor was ahead of the clock. There is one exception: the sequence or the lead is lost
// with the old server, and the clock of the new one is behind by more than the time since the last
// grant. A floor more than an hour ahead of the clock is ErrInvalid. [CheckToken] is the guard.
//
// # Gates
//
// The driver implements backend.Mover. A migration's gate is a row of fencelock_gate. A client
// judges its requests by the gates that it knows, and sends a hash of them. The function that grants
// a lock compares that with the table: if they differ it grants nothing, and tells the client the
// gates. It compares when all other clients are already kept from the lock. So a drain finds every
// grant that an open gate let through: holders by their doors (mode row) or rows (mode lease), and
// grants still under way, which it returns or waits for. A client in PhaseBoth marks its transaction
// by an advisory lock (mode row), or names its migration in the row (mode lease). A try that the
// gates refuse leaves no row. In mode lease a try for a lock that is held is ErrLocked, whatever the
// gates are.
//
// # What is not promised
//
// Mutual exclusion does not hold
//   - through a failover to a replica that was behind: make it synchronous;
//   - in modes row and advisory, if the old primary goes on after a failover: until the TTL of its
//     holders is over. (A holder of LockTx has no TTL, but what it writes cannot commit there.)
//   - in mode lease, through a crash with synchronous_commit=off, or while the server's wall clock
//     jumps, which expires leases early or late;
//   - in mode lease, if an operator ends a grant's wait for the replica (pg_cancel_backend): the
//     grant counts until its first renewal if a pool or sql.DB of the program carried it.
//
// The tokens still rise, and what was written in the transaction of mode row is excluded in all of
// these cases, because it is gone with the transaction. Mode row does not work behind a pooler in
// statement mode, and a pooler in transaction mode hides dead clients from the server: connect
// directly.
//
// # What the server needs
//
// A role that may create tables once, or schema.sql run by hand with the GRANTs at its head. The
// driver finds the schema of the tables once, on a new connection, and names it in every statement,
// so that no search_path decides which lock is meant. For Break, and to clean up after lost replies,
// mode row ends sessions of its own role (pg_terminate_backend): all clients of a lock should share
// a role, or have pg_signal_backend. Mode row needs max_connections for all its leases and waiters, and a
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
//	fencelock_queue, fencelock_process    mode lease: the waiters, and until when a process is alive
//	fencelock_ring, fencelock_gone        the nonces released last, and those that were given up
//	fencelock_token, fencelock_lead       the last number drawn, and the slots that are ahead of it
//	fencelock_guard     what CheckToken has seen, a row for each resource
//	fencelock_gate, fencelock_client      the gates of migrations, and what their clients report
//
// Names are bytes: encode(name, 'escape') shows them. A session of mode row has the
// application_name "fl <token> <nonce> <timeout> <owner>", with token 0 while it waits; the nonce's
// first digits, the timeout in ms in base 36, and as much of the owner as fits into 63 bytes. A
// moment after its last holder and waiter nothing is left of a name. The rows of a dead process are
// deleted a minute or so later, by the releases of others.
package postgres
