package peers

import (
	"context"
	"database/sql"
	"hash/fnv"
	"strings"
	"time"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // for pglock
)

// conns is the size of every pool: more than the server's processors, fewer than would slow it down.
const conns = 32

var onPostgres = []Library{
	{"advisory lock", "pgx: pg_advisory_lock and pg_advisory_unlock, prepared, on a connection of a pool of 32", "PostgreSQL manual, 13.3.5", openAdvisory},
	{"for update", "pgx: BEGIN, SELECT … FOR UPDATE of a row that is there, COMMIT, prepared, a pool of 32", "PostgreSQL manual, 13.3.2", openForUpdate},
	{"pglock", "over pgx, which prepares its statements, a pool of 32; leases of 3 s, a heartbeat a second", "README, and UnsafeNew for another driver than lib/pq", openPglock},
}

func dsn(at place) string { return "postgres://postgres@" + at.Addrs[0] + "/postgres?sslmode=disable" }

func pool(ctx context.Context, at place) (*pgxpool.Pool, error) {
	conf, err := pgxpool.ParseConfig(dsn(at))
	if err != nil {
		return nil, err
	}
	conf.MaxConns = conns
	return pgxpool.NewWithConfig(ctx, conf)
}

func openAdvisory(ctx context.Context, at place) (locker, error) {
	p, err := pool(ctx, at)
	if err != nil {
		return locker{}, err
	}
	return locker{
		mutex: func(_ context.Context, name string) (mutex, error) {
			h := fnv.New64a()
			_, _ = h.Write([]byte(at.Prefix + ":" + name)) // never fails
			key := int64(h.Sum64())
			var c *pgxpool.Conn
			return mutex{
				lock: func(ctx context.Context) (err error) {
					if c, err = p.Acquire(ctx); err != nil {
						return err
					}
					if _, err = c.Exec(ctx, "SELECT pg_advisory_lock($1)", key); err != nil {
						c.Release()
					}
					return err
				},
				unlock: func(ctx context.Context) error {
					defer c.Release()
					_, err := c.Exec(ctx, "SELECT pg_advisory_unlock($1)", key)
					return err
				},
			}, nil
		},
		close: p.Close,
	}, nil
}

func openForUpdate(ctx context.Context, at place) (locker, error) {
	p, err := pool(ctx, at)
	if err != nil {
		return locker{}, err
	}
	table := pgx.Identifier{"rows_" + strings.ReplaceAll(at.Prefix, "-", "_")}.Sanitize()
	_, err = p.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (name text PRIMARY KEY)")
	return locker{
		mutex: func(ctx context.Context, name string) (mutex, error) {
			var tx pgx.Tx
			_, err := p.Exec(ctx, "INSERT INTO "+table+" VALUES ($1) ON CONFLICT DO NOTHING", name)
			return mutex{
				lock: func(ctx context.Context) (err error) {
					if tx, err = p.Begin(ctx); err != nil {
						return err
					}
					_, err = tx.Exec(ctx, "SELECT FROM "+table+" WHERE name = $1 FOR UPDATE", name)
					return err
				},
				unlock: func(ctx context.Context) error { return tx.Commit(ctx) },
			}, err
		},
		close: p.Close,
	}, err
}

func openPglock(_ context.Context, at place) (locker, error) {
	db, err := sql.Open("pgx", dsn(at))
	if err != nil {
		return locker{}, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	c, err := pglock.UnsafeNew(db, pglock.WithLeaseDuration(3*time.Second), pglock.WithHeartbeatFrequency(time.Second))
	if err == nil {
		err = c.TryCreateTable()
	}
	return locker{
		mutex: func(_ context.Context, name string) (mutex, error) {
			var held *pglock.Lock
			return mutex{
				lock: func(ctx context.Context) (err error) {
					held, err = c.AcquireContext(ctx, at.Prefix+":"+name)
					return err
				},
				unlock: func(ctx context.Context) error { return c.ReleaseContext(ctx, held) },
			}, nil
		},
		close: func() { _ = db.Close() },
	}, err
}
