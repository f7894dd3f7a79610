package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
)

// A try that is refused leaves the row of its name where the holder is a transaction of LockTx, which deletes none.
// Later ones, of other names, sweep it.
func TestRefusedTriesSweep(t *testing.T) {
	t.Parallel()
	pool := poolAt(t, servers.Postgres(t, servers.PostgresOptions{}))
	for _, mode := range []Mode{Row, Advisory} {
		l, d := lockerOver(t, pool, mode)
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
		cycle(t, l, "warm")
		refused("a")
		refused("b") // too soon
		if left("a") != 1 || left("b") != 1 {
			t.Errorf("%s: got %d and %d rows after the tries, want one each", mode, left("a"), left("b"))
		}
		long := time.Now().Add(-2 * tidyEvery)
		d.st.swept.Store(&long)
		refused("c")
		if left("a") != 0 || left("b") != 0 {
			t.Errorf("%s: got %d and %d rows after a sweep, want none", mode, left("a"), left("b"))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func poolAt(t *testing.T, s *servers.PostgresServer) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// lockerOver is a Locker over a pool, and its driver.
func lockerOver(t *testing.T, pool *pgxpool.Pool, mode Mode) (*fencelock.Locker, *Driver) {
	t.Helper()
	d, err := New(pool, &Options{Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	l, err := fencelock.New(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, d
}

// keeping is a Locker of mode row, its driver, and how many rows there are.
func keeping(t *testing.T) (*fencelock.Locker, *row, *pgxpool.Pool, func() int) {
	t.Helper()
	pool := poolAt(t, servers.Postgres(t, servers.PostgresOptions{}))
	l, d := lockerOver(t, pool, Row)
	return l, d.Mover.(*row), pool, func() (n int) {
		t.Helper()
		if err := pool.QueryRow(context.Background(), "SELECT count(*) FROM fencelock_row").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func cycle(t *testing.T, l *fencelock.Locker, name string) {
	t.Helper()
	le, err := l.Mutex(name).Lock(t.Context())
	if err == nil {
		err = le.Unlock(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// releasedBefore makes the next release of a name one that comes soon after another, also on a slow machine.
func releasedBefore(r *row, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent[name] = use{at: time.Now().Add(time.Hour)}
}

// The row of a name that is locked again and again stays, is made again where another process has deleted it, and goes
// with the last of it: so do those of many names, and all with Close. Of a name that was locked once nothing stays.
func TestRowStaysForAMoment(t *testing.T) {
	t.Parallel()
	l, r, pool, rows := keeping(t)
	if cycle(t, l, "once"); rows() != 0 {
		t.Errorf("%d rows are left of a name that was locked once", rows())
	}
	place := func() (ctid string) {
		t.Helper()
		err := pool.QueryRow(t.Context(), "SELECT ctid || ' ' || xmin FROM fencelock_row").Scan(&ctid)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) { // none on a slow machine
			t.Fatal(err)
		}
		return ctid
	}
	for again, end := true, time.Now().Add(30*time.Second); again; { // until the machine is quick enough
		if time.Now().After(end) {
			t.Fatalf("12 cycles take more than %v", keepFor)
		}
		began := time.Now()
		cycle(t, l, "x")
		cycle(t, l, "x")
		first := place()
		for range 10 {
			cycle(t, l, "x")
		}
		if last := place(); time.Since(began) < keepFor {
			if again = false; last != first {
				t.Errorf("the row was %s, is %s", first, last)
			}
		}
	}
	if _, err := pool.Exec(t.Context(), "DELETE FROM fencelock_row"); err != nil {
		t.Fatal(err)
	}
	cycle(t, l, "x")
	testkit.Await(t, 20*time.Second, "no row is left", func() bool { return rows() == 0 })
	// A COMMIT that takes longer than a row stays.
	if _, err := pool.Exec(t.Context(), `CREATE TABLE slow (n int);
		CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.8); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION nap()`); err != nil {
		t.Fatal(err)
	}
	le, err := l.Mutex("slow").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	releasedBefore(r, "slow")
	tx, _ := Tx(le)
	if _, err = tx.Exec(t.Context(), "INSERT INTO slow VALUES (1)"); err == nil {
		err = le.Unlock(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Await(t, 20*time.Second, "no row is left after a slow COMMIT", func() bool { return rows() == 0 })
	for i := range 3 * tidyMost {
		cycle(t, l, fmt.Sprint(i))
		cycle(t, l, fmt.Sprint(i))
	}
	testkit.Await(t, 20*time.Second, "no row of many is left", func() bool { return rows() == 0 })
	cycle(t, l, "last")
	cycle(t, l, "last")
	if err := l.Close(); err != nil || rows() != 0 {
		t.Errorf("after Close (%v) %d rows are left", err, rows())
	}
}

// The Unlock of a name that is locked again and again does not wait for its row to be deleted. Another one does: where
// its ctx ends between its COMMIT and that, it leaves no row once it is repeated.
func TestUnlockCancelledBehindItsCommit(t *testing.T) {
	t.Parallel()
	l, r, pool, rows := keeping(t)
	for _, full := range []bool{false, true} {
		if cycle(t, l, "x"); full {
			r.mu.Lock()
			clear(r.recent)
			r.mu.Unlock()
			for i := range keepMost {
				releasedBefore(r, fmt.Sprint(i))
			}
		}
		le, err := l.Mutex("x").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		closed, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = closed.Rollback(context.Background()) }) // before the pool closes, which waits for it
		locked := make(chan error, 1)
		go func() { // waits for the holder's COMMIT, and then keeps the tidying behind it waiting
			_, err := closed.Exec(t.Context(), "LOCK TABLE fencelock_row IN ACCESS EXCLUSIVE MODE")
			locked <- err
		}()
		testkit.Await(t, 20*time.Second, "the table is waited for", func() (waits bool) {
			const sql = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation='fencelock_row'::regclass AND NOT granted)"
			return pool.QueryRow(t.Context(), sql).Scan(&waits) == nil && waits
		})
		if !full {
			releasedBefore(r, "x")
		}
		most := time.Minute
		if full {
			most = 500 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), most)
		err = le.Unlock(ctx)
		cancel()
		if full != errors.Is(err, context.DeadlineExceeded) || !full && err != nil {
			t.Errorf("Unlock, full %v: got %v", full, err)
		}
		if err := <-locked; err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*keepFor + lookMost) // until a tidying has given up: another is made
		if err := closed.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if full {
			if err := le.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock again: %v", err)
			}
		}
		testkit.Await(t, 20*time.Second, "nothing is left", func() bool { return rows() == 0 })
	}
}
