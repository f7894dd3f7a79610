package sqlitekv

import (
	"context"
	"database/sql"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/record"
)

// Traits is what the driver promises; the package comment says what that rests on.
func Traits() backend.Traits {
	return backend.Traits{
		Name: "sqlite", Fencing: backend.Anchored, FIFO: true, Grace: true, MinHold: true,
		DeadWaiter: 5 * time.Second, MinTTL: 200 * time.Millisecond, Resolution: time.Millisecond,
		Revoked: time.Second,
	}
}

// New returns a driver over a database that the program has opened with modernc.org/sqlite, and
// that stays the program's. It makes the table fencelock if there is none. prefix is the keyspace.
func New(ctx context.Context, db *sql.DB, prefix string) (*record.Driver, error) {
	t := &table{db}
	err := patiently(ctx, func() error { return t.ensure(ctx) })
	if unusable(err) {
		err = backend.Invalid("SQLite cannot use this file: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return record.New(t, prefix, Traits())
}

// ensure makes the table if it is not there, and refuses a database that is not one shared file.
func (t *table) ensure(ctx context.Context) error {
	var file string
	err := t.db.QueryRowContext(ctx,
		`SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&file)
	if err != nil {
		return err
	}
	if file == "" {
		return backend.Invalid("a database in memory, which connections do not share: open a file")
	}
	if _, err := t.db.ExecContext(ctx, schema); err != nil {
		return err
	}
	_, err = t.db.ExecContext(ctx, `SELECT key, data, version, at, until FROM fencelock LIMIT 0`)
	if err != nil && !busy(err) {
		return backend.Invalid("the table fencelock is not this driver's: %w", err)
	}
	return err
}

// Times are µs since 1970. until is when the row may be forgotten.
const schema = `
CREATE TABLE IF NOT EXISTS fencelock (
	key     TEXT PRIMARY KEY,
	data    BLOB NOT NULL,
	version INTEGER NOT NULL,
	at      INTEGER NOT NULL,
	until   INTEGER NOT NULL
) STRICT`
