package backends

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

func TestPostgresRow(t *testing.T)   { runPostgres(t, postgres.Row) }
func TestPostgresLease(t *testing.T) { runPostgres(t, postgres.Lease) }

func runPostgres(t *testing.T, mode postgres.Mode) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"max_connections=800"}})
	direct := pgPool(t, s.URL())
	address := func(c conformance.Client) string {
		host := s.Addr()
		if p, ok := c.Link.(*faultproxy.Proxy); ok {
			host = p.Addr()
		}
		return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&mode=%s&pool_max_conns=64&prefix=%s", host, mode, url.QueryEscape(c.Prefix))
	}
	conformance.Run(t, conformance.Harness{
		Name: "postgres-" + string(mode),
		Driver: func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
			return backend.Open(ctx, address(c), nil)
		},
		Link: func(context.Context) (conformance.Link, error) { return faultproxy.New(s.Addr()) },
		Store: pgStore{mode, direct, conformance.DriverStore(func(ctx context.Context, prefix string) (backend.Driver, error) {
			return backend.Open(ctx, address(conformance.Client{Prefix: prefix}), nil)
		})},
		Server: pgServer{s, mode},
		URL:    address,
		Guard: func(ctx context.Context, prefix string) (fence.Guard, error) {
			conn, err := direct.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			defer conn.Release()
			return pgGuard{direct, prefix}, postgres.CreateSchema(ctx, conn.Conn(), "")
		},
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

func pgPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// facts are the settings of a pool that can be compared.
func facts(pool *pgxpool.Pool) any {
	c := pool.Config()
	return []any{c.MaxConns, c.ConnConfig.ConnectTimeout, c.ConnConfig.DefaultQueryExecMode, c.ConnConfig.RuntimeParams, c.AfterConnect == nil}
}

// untouched checks every idle connection of the pool: no setting was changed, nothing is listened to or locked.
func untouched(ctx context.Context, pool *pgxpool.Pool) error {
	var errs []error
	conns := pool.AcquireAllIdle(ctx)
	for _, c := range conns {
		rows, err := c.Query(ctx, `SELECT name || '=' || setting FROM pg_settings WHERE source = 'session' UNION ALL
			SELECT 'LISTEN ' || pg_listening_channels() UNION ALL SELECT 'lock ' || locktype FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`)
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

func (s pgStore) Take(ctx context.Context, prefix, name string) error {
	if s.mode == postgres.Lease {
		_, err := s.pool.Exec(ctx, "DELETE FROM fencelock_lease WHERE name = $1", []byte(prefix+name))
		return err
	}
	_, err := s.pool.Exec(ctx, `SELECT pg_terminate_backend(l.pid, 2000) FROM fencelock_row r JOIN pg_locks l
		ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = r.xmax WHERE r.name = $1`, []byte(prefix+name))
	return err
}

// Left lists what the tables have about the prefix's locks.
func (s pgStore) Left(ctx context.Context, prefix string) ([]string, error) {
	rows, err := s.pool.Query(ctx, `SELECT encode(name, 'escape') FROM (SELECT name FROM fencelock_row UNION ALL SELECT name FROM fencelock_lease
		UNION ALL SELECT name FROM fencelock_queue) n WHERE substr(name, 1, length($1::bytea)) = $1::bytea`, []byte(prefix))
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
