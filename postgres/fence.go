package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/backend"
)

// CheckToken is the guard for what lies in this database: it checks the fencing token of a lease, of whatever backend, in
// the caller's transaction, and keeps others from the resource until that ends. So the check and all that the
// transaction reads and writes are one step. Call it first in every transaction that touches the resource, those that only
// read too.
//
// It returns nil for a token that is equal to the greatest that the resource has seen or greater, a
// *backend.StaleError, which matches ErrStale, for a lower one, and an error that matches ErrInvalid for a
// token that is not positive, and where the table of guards is missing (see [CreateSchema]). Unless the error
// is nil, roll back. A transaction of level REPEATABLE READ or SERIALIZABLE can also fail with the server's 40001, as
// with every concurrent update: repeat it.
//
// resource is any text of the program's; the table has a row for each, for ever. The table is
// found by the transaction's search_path.
func CheckToken(ctx context.Context, tx pgx.Tx, resource string, t backend.Token) error {
	if t <= 0 {
		return backend.Invalid("token %d: want a positive one", t)
	}
	var seen backend.Token
	// The row is locked in either case. A stale token writes the same number again, which the caller rolls back.
	err := tx.QueryRow(ctx, `INSERT INTO fencelock_guard AS g VALUES ($1, $2)
		ON CONFLICT (resource) DO UPDATE SET token = greatest(g.token, excluded.token) RETURNING token`,
		pgx.QueryExecModeExec, []byte(resource), t).Scan(&seen)
	var answer *pgconn.PgError
	switch {
	case errors.As(err, &answer) && answer.Code == "42P01":
		return &refused{"the table of guards is missing: call postgres.CreateSchema once, or run schema.sql", err}
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return meaning(err)
	case t < seen:
		return &backend.StaleError{Max: seen}
	}
	return nil
}
