package postgres_test

import (
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// schema1 is version 1 of schema.sql, before there were gates.
//
//go:embed testdata/schema-1.sql
var schema1 string

// schema2 is version 2, whose clients did not know what the gates are.
//
//go:embed testdata/schema-2.sql
var schema2 string

// schema3 is version 3, whose functions did more than a lock needs that is free.
//
//go:embed testdata/schema-3.sql
var schema3 string

// A database of an earlier version becomes one of version 4 by the first client of this version, while programs and roles of that version go on.
func TestSchemaIsUpgraded(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	admin := pool(t, s, "")
	run(t, admin, `CREATE ROLE "the app" LOGIN`)
	for _, was := range []struct{ version, schema, take, acquire, release string }{
		{
			"1", schema1, "SELECT state FROM fencelock_take($1, 0, false)",
			"SELECT state FROM fencelock_acquire($1, $2, 'old', 60000, 0, false, NULL, '', 0, 2000)", "SELECT fencelock_release($1, $2, 2000, 0, true, true)",
		},
		{
			"2", schema2, "SELECT state FROM fencelock_take($1, 0, false, 2, NULL, '', NULL)",
			"SELECT state FROM fencelock_acquire($1, $2, 'old', 60000, 0, false, NULL, '', 0, 2000, 2, NULL, '')", "SELECT fencelock_release($1, $2, 2000, 0, true, true)",
		},
		{
			"3", schema3, "SELECT split_part(fencelock_take($1, 0, false, 2, NULL, '', NULL, NULL, NULL, NULL), ' ', 1)",
			"SELECT state FROM (SELECT split_part(a, ' ', 1) AS state, split_part(a, ' ', 2) AS token FROM fencelock_acquire($1, $2, 'old', 60000, 0, 0, false, NULL, '', 0, 2000, 2, NULL, '', NULL) a) x",
			"SELECT fencelock_release($1, $2, 2000, 0, true, true)",
		},
	} {
		t.Run("from "+was.version, func(t *testing.T) {
			upgrade(t, s, "from_"+was.version, was.schema, map[postgres.Mode]string{
				postgres.Row:   was.take,
				postgres.Lease: strings.ReplaceAll(was.acquire, "$2", "decode(md5(clock_timestamp()::text), 'hex')"),
			})
			p := pool(t, s, "&database=from_"+was.version+"_lease")
			oldProgram(t, p, was.acquire, was.release)
			if kept := one[string](t, p, "SELECT relpersistence::text FROM pg_class WHERE relname = 'fencelock_ring'"); kept != "p" {
				t.Errorf("the ring has relpersistence %q: a crash would empty it", kept)
			}
		})
	}
}

// oldProgram locks and unlocks by the statements of an earlier version.
func oldProgram(t *testing.T, p *pgxpool.Pool, acquire, release string) {
	t.Helper()
	last := int64(0)
	acquire = strings.Replace(acquire, "SELECT state", "SELECT state || ' ' || token", 1)
	for range 3 {
		mine := []byte(nonce()[:16])
		granted := one[string](t, p, acquire, []byte("p:out/theirs"), mine)
		state, number, _ := strings.Cut(granted, " ")
		token, err := strconv.ParseInt(number, 10, 64)
		if err != nil || state != "granted" || token <= last {
			t.Errorf("a program of an earlier version was told %q, after token %d", granted, last)
		}
		last = token
		for range 2 { // sent again
			if !one[bool](t, p, release, []byte("p:out/theirs"), mine) {
				t.Error("a program of an earlier version could not release")
			}
		}
	}
}

func upgrade(t *testing.T, s *servers.PostgresServer, name, was string, old map[postgres.Mode]string) {
	admin := pool(t, s, "")
	for _, mode := range both {
		t.Run(string(mode), func(t *testing.T) {
			database := name + "_" + string(mode)
			run(t, admin, "CREATE DATABASE "+database)
			p := pool(t, s, "&database="+database)
			run(t, p, was)
			run(t, p, "REVOKE CREATE ON SCHEMA public FROM public")
			url := strings.Replace(at(s.Addr(), mode, "prefix", "p:"), "/postgres?", "/"+database+"?", 1)
			app := strings.Replace(url, "postgres@", "the%20app@", 1)
			_, err := fencelock.Open(t.Context(), app)
			want(t, "a role that may not upgrade", err, fencelock.ErrInvalid)
			if !strings.Contains(fmt.Sprint(err), "schema.sql") {
				t.Errorf("got %v, want one that names schema.sql", err)
			}
			run(t, p, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "the app"; GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO "the app"`)

			// Held by a program of that version.
			run(t, p, "INSERT INTO fencelock_row VALUES ('p:in/old'), ('p:in/x'), ('p:out/x')")
			tx := parked(t, p, old[mode], []byte("p:in/old"))
			if mode == postgres.Lease {
				must(t, tx.Commit(t.Context()))
			}

			d, err := postgres.New(p, &postgres.Options{Mode: mode, Prefix: "p:"}) // sends nothing yet
			must(t, err)
			t.Cleanup(func() { _ = d.Close() })
			if name == "from_3" { // of which nothing is missing
				must(t, driver(t, url).Close())
			}
			release(t, d, request("in/y", ""))
			if v := one[int](t, p, "SELECT fencelock_version()"); v != 4 {
				t.Errorf("version %d, want 4", v)
			}
			g := gateOf("m", backend.GateBoth, backend.Pattern{Match: "in/*"})
			must(t, d.SetGate(t.Context(), g, 0))
			if got := fmt.Sprint(undrained(t, d, g)); got != "[in/old]" {
				t.Errorf("undrained: got %s, want [in/old]", got)
			}
			for name, refused := range map[string]bool{"in/x": true, "out/x": false} {
				var state string
				err := p.QueryRow(t.Context(), old[mode], []byte("p:"+name)).Scan(&state)
				var answer *pgconn.PgError
				if got := errors.As(err, &answer) && answer.Code == "FL403" || state == "shut"; got != refused || !refused && err != nil {
					t.Errorf("a program of an earlier version asks for %s: got %v, want refused: %v", name, err, refused)
				}
			}

			// The role of that version has what it needs, and nobody runs the file again.
			before := one[string](t, p, "SELECT xmin::text FROM pg_proc WHERE proname = 'fencelock_version'")
			other := driver(t, app)
			_, err = other.Acquire(t.Context(), request("in/y", ""))
			refusedBy(t, err, g)
			release(t, other, request("in/y", backend.PhaseBoth))
			must(t, other.Report(t.Context(), backend.Client{ID: "c", Move: "m"}, 1e9))
			_, err = other.Gates(t.Context())
			must(t, err)
			if after := one[string](t, p, "SELECT xmin::text FROM pg_proc WHERE proname = 'fencelock_version'"); after != before {
				t.Error("the file was run again on version 4")
			}
			run(t, p, postgres.Schema) // by hand, what is there is kept
			if gates, err := d.Gates(t.Context()); err != nil || len(gates) != 1 {
				t.Errorf("gates: %v, %v", gates, err)
			}
		})
	}
}

// An operation of gates that is the first on a database of version 1 upgrades it too.
func TestGatesUpgradeTheSchema(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	admin := pool(t, s, "")
	g := gateOf("m", backend.GateBoth, backend.Pattern{Match: "*"})
	for i, op := range []func(d *postgres.Driver) error{
		func(d *postgres.Driver) error { _, err := d.Gates(t.Context()); return err },
		func(d *postgres.Driver) error { return d.SetGate(t.Context(), g, 0) },
		func(d *postgres.Driver) error { _, err := d.Undrained(t.Context(), g); return err },
		func(d *postgres.Driver) error { _, err := d.Source(t.Context()); return err },
		func(d *postgres.Driver) error { return d.Report(t.Context(), backend.Client{}, 1e9) },
		func(d *postgres.Driver) error { return d.Withdraw(t.Context(), backend.Client{}) },
		func(d *postgres.Driver) error { _, err := d.Clients(t.Context(), "m"); return err },
	} {
		for _, mode := range both {
			database := fmt.Sprint("first_", i, mode)
			run(t, admin, "CREATE DATABASE "+database)
			p := pool(t, s, "&database="+database)
			run(t, p, schema1)
			d, err := postgres.New(p, &postgres.Options{Mode: mode})
			must(t, err)
			if err := op(d); err != nil {
				t.Errorf("operation %d, mode %s: %v", i, mode, err)
			}
			must(t, d.Close())
		}
	}
}
