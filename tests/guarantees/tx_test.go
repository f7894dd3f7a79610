//go:build linux

package guarantees_test

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/postgres"
)

// createAdded makes the table that holders of a row lock write to in its transaction. No token guards it.
const createAdded = `CREATE TABLE IF NOT EXISTS added (name text PRIMARY KEY, value bigint NOT NULL)`

// addInTx adds one to the row of a lease's name, in the lease's transaction: it is done when Unlock says so.
func addInTx(le *fencelock.Lease, pause time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tx, ok := postgres.Tx(le)
	if !ok {
		return 0, errors.New("the lease has no transaction")
	}
	var n int64
	err := tx.QueryRow(ctx, "SELECT value FROM added WHERE name = $1", le.Name()).Scan(&n)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, err
	}
	time.Sleep(pause)
	_, err = tx.Exec(ctx,
		"INSERT INTO added VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
		le.Name(), n+1)
	return n + 1, err
}

// addedInTx is what is in the row.
func addedInTx(ctx context.Context, url, name string) (int64, error) {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer c.Close(ctx)
	var n int64
	err = c.QueryRow(ctx, "SELECT coalesce((SELECT value FROM added WHERE name = $1), 0)", name).Scan(&n)
	return n, err
}
