package postgres

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/backend"
)

// CheckToken is the guard for what lies in this database: it checks the fencing token of a lease,
// of whatever backend, in the caller's transaction, and keeps others from the resource until that
// ends. So the check and all that the transaction reads and writes are one step. Call it first in
// every transaction that touches the resource, those that only read too.
//
// It returns nil for a token that is equal to the greatest that the resource has seen or greater, a
// *backend.StaleError, which matches ErrStale, for a lower one, and an error that matches
// ErrInvalid for a token that is not positive, and where the table of guards is missing (see
// [CreateSchema]). Unless the error is nil, roll back. A transaction of level REPEATABLE READ or
// SERIALIZABLE can also fail with the server's 40001, as with every concurrent update: repeat it.
//
// resource is any text of the program's, of up to 2,600 bytes; the table has a row for each, for
// ever. A token more than an hour ahead of the server's clock, in µs, and of the tokens of the locks in
// the schema of the table is ErrInvalid: its mark would refuse every token to come.
//
// The table is found by the transaction's search_path. Where connections differ in it and more than
// one schema has such a table, a resource would have several guards: name the schema with
// [CheckTokenIn].
func CheckToken(ctx context.Context, tx pgx.Tx, resource string, t backend.Token) error {
	return checkToken(ctx, inPgx(ctx, tx), "", resource, t)
}

// CheckTokenIn is [CheckToken] with the table of a schema, whatever the search_path of the
// transaction is.
func CheckTokenIn(ctx context.Context, tx pgx.Tx, schema, resource string, t backend.Token) error {
	return checkToken(ctx, inPgx(ctx, tx), qualifier(schema), resource, t)
}

// inPgx returns what asks for one row in a transaction.
func inPgx(ctx context.Context, tx pgx.Tx) func(string, ...any) scanner {
	return func(text string, args ...any) scanner {
		return tx.QueryRow(ctx, text, append([]any{pgx.QueryExecModeExec}, args...)...)
	}
}

func checkToken(
	ctx context.Context, ask func(string, ...any) scanner, before, resource string, t backend.Token,
) error {
	if t <= 0 {
		return backend.Invalid("token %d: want a positive one", t)
	}
	// The row is locked in either case. A stale token writes the same number again, which the
	// caller rolls back.
	mark := func(source string) (seen backend.Token, err error) {
		err = ask(qualified(before, `INSERT INTO fencelock_guard AS g SELECT $1::bytea, $2::bigint WHERE $2 <= `+
			source+` + $3::bigint
			ON CONFLICT (resource) DO UPDATE SET token = greatest(g.token, excluded.token) RETURNING token`),
			[]byte(resource), t, int64(backend.FloorAhead)).Scan(&seen)
		return seen, err
	}
	seen, err := mark("date_part('epoch', clock_timestamp()) * 1000000")
	far := errors.Is(err, sql.ErrNoRows)
	if far { // unless a clock was wrong once, or a migration has raised the tokens
		seen, err = mark("fencelock_source()")
	}
	code := codeOf(err)
	switch {
	case far && (errors.Is(err, sql.ErrNoRows) || code == "42501" || code == "42883"): // no rights, no locks
		return backend.Invalid("token %d is more than an hour ahead of the server's clock in µs, and of the locks "+
			"beside the table of guards: no lock of this library has granted it", t)
	case code == "42P01" || code == "3F000":
		return backend.Invalid("the table of guards is missing, or the role has no rights to its schema: call "+
			"postgres.CreateSchema once, or run schema.sql (%w)", err)
	case code == "54000":
		return backend.Invalid("the resource is too long for the index of the table of guards (%w)", err)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return meaning(err)
	case t < seen:
		return &backend.StaleError{Max: seen}
	}
	return nil
}
