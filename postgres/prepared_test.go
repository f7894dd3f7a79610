//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// TestPrepared: a session prepares the statements of a lock when they come for the second time, and keeps them though
// they fail then. One that forgets them, or has others of their names, costs no lock, with a pooler in front or
// without; and nothing is prepared where a program forbids it.
func TestPrepared(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	pooler := strings.Replace(s.URL(), s.Addr(), bouncer(t, s.Addr(), "transaction", 1), 1)
	var taken string // the names, for other statements
	forget := func() string { return "DISCARD ALL" }
	for _, tt := range []struct {
		what, url string
		before    map[int]func() string // what the program does before a round
		fails     int                   // the round without a lock
		names     int
	}{
		{"kept", s.URL(), nil, -1, 2},
		{"failed once", s.URL(), map[int]func() string{
			1: func() string { return "SET ROLE pg_monitor" }, // which may not lock
			2: func() string { return "RESET ROLE" },
		}, 1, 2},
		{"taken", s.URL(), map[int]func() string{1: func() string { return taken }}, -1, 0},
		{"forgotten", s.URL(), map[int]func() string{3: forget}, -1, 0},
		{"forgotten behind a pooler", pooler, map[int]func() string{3: forget, 5: forget}, -1, 0},
		{"forbidden", s.URL() + "&default_query_exec_mode=exec", nil, -1, 0},
	} {
		p, err := pgxpool.New(context.Background(), tt.url+"&pool_max_conns=1")
		must(t, err)
		defer p.Close()
		m := over(t, p, &postgres.Options{Mode: postgres.Lease}).Mutex(tt.what)
		for round := range 8 {
			if before := tt.before[round]; before != nil {
				_, err := p.Exec(t.Context(), before(), pgx.QueryExecModeSimpleProtocol)
				must(t, err)
			}
			le, err := m.TryLock(t.Context())
			if (err != nil) != (round == tt.fails) {
				t.Fatalf("%s: round %d: TryLock: got %v", tt.what, round, err)
			}
			if err == nil {
				must(t, le.Unlock(t.Context()))
			}
		}
		got := strings.Fields(one[string](t, p, "SELECT coalesce(string_agg(name, ' '), '') "+
			"FROM pg_prepared_statements WHERE name LIKE 'fencelock%' AND statement LIKE '%fencelock%' "+
			"AND generic_plans + custom_plans > 4"))
		if len(got) != tt.names {
			t.Errorf("%s: got the prepared statements %v, want %d", tt.what, got, tt.names)
		}
		if taken == "" {
			for _, name := range got {
				taken += fmt.Sprintf("PREPARE %s AS SELECT 1;", name)
			}
		}
	}
}
