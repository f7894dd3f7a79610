package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// A try that is refused leaves the row of its name where the holder is a transaction of LockTx, which deletes none.
// Later ones, of other names, sweep it.
func TestRefusedTriesSweep(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	pool, err := pgxpool.New(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, mode := range []Mode{Row, Advisory} {
		d, err := New(pool, &Options{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		l, err := fencelock.New(d)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(name string) {
			t.Helper()
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(t.Context()) }()
			if _, err := LockTx(t.Context(), tx, name); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Mutex(name).TryLock(t.Context()); !errors.Is(err, fencelock.ErrLocked) {
				t.Fatalf("TryLock of %q: got %v, want ErrLocked", name, err)
			}
		}
		left := func(name string) (n int) {
			t.Helper()
			const count = "SELECT count(*) FROM fencelock_row WHERE name = $1"
			if err := pool.QueryRow(t.Context(), count, d.st.key(name)).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if le, err := l.Mutex("warm").Lock(t.Context()); err != nil {
			t.Fatal(err)
		} else if err := le.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		refused("a")
		refused("b") // too soon
		if left("a") != 1 || left("b") != 1 {
			t.Errorf("%s: got %d and %d rows after the tries, want one each", mode, left("a"), left("b"))
		}
		r := d.Mover.(*row)
		r.mu.Lock()
		r.tidied = time.Now().Add(-2 * tidyEvery)
		r.mu.Unlock()
		refused("c")
		if left("a") != 0 || left("b") != 0 {
			t.Errorf("%s: got %d and %d rows after a sweep, want none", mode, left("a"), left("b"))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
