package peers

import (
	"context"
	"database/sql"
	"hash/fnv"
	"net/url"
	"strconv"
	"time"

	"cirello.io/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // for pglock

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// conns is the size of every pool: more than the server's processors, fewer than would slow it
// down.
const conns = 32

var onPostgres = []Library{
	{
		"advisory lock",
		"pgx: pg_advisory_lock and pg_advisory_unlock, prepared, on a connection of a pool of 32",
		"PostgreSQL manual, 13.3.5", openAdvisory,
	},
	{
		"for update",
		"pgx: BEGIN, SELECT … FOR UPDATE of a row that is there, COMMIT, prepared, a pool of 32",
		"PostgreSQL manual, 13.3.2",
		byHand("postgres", url.Values{"pool_max_conns": {strconv.Itoa(conns)}}, true),
	},
	{
		"raw notify",
		"pgx: INSERT of a row, DELETE and NOTIFY in one batch; who waits hears it and inserts",
		"PostgreSQL manual, LISTEN and NOTIFY", openNotify,
	},
	{
		"pglock",
		"over pgx, which prepares its statements, a pool of 32; " +
			"leases of 3 s, a heartbeat a second",
		"README, and UnsafeNew for another driver than lib/pq", openPglock,
	},
}

func dsn(at place) string {
	return at.url("postgres", url.Values{"sslmode": {"disable"}}).String()
}

func openAdvisory(ctx context.Context, at place) (locker, error) {
	conf, err := pgxpool.ParseConfig(dsn(at))
	if err != nil {
		return locker{}, err
	}
	conf.MaxConns = conns
	p, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return locker{}, err
	}
	return locker{
		mutex: func(_ context.Context, name string) (measure.Mutex, error) {
			h := fnv.New64a()
			_, _ = h.Write([]byte(at.Prefix + ":" + name)) // never fails
			key := int64(h.Sum64())
			var c *pgxpool.Conn
			return measure.Mutex{
				Lock: func(ctx context.Context) (err error) {
					if c, err = p.Acquire(ctx); err != nil {
						return err
					}
					if _, err = c.Exec(ctx, "SELECT pg_advisory_lock($1)", key); err != nil {
						c.Release()
					}
					return err
				},
				Unlock: func(ctx context.Context) error {
					defer c.Release()
					_, err := c.Exec(ctx, "SELECT pg_advisory_unlock($1)", key)
					return err
				},
			}, nil
		},
		close: p.Close,
	}, nil
}

func openPglock(_ context.Context, at place) (locker, error) {
	db, err := sql.Open("pgx", dsn(at))
	if err != nil {
		return locker{}, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	c, err := pglock.UnsafeNew(
		db, pglock.WithLeaseDuration(3*time.Second), pglock.WithHeartbeatFrequency(time.Second),
	)
	if err == nil {
		err = c.TryCreateTable()
	}
	return locker{
		mutex: func(_ context.Context, name string) (measure.Mutex, error) {
			var held *pglock.Lock
			return measure.Mutex{
				Lock: func(ctx context.Context) (err error) {
					held, err = c.AcquireContext(ctx, at.Prefix+":"+name)
					return err
				},
				Unlock: func(ctx context.Context) error { return c.ReleaseContext(ctx, held) },
			}, nil
		},
		close: func() { _ = db.Close() },
	}, err
}

// openNotify has a connection for each mutex, which listens.
func openNotify(ctx context.Context, at place) (locker, error) {
	conns := &made[*pgx.Conn]{
		make: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn(at)) },
		end:  func(c *pgx.Conn) error { return c.Close(context.Background()) },
		each: true,
	}
	table := pgx.Identifier{"told_" + at.Prefix}.Sanitize()
	c, err := conns.get(ctx)
	if err == nil {
		_, err = c.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (name text PRIMARY KEY)")
	}
	return locker{
		mutex: func(ctx context.Context, name string) (measure.Mutex, error) {
			c, err := conns.get(ctx)
			if err != nil {
				return measure.Mutex{}, err
			}
			_, err = c.Exec(ctx, "LISTEN "+table)
			insert := "INSERT INTO " + table + " VALUES ($1) ON CONFLICT DO NOTHING"
			return measure.Mutex{
				Lock: func(ctx context.Context) error {
					for {
						did, err := c.Exec(ctx, insert, name)
						if err != nil || did.RowsAffected() > 0 {
							return err
						}
						if _, err := c.WaitForNotification(ctx); err != nil {
							return err
						}
					}
				},
				Unlock: func(ctx context.Context) error {
					var b pgx.Batch
					b.Queue("DELETE FROM "+table+" WHERE name = $1", name)
					b.Queue("NOTIFY " + table)
					return c.SendBatch(ctx, &b).Close()
				},
			}, err
		},
		close: conns.close,
	}, err
}
