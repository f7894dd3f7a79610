package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// A lease of mode advisory has neither a transaction id nor a snapshot until its holder writes, so
// that vacuum removes what others have deleted meanwhile; one of mode row has an id.
func heldIdle(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p := pool(t, s, "")
	run(t, p, "DROP TABLE IF EXISTS dead; CREATE TABLE dead AS SELECT generate_series(1, 1000) AS n")
	l := open(t, at(s.Addr(), mode), fencelock.WithTTL(time.Minute))
	for what, take := range map[string]func() *fencelock.Lease{
		"free": func() *fencelock.Lease { return lock(t, l.Mutex("idle")) },
		"waited for": func() *fencelock.Lease {
			first := lock(t, l.Mutex("idle"))
			next := queue(t, open(t, at(s.Addr(), mode)), "idle", 1)
			unlock(t, first)
			return next.Granted(t, 5*time.Second)
		},
	} {
		le := take()
		var n int
		must(t, txOf(t, le).QueryRow(t.Context(), "SELECT count(*) FROM pg_class").Scan(&n))
		must(t, le.Renew(t.Context())) // ends the portal of what was read, which has a snapshot
		holds := func() bool {
			return one[bool](t, p, "SELECT coalesce(backend_xid, backend_xmin) IS NOT NULL "+
				"FROM pg_stat_activity WHERE pid = $1", holder(t, p, "idle"))
		}
		if got := holds(); got != (mode == postgres.Row) {
			t.Errorf("%s: a held lease has a transaction id or a snapshot: got %v", what, got)
		}
		run(t, p, "DELETE FROM dead; INSERT INTO dead VALUES (1); DELETE FROM dead")
		if mode == postgres.Row {
			run(t, p, "VACUUM dead")
			if one[int](t, p, "SELECT pg_relation_size('dead')") == 0 {
				t.Errorf("%s: vacuum has removed what died after the grant", what)
			}
		} else {
			await(t, 10*time.Second, what+": vacuum removes the dead rows", func() bool { // an autoanalyze may be about
				run(t, p, "VACUUM dead")
				return one[int](t, p, "SELECT pg_relation_size('dead')") == 0
			})
		}
		_, err := txOf(t, le).Exec(t.Context(), "INSERT INTO dead VALUES (2)")
		must(t, err)
		if !holds() {
			t.Errorf("%s: a holder that has written has no transaction id", what)
		}
		unlock(t, le)
		if one[int](t, p, "SELECT count(*) FROM dead") != 1 {
			t.Errorf("%s: what the holder wrote is not there", what)
		}
	}
}

// Mode advisory draws its token by another connection, when it has the lock. Whatever happens
// meanwhile leaves nothing.
func tokenIsDrawn(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Advisory))
	unlock(t, lock(t, l.Mutex("warm")))
	for what, do := range map[string]func(cancel func()){
		"the holder's session ends": func(func()) {
			run(t, p, "SELECT pg_terminate_backend($1, 2000)", holder(t, p, "drawn"))
		},
		"the session that draws ends": func(func()) {
			run(t, p, "SELECT pg_terminate_backend($1, 2000)", one[int32](t, p, drawer))
		},
		"the statement that draws is cancelled": func(func()) {
			run(t, p, "SELECT pg_cancel_backend($1)", one[int32](t, p, drawer))
		},
		"the caller gives up": func(cancel func()) { cancel() },
	} {
		t.Run(what, func(t *testing.T) {
			resume := stopped(t, p)
			defer resume()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			done := make(chan *fencelock.Lease, 1)
			go func() {
				le, _ := l.Mutex("drawn").Lock(ctx)
				done <- le
			}()
			awaitDrawer(t, p)
			do(cancel)
			resume()
			if le := <-done; le != nil { // it asked again
				if info, err := l.Inspect(t.Context(), "drawn"); err != nil || info.Token != le.Token() {
					t.Errorf("got %+v, %v, want token %d", info, err, le.Token())
				}
				unlock(t, le)
			}
			await(t, 5*time.Second, "nothing is left", func() bool {
				return leftovers(t, p) == 0 && one[int](t, p, "SELECT count(*) FROM pg_locks "+
					"WHERE locktype = 'advisory'") == 0
			})
		})
	}
}

// The modes row and advisory and LockTx have one lock and one queue, and their tokens rise.
func modesExclude(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	row, advisory := open(t, at(s.Addr(), postgres.Row)), open(t, at(s.Addr(), postgres.Advisory))
	var r rising
	for range 2 {
		le := lock(t, row.Mutex("x"))
		r.saw(t, "first", "x", le.Token())
		_, err := advisory.Mutex("x").TryLock(t.Context())
		want(t, "TryLock", err, fencelock.ErrLocked)
		next := queue(t, advisory, "x", 1)
		unlock(t, le)
		le = next.Granted(t, 5*time.Second)
		r.saw(t, "second", "x", le.Token())
		for _, l := range []*fencelock.Locker{row, advisory} {
			info, err := l.Inspect(t.Context(), "x")
			if err != nil || info.Token != le.Token() || info.Owner != le.Owner() {
				t.Errorf("Inspect: got %+v, %v, want owner %q and token %d", info, err, le.Owner(), le.Token())
			}
		}
		must(t, pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
			_, err := postgres.TryLockTx(t.Context(), tx, "x")
			want(t, "TryLockTx", err, fencelock.ErrLocked)
			token, err := postgres.LockTx(t.Context(), tx, "y")
			r.saw(t, "by hand", "y", token)
			_, busy := advisory.Mutex("y").TryLock(t.Context())
			want(t, "TryLock of what LockTx has", busy, fencelock.ErrLocked)
			return err
		}))
		// What the holder locks in its transaction is not the lease's own.
		token, err := (&postgres.Options{Mode: postgres.Advisory}).LockTx(t.Context(), txOf(t, le), "y")
		must(t, err)
		r.saw(t, "by the holder", "y", token)
		if info, err := row.Inspect(t.Context(), "y"); err != nil || !info.Held || info.Token != 0 || info.Owner != "" {
			t.Errorf("Inspect of a lock of LockTx: got %+v, %v, want Held without Owner and Token", info, err)
		}
		must(t, row.Break(t.Context(), "x"))
		lost(t, le, 2*time.Second, fencelock.Revoked)
	}
}
