package backends

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/machine"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

func TestPostgresRow(t *testing.T)   { runPostgres(t, postgres.Row) }
func TestPostgresLease(t *testing.T) { runPostgres(t, postgres.Lease) }
func TestPostgresAdvisory(t *testing.T) {
	skipShort(t)
	runPostgres(t, postgres.Advisory)
}

// connecting has a place for each topology of Postgres whose rules run where a connection costs much: there are
// five of them.
var connecting = make(chan struct{}, 2)

// beside lets a topology of Postgres run beside other backends.
func beside(t *testing.T) {
	t.Parallel()
	if machine.Slow() {
		connecting <- struct{}{}
		t.Cleanup(func() { <-connecting })
	}
}

func runPostgres(t *testing.T, mode postgres.Mode) {
	beside(t)
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"max_connections=800"}})
	direct := pgPool(t, s.URL())
	address := func(c conformance.Client) string {
		host := s.Addr()
		if p, ok := c.Link.(*faultproxy.Proxy); ok {
			host = p.Addr()
		}
		most := 64
		if mode == postgres.Lease {
			most = 16 // its locks share connections
		}
		return fmt.Sprintf(
			"postgres://postgres@%s/postgres?sslmode=disable&mode=%s&pool_max_conns=%d&prefix=%s",
			host, mode, most, url.QueryEscape(c.Prefix))
	}
	run(t, conformance.Harness{
		Name: "postgres-" + string(mode),
		Driver: func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
			return backend.Open(ctx, address(c), nil)
		},
		Link: func(context.Context) (conformance.Link, error) { return faultproxy.New(s.Addr()) },
		Store: pgStore{
			mode, direct,
			conformance.DriverStore(func(
				ctx context.Context, prefix string,
			) (backend.Driver, error) {
				return backend.Open(ctx, address(conformance.Client{Prefix: prefix}), nil)
			}),
		},
		Server: rewinding(t, pgServer{s, mode}, s.Server),
		URL:    address,
		Apart:  pgApart(t, s, direct, mode),
		Writes: pgWritesOf(t, direct, mode),
		Busy:   pgBusyOf(direct, mode),
		Guard: func(ctx context.Context, prefix string) (fence.Guard, error) {
			conn, err := direct.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			defer conn.Release()
			return pgGuard{direct, prefix}, postgres.CreateSchema(ctx, conn.Conn(), "")
		},
		Own:    true,
		Shared: func(context.Context) (*conformance.Shared, error) { return pgShared(t, s.URL(), mode), nil },
		Given: func(context.Context) (backend.Driver, func(context.Context) error, error) {
			pool := pgPool(t, s.URL()+"&pool_max_conns=8&statement_timeout=7s&application_name=theirs")
			before := fmt.Sprintf("%+v", facts(pool))
			d, err := postgres.New(pool, &postgres.Options{Mode: mode})
			return d, func(ctx context.Context) error {
				if now := fmt.Sprintf("%+v", facts(pool)); now != before {
					return fmt.Errorf("its settings were %s, are %s", before, now)
				}
				return untouched(ctx, pool)
			}, err
		},
	})
}

// pgApart are the ways to keep two tenants of one server apart.
func pgApart(t *testing.T, s *servers.PostgresServer, direct *pgxpool.Pool, mode postgres.Mode) []conformance.Apart {
	t.Helper()
	for _, stmt := range []string{
		"CREATE DATABASE tenant0", "CREATE DATABASE tenant1", "CREATE SCHEMA tenant0",
		"CREATE SCHEMA tenant1",
	} {
		if _, err := direct.Exec(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
	open := func(database, keys string) func(context.Context, int, string) (backend.Driver, error) {
		return func(ctx context.Context, side int, prefix string) (backend.Driver, error) {
			tenant := strings.NewReplacer("TENANT", fmt.Sprintf("tenant%d", side))
			return backend.Open(ctx, fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&mode=%s&prefix=%s%s",
				s.Addr(), tenant.Replace(database), mode, url.QueryEscape(prefix), tenant.Replace(keys)), nil)
		}
	}
	return []conformance.Apart{
		{What: "two databases of one server", Driver: open("TENANT", "")},
		{What: "two schemas of one database", Driver: open("postgres", "&schema=TENANT")},
		{What: "one database by two search_paths", Driver: open("postgres", "&search_path=TENANT")},
	}
}

func pgPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// pgShared is a pool that a program uses too.
func pgShared(t *testing.T, url string, mode postgres.Mode) *conformance.Shared {
	t.Helper()
	pool := pgPool(t, url+"&pool_max_conns=8")
	return &conformance.Shared{
		Driver: func(prefix string) (backend.Driver, error) {
			return postgres.New(pool, &postgres.Options{Mode: mode, Prefix: prefix})
		},
		UseUp: func(ctx context.Context) (func(), error) {
			var conns []*pgxpool.Conn
			giveBack := func() {
				for _, c := range conns {
					c.Release()
				}
			}
			for now := pool.Stat(); now.AcquiredConns() < now.MaxConns(); now = pool.Stat() {
				c, err := pool.Acquire(ctx)
				if err != nil {
					giveBack()
					return nil, err
				}
				conns = append(conns, c)
			}
			return giveBack, nil
		},
		Close: func() error {
			go pool.Close() // it waits for the leases of mode row
			return nil
		},
	}
}

// facts are the settings of a pool that can be compared.
func facts(pool *pgxpool.Pool) any {
	c := pool.Config()
	return []any{
		c.MaxConns, c.ConnConfig.ConnectTimeout, c.ConnConfig.DefaultQueryExecMode,
		c.ConnConfig.RuntimeParams, c.AfterConnect == nil,
	}
}

// untouched checks every idle connection of the pool: no setting was changed, nothing is listened to or locked.
func untouched(ctx context.Context, pool *pgxpool.Pool) error {
	var errs []error
	conns := pool.AcquireAllIdle(ctx)
	for _, c := range conns {
		rows, err := c.Query(ctx, `SELECT name || '=' || setting FROM pg_settings WHERE source = 'session' UNION ALL
			SELECT 'LISTEN ' || pg_listening_channels() UNION ALL
			SELECT 'lock ' || locktype FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		left, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(left) > 0 {
			errs = append(errs, fmt.Errorf("a connection came back with %q (%w)", left, err))
		}
		c.Release()
	}
	if len(conns) == 0 {
		errs = append(errs, errors.New("no connection came back"))
	}
	return errors.Join(append(errs, pool.Ping(ctx))...)
}

// pgServer adds what the suite asks.
type pgServer struct {
	*servers.PostgresServer
	mode postgres.Mode
}

// KeepsData: what is confirmed is there after a crash, but an open transaction, of which a lease of mode row
// consists, is not.
func (s pgServer) KeepsData() bool { return s.mode == postgres.Lease }

// pgStore looks at the tables and sessions directly.
type pgStore struct {
	mode postgres.Mode
	pool *pgxpool.Pool
	conformance.Store
}

func (s pgStore) Look(ctx context.Context, prefix, name string) (held bool, left time.Duration, err error) {
	if s.mode != postgres.Lease {
		return s.Store.Look(ctx, prefix, name)
	}
	var ms int64
	err = s.pool.QueryRow(ctx, `SELECT count(*) > 0,
		coalesce(1000 * max(extract(epoch FROM expires_at - clock_timestamp())), 0)::bigint
		FROM fencelock_lease WHERE name = $1 AND expires_at > clock_timestamp()`,
		[]byte(prefix+name)).Scan(&held, &ms)
	return held, time.Duration(ms) * time.Millisecond, err
}

func (s pgStore) Take(ctx context.Context, prefix, name string) error {
	if s.mode == postgres.Lease {
		_, err := s.pool.Exec(ctx, "DELETE FROM fencelock_lease WHERE name = $1", []byte(prefix+name))
		return err
	}
	_, err := s.pool.Exec(ctx, `SELECT pg_terminate_backend(l.pid, 2000) FROM pg_locks l
		WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND l.objsubid = 1
		AND l.classid::bigint << 32 | l.objid::bigint = fencelock_door($1)`,
		[]byte(prefix+name))
	return err
}

// Left lists what the tables have about the prefix's locks.
func (s pgStore) Left(ctx context.Context, prefix string) ([]string, error) {
	rows, err := s.pool.Query(ctx,
		`SELECT encode(name, 'escape') FROM (SELECT name FROM fencelock_row UNION ALL SELECT name FROM fencelock_lease
		UNION ALL SELECT name FROM fencelock_hold UNION ALL SELECT name FROM fencelock_queue) n
		WHERE substr(name, 1, length($1::bytea)) = $1::bytea`,
		[]byte(prefix))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// pgGuard is postgres.CheckToken as a fence.Guard: each check is a transaction of its own.
type pgGuard struct {
	pool   *pgxpool.Pool
	prefix string
}

func (g pgGuard) Check(ctx context.Context, resource string, t fence.Token) error {
	return pgx.BeginFunc(ctx, g.pool, func(tx pgx.Tx) error {
		return postgres.CheckToken(ctx, tx, g.prefix+resource, t)
	})
}

// pgWrites are what holders write through postgres.Tx.
type pgWrites struct{ pool *pgxpool.Pool }

func pgWritesOf(t *testing.T, direct *pgxpool.Pool, mode postgres.Mode) conformance.Writes {
	t.Helper()
	if mode == postgres.Lease {
		return nil
	}
	if _, err := direct.Exec(t.Context(), "CREATE TABLE written (key text)"); err != nil {
		t.Fatal(err)
	}
	return pgWrites{direct}
}

func (w pgWrites) Write(ctx context.Context, lease backend.Handler, key string) error {
	tx, ok := postgres.Tx(lease)
	if !ok {
		return errors.New("the lease has no transaction")
	}
	_, err := tx.Exec(ctx, "INSERT INTO written VALUES ($1)", key)
	return err
}

func (w pgWrites) Written(ctx context.Context, key string) (written bool, err error) {
	err = w.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM written WHERE key = $1)", key).Scan(&written)
	return written, err
}

// pgBusy keeps the server busy by a statement of a holder's.
type pgBusy struct{ pool *pgxpool.Pool }

func pgBusyOf(direct *pgxpool.Pool, mode postgres.Mode) conformance.Busy {
	if mode == postgres.Lease {
		return nil
	}
	return pgBusy{direct}
}

func (pgBusy) Begin(ctx context.Context, lease backend.Handler, key string, unread bool) error {
	tx, ok := postgres.Tx(lease)
	if !ok {
		return errors.New("the lease has no transaction")
	}
	if !unread {
		go func() { _, _ = tx.Exec(ctx, "SELECT pg_sleep(60) /* "+key+" */") }()
		return nil
	}
	rows, err := tx.Query(ctx, "SELECT repeat('x', 10000) FROM generate_series(1, 10000) /* "+key+" */")
	if err != nil {
		return err
	}
	rows.Next()
	context.AfterFunc(ctx, rows.Close)
	return rows.Err()
}

func (b pgBusy) Working(ctx context.Context, key string, unread bool) (working bool, err error) {
	err = b.pool.QueryRow(ctx,
		`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()
		AND query LIKE '%/* ' || $1 || ' */' AND wait_event = CASE WHEN $2 THEN 'ClientWrite' ELSE 'PgSleep' END)`,
		key, unread).Scan(&working)
	return working, err
}
