package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// onEach runs SQL on n connections of a pool at once, and gives them back.
func onEach(t *testing.T, p *pgxpool.Pool, n int, sql string) {
	t.Helper()
	var conns []*pgxpool.Conn
	for range n {
		c, err := p.Acquire(t.Context())
		must(t, err)
		conns = append(conns, c)
		_, err = c.Exec(t.Context(), sql)
		must(t, err)
	}
	for _, c := range conns {
		c.Release()
	}
}

// A program with a schema for each tenant moves the search_path of its connections. A lock stays
// where it is, and nothing is made anywhere else.
func TestSearchPathOfAConnectionDecidesNothing(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	admin := pool(t, s, "")
	n := 0
	for _, mode := range modes {
		for _, path := range []string{"tenant_b", "tenant_b, public"} {
			for _, before := range []bool{false, true} {
				n++
				t.Run(fmt.Sprintf("%s/%s/before=%v", mode, path, before), func(t *testing.T) {
					database := fmt.Sprint("path_", n)
					run(t, admin, "CREATE DATABASE "+database)
					p := pool(t, s, "&pool_max_conns=6&database="+database)
					run(t, p, "CREATE SCHEMA tenant_b")
					now, later := "SET search_path TO "+path, "RESET search_path"
					if !before {
						now, later = later, now
					}
					l := over(t, p, &postgres.Options{Mode: mode})
					onEach(t, p, 5, now)
					le := lock(t, l.Mutex("x"))
					onEach(t, p, 4, later)
					other := open(t, strings.Replace(at(s.Addr(), mode), "/postgres?", "/"+database+"?", 1))
					for _, l := range []*fencelock.Locker{l, other} {
						_, err := l.Mutex("x").TryLock(t.Context())
						want(t, "TryLock of a lock that is held", err, fencelock.ErrLocked)
					}
					unlock(t, le)
					made := one[int](t, p, "SELECT count(*) FROM pg_tables WHERE schemaname = 'tenant_b'")
					if made != 0 {
						t.Errorf("%d tables were made in tenant_b", made)
					}
				})
			}
		}
	}
}

// Two guards of one resource in two schemas are two guards: a program that names its schema always
// means the same.
func TestGuardOfASchema(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	run(t, p, "CREATE SCHEMA locks; CREATE SCHEMA tenant_b")
	for _, schema := range []string{"locks", "tenant_b"} {
		conn, err := p.Acquire(t.Context())
		must(t, err)
		must(t, postgres.CreateSchema(t.Context(), conn.Conn(), schema))
		conn.Release()
	}
	for i, path := range []string{"public", "tenant_b"} {
		err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL search_path = "+path); err != nil {
				return err
			}
			return postgres.CheckTokenIn(t.Context(), tx, "locks", "r", fencelock.Token(9-i))
		})
		if wantStale := i > 0; errors.Is(err, fencelock.ErrStale) != wantStale || !wantStale && err != nil {
			t.Errorf("token %d on the path %s: got %v, want ErrStale: %v", 9-i, path, err, wantStale)
		}
	}
	err := pgx.BeginFunc(t.Context(), p,
		func(tx pgx.Tx) error { return postgres.CheckTokenIn(t.Context(), tx, "nowhere", "r", 1) })
	want(t, "a schema without guards", err, fencelock.ErrInvalid)
	// A migration may have raised the tokens of a schema above the clock.
	run(t, p, "INSERT INTO tenant_b.fencelock_lead VALUES (-1, 7200000000)")
	high := time.Now().Add(2 * time.Hour).UnixMicro()
	for schema, wanted := range map[string]error{"locks": fencelock.ErrInvalid, "tenant_b": nil} {
		err := pgx.BeginFunc(t.Context(), p,
			func(tx pgx.Tx) error { return postgres.CheckTokenIn(t.Context(), tx, schema, "r", high) })
		if !errors.Is(err, wanted) {
			t.Errorf("a token two hours ahead, in %s: got %v, want %v", schema, err, wanted)
		}
	}
}

// Objects of another version are left alone: whoever opens them is refused at once, while a reader,
// such as pg_dump, has locked the tables, and the programs of that version go on.
func TestAnotherVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	a := open(t, at(s.Addr(), postgres.Lease), fencelock.WithTTL(30*time.Second))
	le := lock(t, a.Mutex("x"))
	reader, err := p.Begin(t.Context())
	must(t, err)
	defer func() { _ = reader.Rollback(context.Background()) }()
	_, err = reader.Exec(t.Context(), "SELECT count(*) FROM fencelock_lease, fencelock_ring, fencelock_gate")
	must(t, err)
	was := one[string](t, p, "SELECT pg_get_functiondef('fencelock_version'::regproc)")
	for _, v := range []int{0, 99} {
		run(t, p, fmt.Sprintf("CREATE OR REPLACE FUNCTION fencelock_version() RETURNS int LANGUAGE sql "+
			"IMMUTABLE AS 'SELECT %d'", v))
		for _, mode := range modes {
			began := time.Now()
			_, err := fencelock.Open(within(t, 5*time.Second), at(s.Addr(), mode))
			want(t, fmt.Sprint("version ", v), err, fencelock.ErrInvalid)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("refused after %v", took)
			}
			must(t, le.Renew(within(t, 2*time.Second)))
		}
		if got := one[int](t, p, "SELECT fencelock_version()"); got != v {
			t.Errorf("version %d has become %d", v, got)
		}
	}
	run(t, p, was)
	unlock(t, le)
}

// A version that has no table of one of ours is still another version: nothing is made beside its
// objects.
func TestAnotherVersionWithoutATableIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	run(t, p, "CREATE FUNCTION fencelock_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 7'")
	for _, mode := range modes {
		_, err := fencelock.Open(within(t, 5*time.Second), at(s.Addr(), mode))
		want(t, "version 7", err, fencelock.ErrInvalid)
		for _, says := range []string{"version 7", "schema="} {
			if !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("got %v, want one that says %q", err, says)
			}
		}
	}
	if n := one[int](t, p, "SELECT count(*) FROM pg_proc WHERE starts_with(proname, 'fencelock_')"); n != 1 {
		t.Errorf("%d functions are in the schema, want the one of version 7", n)
	}
}
