package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// LockTx locks a name inside a transaction of the caller's own, waiting for it as SELECT … FOR
// UPDATE waits for a row, and returns the fencing token. The lock ends with the transaction, by
// COMMIT, ROLLBACK or the end of the connection, and with a rollback to a savepoint that was made
// before it. Nothing else is left of it, and nothing of the session is changed.
//
// It is the lock of modes row and advisory: the holders of a Mutex and the transactions of LockTx
// exclude each other, wait in one queue, first come, first served, and draw their tokens from one
// source. A lease of mode lease is another lock.
//
//   - The wait is bounded by ctx. As with any statement of pgx the end of ctx ends the connection,
//     and with it the transaction; the error matches ctx's and, if another had the lock, ErrLocked.
//     A lock_timeout of the session that is over is ErrLocked too.
//   - The transaction must be READ COMMITTED and read write, else the error matches ErrInvalid: the
//     snapshot of another level is older than the lock, and does not show what the holder before
//     has written. So do a transaction that has failed, a bad name, and a database without the
//     tables (see [CreateSchema]).
//   - A gate of a migration that is closed refuses the lock with a *backend.GateError; one that is
//     closed later waits for the end of the transaction.
//   - Unless the error is nil, roll back. A deadlock is the server's error 40P01, as among rows.
//   - Calling it again for a name that the transaction has is nil, with a higher token.
//   - There is no lease: nothing bounds how long the transaction lasts but the server's
//     idle_in_transaction_session_timeout, and nobody is told of a loss but by the next statement's
//     error. Inspect shows the lock as held, without owner and token; List shows it only while
//     somebody waits for it; Break ends the caller's session.
//
// The tables are those of the transaction's search_path, and the names have the default prefix. The
// method of [Options] is for others. The transaction of a lease ([Tx]) will do too: it has both
// locks then.
func LockTx(ctx context.Context, tx pgx.Tx, name string) (backend.Token, error) {
	return (&Options{}).LockTx(ctx, tx, name)
}

// TryLockTx is [LockTx] without waiting, as SELECT … FOR UPDATE NOWAIT: ErrLocked if another holds
// the name or waits for it. The transaction goes on after that as if it had not been called.
func TryLockTx(ctx context.Context, tx pgx.Tx, name string) (backend.Token, error) {
	return (&Options{}).TryLockTx(ctx, tx, name)
}

// LockTx is the function [LockTx] for the locks of a driver that is made with these options: their
// Prefix and Schema.
func (o *Options) LockTx(ctx context.Context, tx pgx.Tx, name string) (backend.Token, error) {
	return o.lockTx(ctx, tx, name, true)
}

// TryLockTx is the function [TryLockTx] for the locks of a driver that is made with these options:
// their Prefix and Schema.
func (o *Options) TryLockTx(ctx context.Context, tx pgx.Tx, name string) (backend.Token, error) {
	return o.lockTx(ctx, tx, name, false)
}

// gateTries is how often the gates may change under one request.
const gateTries = 100

func (o *Options) lockTx(
	ctx context.Context, tx pgx.Tx, name string, wait bool,
) (backend.Token, error) {
	prefix, err := o.place()
	if err == nil {
		err = backend.CheckName(name)
	}
	if err != nil {
		return 0, err
	}
	if o.Mode != "" && o.Mode != Row && o.Mode != Advisory {
		return 0, backend.Invalid("postgres.Options of mode %q: only the locks of "+
			"modes %q and %q can be had in a transaction", o.Mode, Row, Advisory)
	}
	q := &inTx{tx: tx, prefix: prefix, name: name, known: noGates}
	q.sql = "SELECT fencelock_lock($1::bytea, $2::int, $3::boolean, $4::bigint)"
	if o.Schema != "" {
		q.sql = qualified(qualifier(o.Schema), q.sql)
	}
	a, err := q.ask(ctx, false)
	for again := 0; !wait && a.word(0) == "missing" && again < triesMost; again++ {
		a, err = q.ask(ctx, false)
	}
	locked := err == nil && a.word(0) != "held"
	if locked && wait {
		a, err = q.ask(ctx, true)
	}
	switch {
	case err == nil && a.word(0) == "held" && a.number(1) > 0:
		return a.number(1), nil
	case err == nil && !wait:
		return 0, backend.ErrLocked
	case err == nil:
		return 0, unexpected(strings.Join(a, " "))
	case ctx.Err() != nil:
		ended := core.Ended(ctx, locked, nil)
		if cause := context.Cause(ctx); !errors.Is(ended, cause) {
			ended = fmt.Errorf("%w: %w", ended, cause)
		}
		return 0, ended
	}
	return 0, notInTx(err)
}

// inTx asks for a lock in a transaction of the caller's own.
type inTx struct {
	tx                pgx.Tx
	sql, prefix, name string
	known             *gates
}

// ask returns the server's answer. Where the gates are not those that it knew, but let it pass, it
// asks again.
func (q *inTx) ask(ctx context.Context, wait bool) (reply, error) {
	for range gateTries {
		answer, err := q.send(ctx, wait, &q.known.version)
		if err != nil || !strings.HasPrefix(answer, "gates ") {
			return strings.Fields(answer), err
		}
		if q.known, err = readGates(answer, q.prefix); err == nil {
			_, err = backend.Admit(q.known.all, &backend.Request{Name: q.name})
		}
		if err != nil {
			_, _ = q.send(ctx, wait, nil) // makes the transaction fail, which has the lock
			return nil, err
		}
	}
	return nil, unexpected("gates")
}

func (q *inTx) send(ctx context.Context, wait bool, seen *string) (answer string, err error) {
	err = q.tx.QueryRow(ctx, q.sql, pgx.QueryExecModeExec,
		[]byte(q.prefix+q.name), len(q.prefix), wait, seen).Scan(&answer)
	return answer, err
}

// notInTx is what an error of fencelock_lock means.
func notInTx(err error) error {
	code := codeOf(err)
	switch {
	case code == "":
		if errors.Is(err, pgx.ErrTxClosed) || backend.Final(err) || !broken(err) {
			return err
		}
		return backend.Unavailable(limited(err))
	case broken(err):
		return backend.Unavailable(err)
	case code == "55P03": // lock_timeout
		return fmt.Errorf("%w: %w", backend.ErrLocked, err)
	}
	means := map[string]string{
		"FL001": "the transaction is not READ COMMITTED: its snapshot is older than the lock",
		"25006": "the transaction only reads: want READ WRITE, on a server that is no replica",
		"25P02": "a statement of the transaction has failed: roll back first",
		"42883": noTables,
		"42P01": noTables,
		"3F000": noTables,
	}[code]
	if means == "" {
		return meaning(err)
	}
	return backend.Invalid("%s (%w)", means, err)
}

// noTables is the advice where the tables are missing.
const noTables = "the driver's tables are missing or of another version, or the role has no rights " +
	"to their schema: call postgres.CreateSchema once, or run schema.sql"
