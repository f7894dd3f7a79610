package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// txOf returns the transaction of a lease.
func txOf(t *testing.T, le *fencelock.Lease) pgx.Tx {
	t.Helper()
	tx, ok := postgres.Tx(le)
	if !ok {
		t.Fatal("a lease of mode row has no transaction")
	}
	return tx
}

// notes counts what was committed to a table of the tests.
func notes(t *testing.T, p *pgxpool.Pool, what string) int {
	t.Helper()
	return one[int](t, p, "SELECT count(*) FROM notes WHERE what = $1", what)
}

const note = "INSERT INTO notes VALUES ($1)"

func tx(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p := pool(t, s, "")
	run(t, p, "CREATE TABLE IF NOT EXISTS notes (what text); DELETE FROM notes; "+
		"CREATE TABLE IF NOT EXISTS parent (id int PRIMARY KEY); "+
		"CREATE TABLE IF NOT EXISTS child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
	l := open(t, at(s.Addr(), mode))
	long := fencelock.WithTTL(time.Minute)

	t.Run("commits with Unlock", func(t *testing.T) {
		le := lock(t, l.Mutex("commits"))
		tx := txOf(t, le)
		_, err := tx.Exec(t.Context(), note, "commits")
		must(t, err)
		var n int
		must(t, tx.QueryRow(t.Context(), "SELECT count(*) FROM notes WHERE what = 'commits'").Scan(&n))
		if n != 1 || notes(t, p, "commits") != 0 {
			t.Errorf("before Unlock: the holder sees %d, others %d; want 1 and 0", n, notes(t, p, "commits"))
		}
		unlock(t, le)
		if n := notes(t, p, "commits"); n != 1 {
			t.Errorf("after Unlock: got %d, want 1", n)
		}
		_, err = tx.Exec(t.Context(), note, "commits")
		want(t, "Exec after Unlock", err, fencelock.ErrReleased)
		_, err = tx.Begin(t.Context())
		want(t, "Begin after Unlock", err, fencelock.ErrReleased)
		if tx.Conn() != nil {
			t.Error("after Unlock: the transaction has a connection, which another may have by now")
		}
	})

	t.Run("rolls back with a loss", func(t *testing.T) {
		le := lock(t, l.Mutex("loses", long))
		tx := txOf(t, le)
		_, err := tx.Exec(t.Context(), note, "loses")
		must(t, err)
		run(t, p, "SELECT pg_terminate_backend($1)", holder(t, p, "loses"))
		lost(t, le, 2*time.Second, fencelock.Revoked)
		_, err = tx.Exec(t.Context(), note, "loses")
		want(t, "Exec after the loss", err, fencelock.ErrLost)
		want(t, "Unlock after the loss", le.Unlock(t.Context()), fencelock.ErrLost)
		if n := notes(t, p, "loses"); n != 0 {
			t.Errorf("after the loss: got %d, want nothing", n)
		}
	})

	t.Run("a failed statement", func(t *testing.T) {
		le := lock(t, l.Mutex("fails", long))
		tx := txOf(t, le)
		_, err := tx.Exec(t.Context(), note, "fails")
		must(t, err)
		_, err = tx.Exec(t.Context(), "INSERT INTO nowhere VALUES (1)")
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "42P01" {
			t.Fatalf("got %v, want the server's error", err)
		}
		_, err = tx.Exec(t.Context(), note, "fails") // the transaction goes on
		must(t, err)
		must(t, le.Renew(t.Context()))
		must(t, le.Err())
		_, err = l.Mutex("fails").TryLock(t.Context())
		want(t, "TryLock by another", err, fencelock.ErrLocked)
		err = le.Unlock(t.Context())
		var undone *fencelock.UndoneError
		if !errors.As(err, &undone) || !errors.As(err, &refused) {
			t.Errorf("Unlock: got %v, want an UndoneError with the statement's", err)
		}
		if n := notes(t, p, "fails"); n != 0 {
			t.Errorf("after Unlock: got %d, want nothing", n)
		}
		unlock(t, lock(t, l.Mutex("fails")))
	})

	t.Run("a part that fails and is rolled back", func(t *testing.T) {
		le := lock(t, l.Mutex("part", long))
		tx := txOf(t, le)
		_, err := tx.Exec(t.Context(), note, "part")
		must(t, err)
		err = pgx.BeginFunc(t.Context(), tx, func(part pgx.Tx) error {
			if _, err := part.Exec(t.Context(), note, "part"); err != nil {
				return err
			}
			_, err := part.Exec(t.Context(), "SELECT 1/0")
			return err
		})
		if err == nil {
			t.Error("the part: got nil, want the division's error")
		}
		must(t, pgx.BeginFunc(t.Context(), tx, func(part pgx.Tx) error {
			_, err := part.Exec(t.Context(), note, "part")
			return err
		}))
		unlock(t, le)
		if n := notes(t, p, "part"); n != 2 {
			t.Errorf("got %d notes, want 2: without that of the part that failed", n)
		}
	})

	t.Run("a commit that is refused", func(t *testing.T) {
		le := lock(t, l.Mutex("deferred", long))
		_, err := txOf(t, le).Exec(t.Context(), "INSERT INTO child VALUES (7)")
		must(t, err)
		var undone *fencelock.UndoneError
		if err := le.Unlock(t.Context()); !errors.As(err, &undone) {
			t.Errorf("Unlock: got %v, want an UndoneError", err)
		}
		unlock(t, lock(t, l.Mutex("deferred")))
	})

	t.Run("a statement whose ctx ends", func(t *testing.T) {
		le := lock(t, l.Mutex("cancelled", long))
		tx := txOf(t, le)
		_, err := tx.Exec(within(t, 100*time.Millisecond), "SELECT pg_sleep(30)")
		want(t, "Exec", err, context.DeadlineExceeded)
		must(t, le.Renew(t.Context()))
		var one int
		must(t, tx.QueryRow(t.Context(), "SELECT 1").Scan(&one))
		var undone *fencelock.UndoneError
		if err := le.Unlock(t.Context()); !errors.As(err, &undone) {
			t.Errorf("Unlock: got %v, want an UndoneError", err)
		}
	})

	t.Run("the transaction is the lease's", func(t *testing.T) {
		le := lock(t, l.Mutex("own", long))
		tx := txOf(t, le)
		want(t, "Commit", tx.Commit(t.Context()), fencelock.ErrUnsupported)
		want(t, "Rollback", tx.Rollback(t.Context()), fencelock.ErrUnsupported)
		must(t, le.Err())
		_, err := tx.Exec(t.Context(), "COMMIT")
		want(t, "COMMIT behind the lease's back", err, fencelock.ErrLost)
		lost(t, le, time.Second)
	})

	t.Run("rolled back by hand", func(t *testing.T) {
		le := lock(t, l.Mutex("by hand", long))
		tx := txOf(t, le)
		_, err := tx.Exec(t.Context(), note, "by hand")
		must(t, err)
		must(t, postgres.Rollback(le))
		must(t, postgres.Rollback(le))
		_, err = tx.Exec(t.Context(), note, "by hand")
		want(t, "Exec after Rollback", err, pgx.ErrTxClosed)
		_, err = l.Mutex("by hand").TryLock(t.Context())
		want(t, "TryLock by another after Rollback", err, fencelock.ErrLocked)
		must(t, le.Renew(t.Context()))
		unlock(t, le)
		if n := notes(t, p, "by hand"); n != 0 {
			t.Errorf("after Unlock: got %d notes, want none", n)
		}
		want(t, "Rollback after Unlock", postgres.Rollback(le), fencelock.ErrReleased)
		le = lock(t, l.Mutex("by hand", long))
		run(t, p, "SELECT pg_terminate_backend($1)", holder(t, p, "by hand"))
		lost(t, le, 2*time.Second)
		want(t, "Rollback after a loss", postgres.Rollback(le), fencelock.ErrLost)
		other := lock(t, open(t, at(s.Addr(), postgres.Lease)).Mutex("y"))
		want(t, "Rollback of a lease of mode lease", postgres.Rollback(other), fencelock.ErrUnsupported)
		want(t, "Rollback of nothing", postgres.Rollback(nil), fencelock.ErrUnsupported)
	})

	t.Run("every way to ask", func(t *testing.T) {
		le := lock(t, l.Mutex("ways", long))
		tx := txOf(t, le)
		n, err := tx.CopyFrom(t.Context(), pgx.Identifier{"notes"}, []string{"what"},
			pgx.CopyFromRows([][]any{{"ways"}, {"ways"}}))
		if err != nil || n != 2 {
			t.Fatalf("CopyFrom: got %d, %v", n, err)
		}
		b := &pgx.Batch{}
		b.Queue(note, "ways")
		b.Queue(note, "ways")
		must(t, tx.SendBatch(t.Context(), b).Close())
		rows, err := tx.Query(t.Context(), "SELECT what FROM notes WHERE what = 'ways'")
		must(t, err)
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(got) != 4 {
			t.Errorf("Query: got %v, %v", got, err)
		}
		_, err = tx.Prepare(t.Context(), "of_the_test", "SELECT $1::int")
		must(t, err)
		var seven int
		must(t, tx.QueryRow(t.Context(), "of_the_test", 7).Scan(&seven))
		want(t, "no row", tx.QueryRow(t.Context(), "SELECT 1 WHERE false").Scan(&seven), pgx.ErrNoRows)
		unlock(t, le)
	})

	t.Run("it keeps the session's timeouts", func(t *testing.T) {
		p := pool(t, s, "&statement_timeout=7s&lock_timeout=1s&pool_max_conns=3")
		l := over(t, p, &postgres.Options{Mode: mode})
		first := lock(t, l.Mutex("timeouts", long))
		next := queue(t, l, "timeouts", 1)
		behind := queue(t, open(t, at(s.Addr(), mode)), "timeouts", 2)
		<-time.After(1500 * time.Millisecond) // longer than the lock_timeout: its place is kept
		unlock(t, first)
		le := next.Granted(t, 5*time.Second) // a wait does without them
		var statement, lockTimeout string
		must(t, txOf(t, le).QueryRow(t.Context(), "SELECT current_setting('statement_timeout'), "+
			"current_setting('lock_timeout')").Scan(&statement, &lockTimeout))
		if statement != "7s" || lockTimeout != "1s" {
			t.Errorf("got %s and %s, want 7s and 1s", statement, lockTimeout)
		}
		unlock(t, le)
		unlock(t, behind.Granted(t, 5*time.Second))
	})

	if _, ok := postgres.Tx(lock(t, open(t, at(s.Addr(), postgres.Lease)).Mutex("x"))); ok {
		t.Error("a lease of mode lease has a transaction")
	}
	if _, ok := postgres.Tx(nil); ok {
		t.Error("nil has a transaction")
	}
}

// A statement through the transaction renews the lease, and the renewals of the engine come in
// between.
func TestTxAndRenewalShareTheConnection(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	l := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(2*time.Second))
	le := lock(t, l.Mutex("x"))
	tx := txOf(t, le)
	for end := time.Now().Add(3500 * time.Millisecond); time.Now().Before(end); {
		_, err := tx.Exec(t.Context(), "SELECT pg_sleep(0.05)")
		must(t, err)
	}
	unlock(t, le)

	le = lock(t, l.Mutex("y"))
	_, err := txOf(t, le).Exec(t.Context(), "SELECT pg_sleep(30)")
	if err == nil {
		t.Error("a statement longer than the TTL: got nil, want an error")
	}
	lost(t, le, time.Second, fencelock.Expired)
	unlock(t, lock(t, l.Mutex("y")))
}

func TestLostReplyOfCommit(t *testing.T) {
	t.Parallel()
	inTx(lostReplyOfCommit)(t, servers.Postgres(t, servers.PostgresOptions{}))
}

func lostReplyOfCommit(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p := pool(t, s, "")
	run(t, p, "CREATE TABLE IF NOT EXISTS notes (what text); DELETE FROM notes")
	proxy := proxied(t, s)
	l := open(t, at(proxy.Addr(), mode), fencelock.WithTTL(time.Minute))
	commit := func(request []byte) bool { // and not one that deletes rows
		before, _, found := bytes.Cut(request, []byte("COMMIT"))
		return found && !bytes.Contains(before, []byte("fencelock_tidy"))
	}
	for _, what := range []string{"found out at once", "found out by Unlock called again"} {
		le := lock(t, l.Mutex("x"))
		_, err := txOf(t, le).Exec(t.Context(), note, what)
		must(t, err)
		proxy.LoseReplyTo(1, commit)
		if what == "found out at once" {
			unlock(t, le)
		} else {
			before := proxy.Counts().LostReplies
			proxy.Set(faultproxy.Mode{Refuse: true})
			// No other connection of the pool can find it out.
			run(t, p, "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity "+
				"WHERE application_name = 'fencelock'")
			err := le.Unlock(within(t, time.Second))
			if proxy.Counts().LostReplies == before {
				t.Fatal("no reply was lost")
			}
			want(t, what, err, fencelock.ErrUnavailable)
			proxy.Set(faultproxy.Mode{})
			unlock(t, le)
		}
		if n := notes(t, p, what); n != 1 {
			t.Errorf("%s: got %d notes, want 1", what, n)
		}
		want(t, "Unlock again", le.Unlock(t.Context()), fencelock.ErrReleased)
	}
	// Lost with the COMMIT itself: the connection is cut while it is on its way.
	le := lock(t, l.Mutex("x"))
	_, err := txOf(t, le).Exec(t.Context(), note, "cut")
	must(t, err)
	proxy.Set(faultproxy.Mode{HoldRequests: true})
	done := make(chan error, 1)
	go func() { done <- le.Unlock(context.WithoutCancel(t.Context())) }()
	must(t, proxy.Await(within(t, 5*time.Second), func(c faultproxy.Counts) bool { return c.HeldRequests > 0 }))
	proxy.Cut()
	proxy.Set(faultproxy.Mode{})
	want(t, "Unlock whose COMMIT never arrived", <-done, fencelock.ErrLost)
	if n := notes(t, p, "cut"); n != 0 {
		t.Errorf("got %d notes, want none", n)
	}
	unlock(t, lock(t, l.Mutex("x")))
}
