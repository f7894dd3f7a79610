package peers

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"cirello.io/pglock"
	_ "github.com/jackc/pgx/v5/stdlib" // for pglock
)

var onPostgres = []library{{
	name: "pglock", module: "cirello.io/pglock", store: "postgres",
	settings: "over pgx, for lib/pq hangs on a dead network; a context of its own for the heartbeats; " +
		"leases of 3 s with a heartbeat a second, as in its README, where they are to end",
	keeps: true, token: true, lost: true, short: 3 * time.Second, open: openPglock,
	taken: func(err error) bool { return errors.Is(err, pglock.ErrNotAcquired) },
	breakIt: func(ctx context.Context, addrs []string, name string) error {
		db, err := sql.Open("pgx", dsn(addrs))
		if err != nil {
			return err
		}
		defer db.Close()
		did, err := db.ExecContext(ctx, "DELETE FROM locks WHERE name = $1", name)
		if err != nil {
			return err
		}
		if n, err := did.RowsAffected(); err != nil || n != 1 {
			return errors.New("there is no row of the lock")
		}
		return nil
	},
}}

func dsn(addrs []string) string {
	return "postgres://postgres@" + addrs[0] + "/postgres?sslmode=disable"
}

func openPglock(ctx context.Context, addrs []string, ttl time.Duration) (client, error) {
	db, err := sql.Open("pgx", dsn(addrs))
	if err != nil {
		return client{}, err
	}
	c, err := pglock.UnsafeNew(
		db, pglock.WithLeaseDuration(ttl), pglock.WithHeartbeatFrequency(ttl/3),
	)
	if err == nil {
		_, err = db.ExecContext(ctx, "SELECT name FROM locks LIMIT 1") // also warms the connection
	}
	if err != nil {
		return client{}, errors.Join(err, db.Close())
	}
	alive, end := context.WithCancel(context.Background())
	return client{
		mutex: func(name string) mutex {
			with := func(o ...pglock.LockOption) func(ctx context.Context) (hold, error) {
				return func(ctx context.Context) (hold, error) {
					l, err := c.AcquireContext(ctx, name, append(o, pglock.WithCustomHeartbeatContext(alive))...)
					if err != nil {
						return hold{}, err
					}
					return hold{
						unlock: func(ctx context.Context) error { return c.ReleaseContext(ctx, l) },
						lost:   released(alive, l), token: l.RecordVersionNumber,
					}, nil
				}
			}
			return mutex{lock: with(), try: with(pglock.FailIfLocked())}
		},
		close: func() { end(); _ = db.Close() },
	}, nil
}

// released is closed when the lock says that it is released. Client.Do ends its ctx at that moment.
func released(alive context.Context, l *pglock.Lock) <-chan struct{} {
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for tick := time.NewTicker(10 * time.Millisecond); alive.Err() == nil && !l.IsReleased(); {
			<-tick.C
		}
	}()
	return lost
}

// pglockTable makes the table as the library does.
func pglockTable(tb testing.TB, addr string) {
	tb.Helper()
	db, err := sql.Open("pgx", dsn([]string{addr}))
	if err != nil {
		tb.Fatal(err)
	}
	defer db.Close()
	c, err := pglock.UnsafeNew(db)
	if err == nil {
		err = c.TryCreateTable()
	}
	if err != nil {
		tb.Fatal(err)
	}
}
