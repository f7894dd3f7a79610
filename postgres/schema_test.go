package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/gatetest"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

func TestSchema(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	cycle := func(t *testing.T, url string) {
		t.Helper()
		for _, keys := range []string{"&mode=row", "&mode=lease"} {
			l := open(t, url+keys)
			unlock(t, lock(t, l.Mutex("x")))
			must(t, l.Close())
		}
	}

	t.Run("by many at once", func(t *testing.T) {
		run(t, p, "CREATE DATABASE many")
		url := strings.Replace(s.URL(), "/postgres?", "/many?", 1)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				l, err := fencelock.Open(t.Context(), url+"&mode="+string(modes[i%len(modes)]))
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = l.Close() }()
				le, err := l.Mutex(fmt.Sprint(i)).Lock(t.Context())
				if err == nil {
					err = le.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})

	t.Run("in a schema of its own", func(t *testing.T) {
		_, err := fencelock.Open(t.Context(), s.URL()+"&schema=Locks%22here")
		want(t, "a schema that is not there", err, fencelock.ErrInvalid)
		run(t, p, `CREATE SCHEMA "Locks""here"`)
		cycle(t, s.URL()+"&schema=Locks%22here")
		if n := one[int](t, p,
			`SELECT count(*) FROM pg_tables WHERE schemaname = 'Locks"here' AND tablename LIKE 'fencelock%'`); n < 7 {
			t.Errorf("%d tables are in the schema", n)
		}
		_, err = fencelock.Open(t.Context(), s.URL()+"&search_path=nowhere")
		want(t, "no schema in the search_path", err, fencelock.ErrInvalid)
	})

	t.Run("in one whose name begins as the objects' do", func(t *testing.T) {
		for _, name := range []string{"fencelock_x", "my fencelock_x"} {
			run(t, p, "CREATE SCHEMA "+pgx.Identifier{name}.Sanitize())
			cycle(t, s.URL()+"&schema="+url.PathEscape(name))
			cycle(t, s.URL()+"&schema="+url.PathEscape(name)) // what is there is found
		}
	})

	t.Run("by hand", func(t *testing.T) {
		run(t, p, "CREATE DATABASE hand")
		owner := pool(t, s, "&database=hand")
		run(t, owner, "CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM public, app; CREATE SCHEMA locks")
		run(t, owner, "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
		url := strings.NewReplacer("/postgres?", "/hand?", "postgres@", "app@").Replace(s.URL()) + "&schema=locks"
		for _, mode := range modes {
			_, err := fencelock.Open(t.Context(), url+"&mode="+string(mode))
			want(t, "a role that may not create tables", err, fencelock.ErrInvalid)
			if !strings.Contains(fmt.Sprint(err), "schema.sql") {
				t.Errorf("got %v, want one that names schema.sql", err)
			}
		}
		run(t, owner, "SET search_path = locks;"+postgres.Schema+"RESET search_path")
		run(t, owner, "SET search_path = locks;"+postgres.Schema+"RESET search_path") // again: what is there is kept
		_, err := fencelock.Open(t.Context(), url)
		want(t, "without the GRANTs", err, fencelock.ErrInvalid)
		var grants []string // those that the file shows
		for line := range strings.Lines(postgres.Schema) {
			if rest, ok := strings.CutPrefix(line, "--     "); ok && !strings.HasPrefix(rest, "psql") {
				grants = append(grants, strings.TrimPrefix(rest, "--"))
			}
		}
		run(t, owner, strings.Join(grants, ""))
		cycle(t, url)
		run(t, owner, "ALTER ROLE app SET search_path = locks")
		cycle(t, strings.Replace(url, "&schema=locks", "", 1))
		run(t, owner, "ALTER ROLE app SET search_path = public, locks")
		cycle(t, strings.Replace(url, "&schema=locks", "", 1)) // where they are, not where they might be made
		for _, mode := range modes {
			t.Run(string(mode), func(t *testing.T) {
				if testing.Short() {
					t.Skip("gates with the rights that the file shows")
				}
				gatetest.Run(t, func(t *testing.T) backend.Driver {
					return client(t, url+"&pool_max_conns=8&mode="+string(mode))
				})
			})
		}
		run(t, owner, "DROP TABLE locks.fencelock_lease CASCADE")
		_, err = fencelock.Open(t.Context(), url+"&mode=lease")
		want(t, "a table is gone, and may not be made again", err, fencelock.ErrInvalid)
	})

	t.Run("is made again when it is lost", func(t *testing.T) {
		run(t, p, "CREATE DATABASE fresh")
		url := strings.Replace(s.URL(), "/postgres?", "/fresh?", 1)
		fresh := pool(t, s, "&database=fresh")
		for _, mode := range modes {
			l := open(t, url+"&mode="+string(mode))
			unlock(t, lock(t, l.Mutex("x")))
			run(t, fresh, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
			unlock(t, lock(t, l.Mutex("x")))
			run(t, fresh, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
			info, err := l.Inspect(t.Context(), "x")
			if err != nil || info.Held {
				t.Errorf("Inspect: got %+v, %v", info, err)
			}
		}
	})

	t.Run("takes longer than a call may", func(t *testing.T) {
		run(t, p, "CREATE DATABASE slow")
		url := strings.Replace(s.URL(), "/postgres?", "/slow?", 1)
		slow := pool(t, s, "&database=slow")
		l, brief := open(t, url), open(t, url)
		run(t, slow, "CREATE SCHEMA aside")
		lose := func(each float64) { // and how long each table takes, in seconds
			run(t, slow, "DROP EVENT TRIGGER IF EXISTS slow; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
			run(t, slow, fmt.Sprintf(`CREATE OR REPLACE FUNCTION aside.slow() RETURNS event_trigger LANGUAGE plpgsql AS
				'BEGIN PERFORM pg_sleep(CASE tg_tag WHEN ''CREATE TABLE'' THEN %g ELSE 0 END); END'`, each))
			run(t, slow, "CREATE EVENT TRIGGER slow ON ddl_command_end EXECUTE FUNCTION aside.slow()")
		}
		lose(0.4)
		unlock(t, lock(t, l.Mutex("x")))
		lose(3)
		_, err := brief.Mutex("x").Lock(within(t, 300*time.Millisecond))
		want(t, "a Lock that ends before they are made", err, context.DeadlineExceeded)
		began := time.Now()
		_ = brief.Close() // it could not tidy up
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("Close took %v: it waited for them", took)
		}
	})

	t.Run("another isolation level is the default", func(t *testing.T) {
		run(t, p, "CREATE ROLE strict LOGIN SUPERUSER; ALTER ROLE strict SET "+
			"default_transaction_isolation = 'serializable'; ALTER ROLE strict SET default_transaction_read_only = off")
		url := strings.Replace(s.URL(), "postgres@", "strict@", 1)
		cycle(t, url)
		l := open(t, url+"&mode=lease")
		le := lock(t, l.Mutex("y"))
		wait := queue(t, open(t, url+"&mode=lease"), "y", 1)
		must(t, le.Renew(t.Context()))
		unlock(t, le)
		next := wait.Granted(t, 3*time.Second)
		if next.Token() <= le.Token() {
			t.Errorf("token %d after %d", next.Token(), le.Token())
		}
		unlock(t, next)
	})

	t.Run("somebody else's tables", func(t *testing.T) {
		run(t, p, "CREATE SCHEMA theirs; CREATE TABLE theirs.fencelock_lease (name text)")
		_, err := fencelock.Open(t.Context(), s.URL()+"&mode=lease&schema=theirs")
		if err == nil {
			l := open(t, s.URL()+"&mode=lease&schema=theirs")
			_, err = l.Mutex("x").TryLock(t.Context())
		}
		if !errors.Is(err, fencelock.ErrInvalid) && !errors.Is(err, fencelock.ErrUnavailable) {
			t.Errorf("got %v, want an error", err)
		}
	})
}

// A client that falls silent while it makes the tables is in the way of others for some seconds only, and of none
// that find them there.
func TestSilentWhileTheTablesAreMade(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p, proxy := pool(t, s, ""), proxied(t, s)
	tx, err := p.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(7306, -1)")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if d, err := backend.Open(ctx, at(proxy.Addr(), postgres.Lease), nil); err == nil {
			_ = d.Close()
		}
	}()
	t.Cleanup(func() { proxy.Set(faultproxy.Mode{}); proxy.Cut(); cancel(); <-ended })
	await(t, 10*time.Second, "the client waits for its turn", func() bool { return advisory(t, p, 7306) == 1 })
	proxy.Set(faultproxy.BlackHole)
	must(t, tx.Rollback(t.Context()))
	await(t, 25*time.Second, "another makes the tables", func() bool {
		l, err := fencelock.Open(t.Context(), at(s.Addr(), postgres.Lease))
		return err == nil && l.Close() == nil
	})

	tx, err = p.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(7306, -1)")
	must(t, err)
	unlock(t, lock(t, open(t, at(s.Addr(), postgres.Lease)).Mutex("x")))
	must(t, tx.Rollback(t.Context()))
}

// advisory is how many sessions wait for an advisory lock of a class.
func advisory(t *testing.T, p *pgxpool.Pool, class int) int {
	t.Helper()
	return one[int](t, p, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = $1",
		class)
}
