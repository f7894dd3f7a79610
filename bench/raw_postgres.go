package bench

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
)

// rawPostgres locks a row that is there by hand: BEGIN, SELECT … FOR UPDATE, COMMIT. It hands over by the row lock too: the
// second client's SELECT waits for it.
type rawPostgres struct {
	p     place
	pool  *pgxpool.Pool
	table string // quoted
}

func openRawPostgres(ctx context.Context, p place) (raw, error) {
	at, keys := *p.u, url.Values{}
	for k, v := range p.keys {
		switch k {
		case "mode", "prefix", "ttl", "schema", "listen_url": // the driver's and the engine's
		default:
			keys[k] = v
		}
	}
	at.Scheme, at.RawQuery = "postgres", keys.Encode()
	conf, err := pgxpool.ParseConfig(at.String())
	if err != nil {
		return nil, backend.Invalid("the URL cannot be read by pgx") // the driver has read it; pgx's words may quote it
	}
	if !keys.Has("pool_max_conns") {
		conf.MaxConns = connections + 2
	}
	conf.ConnConfig.RuntimeParams["application_name"] = "fencelock bench"
	r := &rawPostgres{p: p, table: qualified(p, "fencelock_bench_"+p.id)}
	if r.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), conf); err != nil {
		return nil, backend.Invalid("the pool cannot be made of the URL")
	}
	if _, err := r.pool.Exec(ctx, "CREATE TABLE "+r.table+" (name text PRIMARY KEY)"); err != nil {
		r.pool.Close()
		return nil, backend.Unavailable(err)
	}
	return r, nil
}

// qualified qualifies a table by the schema of the URL.
func qualified(p place, table string) string {
	if s := p.keys.Get("schema"); s != "" {
		return pgx.Identifier{s, table}.Sanitize()
	}
	return pgx.Identifier{table}.Sanitize()
}

func (r *rawPostgres) cycle(name string) (cycle, error) {
	ctx, cancel := context.WithTimeout(context.Background(), rawTTL)
	defer cancel()
	if err := r.insert(ctx, name); err != nil {
		return nil, err
	}
	choose := "SELECT FROM " + r.table + " WHERE name = $1 FOR UPDATE"
	return func(ctx context.Context, held func()) error {
		return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, choose, name)
			if err == nil {
				held()
			}
			return err
		})
	}, nil
}

func (r *rawPostgres) insert(ctx context.Context, name string) error {
	_, err := r.pool.Exec(ctx, "INSERT INTO "+r.table+" VALUES ($1) ON CONFLICT DO NOTHING", name)
	return err
}

func (r *rawPostgres) relay(ctx context.Context, name string) (*relay, error) {
	if err := r.insert(ctx, name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	take := func() (pgx.Tx, error) {
		tx, err := r.pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		if _, err = tx.Exec(ctx, "SELECT FROM "+r.table+" WHERE name = $1 FOR UPDATE", name); err != nil {
			_ = tx.Rollback(ctx) // the first error is the one to report
		}
		return tx, err
	}
	var holder, waiter pgx.Tx
	return &relay{
		hold:  func(context.Context) (err error) { holder, err = take(); return err },
		free:  func(ctx context.Context) error { return holder.Commit(ctx) },
		wait:  func(context.Context) (err error) { waiter, err = take(); return err },
		after: func(ctx context.Context) error { return waiter.Commit(ctx) },
		shut:  cancel,
	}, nil
}

// commands is false: the server's statistics come late.
func (r *rawPostgres) commands(context.Context) (int64, bool) { return 0, false }

func (r *rawPostgres) wipe(ctx context.Context) error {
	_, err := r.pool.Exec(ctx, "DROP TABLE IF EXISTS "+r.table)
	for _, t := range []string{"fencelock_row", "fencelock_lease", "fencelock_queue"} {
		_, gone := r.pool.Exec(ctx, "DELETE FROM "+qualified(r.p, t)+" WHERE substring(name FOR $2) = $1", []byte(r.p.prefix), len(r.p.prefix))
		err = errors.Join(err, gone)
	}
	return err
}

// close closes the pool, but waits no longer than a moment for a connection that does not come back.
func (r *rawPostgres) close() error {
	done := make(chan struct{})
	go func() { defer close(done); r.pool.Close() }()
	select {
	case <-done:
		return nil
	case <-time.After(time.Second):
		return errors.New("a connection of the raw pool is still in use")
	}
}
