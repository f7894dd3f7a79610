package rights

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// TestPostgres: the schema is its owner's, and the role that locks has what the document grants it
// and no more. Each table is needed by one of the modes, or by a guard. (What housekeeping deletes
// now and then is not tried right by right.)
func TestPostgres(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	lines := commands(t, "-- PostgreSQL, as the owner of the schema")
	admin := connect(t, s.URL())
	exec(t, admin, "CREATE ROLE app LOGIN PASSWORD 'p'")
	exec(t, admin,
		"REVOKE ALL ON SCHEMA public FROM PUBLIC; ALTER DEFAULT PRIVILEGES REVOKE EXECUTE "+
			"ON FUNCTIONS FROM PUBLIC")
	exec(t, admin, postgres.Schema)
	for _, line := range lines {
		if !strings.HasPrefix(line, "CREATE ROLE") {
			exec(t, admin, line)
		}
	}
	n := 0
	url := func(mode string) string { // with a keyspace of its own
		n++
		return strings.Replace(s.URL(), "postgres@", "app:p@", 1) +
			fmt.Sprintf("&pool_max_conns=8&prefix=%d:&mode=%s", n, mode)
	}
	for _, mode := range []string{"row", "advisory", "lease"} {
		works(t, url(mode), locking, moving)
	}
	must(t, guard(t, url("row")))
	must(t, share(t, url("lease")))
	for _, line := range lines {
		m := regexp.MustCompile(`^GRANT (.*) ON (.*) TO app;$`).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for object := range strings.SplitSeq(m[2], ", ") {
			t.Run("without "+object, func(t *testing.T) {
				exec(t, admin, fmt.Sprintf("REVOKE %s ON %s FROM app", m[1], object))
				defer exec(t, admin, fmt.Sprintf("GRANT %s ON %s TO app", m[1], object))
				what, err := "guard", guard(t, url("row"))
				for _, mode := range []string{"row", "advisory", "lease"} {
					for _, tasks := range [][]task{locking, moving} {
						if err == nil {
							what, err = run(t, url(mode), tasks, false)
						}
					}
				}
				if err == nil {
					t.Error("everything can be done without it: it is not needed")
					return
				}
				isRefusal(t, what, err)
			})
		}
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = c.Close(t.Context()) })
	return c
}

func exec(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// share reads, and takes permits, as the role.
func share(t *testing.T, url string) error {
	t.Helper()
	l, err := fencelock.Open(t.Context(), url)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	for _, take := range []func(context.Context) (*fencelock.Lease, error){
		l.RWMutex("x").RLock, l.Semaphore("x", 2).Acquire, l.RWMutex("x").RLock,
	} {
		le, err := take(t.Context())
		if err != nil {
			return err
		}
		if err := errors.Join(le.Renew(t.Context()), le.Unlock(t.Context())); err != nil {
			return err
		}
	}
	return nil
}

// guard checks tokens as the role.
func guard(t *testing.T, url string) error {
	t.Helper()
	c := connect(t, regexp.MustCompile("&(pool_max_conns|prefix|mode)=[^&]*").ReplaceAllString(url, ""))
	defer c.Close(t.Context())
	tx, err := c.Begin(t.Context())
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	for token := range int64(2) {
		if err := postgres.CheckToken(t.Context(), tx, "resource", token+1); err != nil {
			return err
		}
	}
	return nil
}
