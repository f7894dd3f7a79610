package raw

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench/internal/measure"
)

// postgres locks a row that is there by hand: BEGIN, SELECT … FOR UPDATE, COMMIT. A waiter waits in the
// SELECT.
type postgres struct {
	untold
	at    Place
	pool  *pgxpool.Pool
	table string // quoted
}

// conns is the size of the pool where the URL names none.
const conns = 34

func openPostgres(ctx context.Context, p Place) (Store, error) {
	u, keys := *p.URL, p.URL.Query()
	// These keys are the driver's and the engine's.
	for _, k := range []string{"mode", "prefix", "ttl", "schema", "listen_url"} {
		keys.Del(k)
	}
	u.Scheme = "postgres"
	u.RawQuery = strings.ReplaceAll(keys.Encode(), "+", "%20") // pgx 5.12 reads a + as one
	conf, err := pgxpool.ParseConfig(u.String())
	if err != nil { // the driver has read it; pgx's error may quote it
		return nil, backend.Invalid("the URL cannot be read by pgx")
	}
	if !keys.Has("pool_max_conns") {
		conf.MaxConns = conns
	}
	conf.ConnConfig.RuntimeParams["application_name"] = "fencelock bench"
	r := &postgres{at: p, table: p.table("fencelock_bench_" + p.ID)}
	if r.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), conf); err != nil {
		return nil, backend.Invalid("the pool cannot be made of the URL")
	}
	_, err = r.pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+r.table+" (name text PRIMARY KEY)")
	if err != nil {
		r.pool.Close()
		return nil, backend.Unavailable(err)
	}
	return r, nil
}

// table qualifies a table by the schema of the URL.
func (p Place) table(name string) string {
	if s := p.URL.Query().Get("schema"); s != "" {
		return pgx.Identifier{s, name}.Sanitize()
	}
	return pgx.Identifier{name}.Sanitize()
}

func (r *postgres) Mutex(ctx context.Context, name string, _ bool) (measure.Mutex, error) {
	_, err := r.pool.Exec(ctx, "INSERT INTO "+r.table+" VALUES ($1) ON CONFLICT DO NOTHING", name)
	choose := "SELECT FROM " + r.table + " WHERE name = $1 FOR UPDATE"
	var tx pgx.Tx
	return measure.Mutex{
		Lock: func(ctx context.Context) (err error) {
			if tx, err = r.pool.Begin(ctx); err != nil {
				return err
			}
			if _, err = tx.Exec(ctx, choose, name); err != nil {
				_ = tx.Rollback(ctx) // the first error is the one to report
			}
			return err
		},
		Unlock: func(ctx context.Context) error { return tx.Commit(ctx) },
	}, err
}

func (r *postgres) Wipe(ctx context.Context) error {
	_, err := r.pool.Exec(ctx, "DROP TABLE IF EXISTS "+r.table)
	for _, t := range []string{"fencelock_row", "fencelock_lease", "fencelock_queue"} {
		of := " WHERE substring(name FOR $2) = $1"
		prefix := []byte(r.at.Prefix)
		_, gone := r.pool.Exec(ctx, "DELETE FROM "+r.at.table(t)+of, prefix, len(prefix))
		err = errors.Join(err, gone)
	}
	return err
}

// Close closes the pool. It waits a second at the most for a connection that does not come back.
func (r *postgres) Close() error {
	done := make(chan struct{})
	go func() { defer close(done); r.pool.Close() }()
	select {
	case <-done:
		return nil
	case <-time.After(time.Second):
		return errors.New("a connection of the raw pool is still in use")
	}
}
