package backends

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// Over lib/pq waiters poll; over pgx they listen, by connections that the driver makes. Without
// binary_parameters lib/pq describes each statement before it sends it, which rule E3 takes for a
// request that does not arrive while replies are held.
func TestPostgresLeasePQ(t *testing.T)     { runSQL(t, "postgres", "&binary_parameters=yes", false) }
func TestPostgresLeaseStdlib(t *testing.T) { runSQL(t, "pgx", "", true) }

// sqlDriver is a driver over a sql.DB that nobody else has.
type sqlDriver struct {
	*postgres.Driver
	db *sql.DB
}

func (d sqlDriver) Close() error { return errors.Join(d.Driver.Close(), d.db.Close()) }

func runSQL(t *testing.T, under, keys string, listens bool) {
	t.Helper()
	skipShort(t)
	beside(t)
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"max_connections=800"}})
	direct := pgPool(t, s.URL())
	dsn := func(c conformance.Client) string {
		host := s.Addr()
		if p, ok := c.Link.(*faultproxy.Proxy); ok {
			host = p.Addr()
		}
		return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&connect_timeout=2", host)
	}
	open := func(c conformance.Client, most int) *sql.DB {
		db, err := sql.Open(under, dsn(c)+keys)
		if err != nil {
			panic(err) // the text is ours
		}
		db.SetMaxOpenConns(most)
		db.SetMaxIdleConns(most)
		return db
	}
	over := func(db *sql.DB, c conformance.Client) (*postgres.Driver, error) {
		opts := &postgres.Options{Prefix: c.Prefix}
		if listens {
			config, err := pgx.ParseConfig(dsn(c))
			if err != nil {
				return nil, err
			}
			opts.Listen = config
		}
		return postgres.NewSQL(db, opts)
	}
	client := func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
		db := open(c, 64)
		d, err := over(db, c)
		if err == nil {
			_, err = d.Source(ctx) // connects, as Open of a URL does
		}
		return sqlDriver{d, db}, err
	}
	run(t, conformance.Harness{
		Name:   "postgres-lease-sql-" + under,
		Driver: client,
		Link:   func(context.Context) (conformance.Link, error) { return faultproxy.New(s.Addr()) },
		Store: pgStore{
			postgres.Lease, direct,
			conformance.DriverStore(func(ctx context.Context, prefix string) (backend.Driver, error) {
				return client(ctx, conformance.Client{Prefix: prefix})
			}),
		},
		Server: pgServer{s, postgres.Lease},
		// A second process is a client by pgx: the locks are the same.
		URL: func(c conformance.Client) string {
			return dsn(c) + "&mode=lease&prefix=" + url.QueryEscape(c.Prefix)
		},
		Guard: func(ctx context.Context, prefix string) (fence.Guard, error) {
			db := open(conformance.Client{}, 16)
			t.Cleanup(func() { _ = db.Close() })
			return sqlGuard{db, prefix}, postgres.CreateSchemaSQL(ctx, db, "")
		},
		Own:   listens,
		Polls: !listens,
		Shared: func(context.Context) (*conformance.Shared, error) {
			db := open(conformance.Client{}, 8)
			return &conformance.Shared{
				Driver: func(prefix string) (backend.Driver, error) {
					return over(db, conformance.Client{Prefix: prefix})
				},
				UseUp: func(ctx context.Context) (func(), error) { return useUp(ctx, db) },
				Close: db.Close,
			}, nil
		},
		Given: func(context.Context) (backend.Driver, func(context.Context) error, error) {
			db := open(conformance.Client{}, 8)
			d, err := over(db, conformance.Client{})
			return d, func(ctx context.Context) error {
				return errors.Join(unset(ctx, db), db.Close())
			}, err
		},
	})
}

// useUp takes all connections of a db.
func useUp(ctx context.Context, db *sql.DB) (giveBack func(), err error) {
	var conns []*sql.Conn
	giveBack = func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	for range db.Stats().MaxOpenConnections {
		c, err := db.Conn(ctx)
		if err != nil {
			giveBack()
			return nil, err
		}
		conns = append(conns, c)
	}
	return giveBack, nil
}

// unset checks that the connections of a db came back with nothing set, listened to or locked.
func unset(ctx context.Context, db *sql.DB) error {
	if now := db.Stats(); now.InUse > 0 || now.MaxOpenConnections != 8 || now.Idle == 0 {
		return fmt.Errorf("the db was changed: %+v", now)
	}
	var left int
	err := db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM pg_settings WHERE source = 'session')
		+ (SELECT count(*) FROM pg_listening_channels())
		+ (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')`).Scan(&left)
	if err == nil && left > 0 {
		err = fmt.Errorf("a connection came back with %d settings, channels or locks", left)
	}
	return err
}

// sqlGuard is postgres.CheckTokenSQL as a fence.Guard: each check is a transaction of its own.
type sqlGuard struct {
	db     *sql.DB
	prefix string
}

func (g sqlGuard) Check(ctx context.Context, resource string, t fence.Token) error {
	tx, err := g.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := postgres.CheckTokenSQL(ctx, tx, "", g.prefix+resource, t); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
