package postgres_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// acquireAll and releaseAll are the statements for many names at once: names and nonces with commas
// between, and what each release is.
const (
	acquireAll = `SELECT fencelock_acquire(ks, ns,
		array_fill('me'::bytea, ARRAY[n]), array_fill(60000::bigint, ARRAY[n]),
		array_fill(0::bigint, ARRAY[n]), array_fill(0::bigint, ARRAY[n]), array_fill(NULL::bytea, ARRAY[n]),
		array_fill(fencelock_gates_now(), ARRAY[n]), array_fill(-1::bigint, ARRAY[n]),
		array_fill(0::bigint, ARRAY[n]), '', 0, 2000, 0)
		FROM (SELECT string_to_array($1, ',')::bytea[] AS ks, string_to_array($2, ',')::bytea[] AS ns,
			cardinality(string_to_array($1, ',')) AS n) x`
	releaseAll = `SELECT fencelock_release(string_to_array($1, ',')::bytea[], string_to_array($2, ',')::bytea[],
		$3::bigint[], $4::boolean[], 2000)`
)

// TestBatch acquires and releases many names in one statement.
func TestBatch(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"autovacuum=off"}})
	p := pool(t, s, "")
	unlock(t, lock(t, open(t, at(s.Addr(), postgres.Lease)).Mutex("makes the tables")))
	t.Run("of one name twice", func(t *testing.T) {
		states := granted(one[string](t, p, acquireAll, "twice,other,twice", "n1,n2,n3"))
		if states != "granted granted locked" {
			t.Error(states)
		}
	})
	t.Run("of raised names", func(t *testing.T) {
		run(t, p, "SELECT fencelock_raise('raised', "+
			"(date_part('epoch', clock_timestamp()) * 1000000 + 60000000)::bigint)")
		floor := one[int64](t, p, "SELECT (date_part('epoch', clock_timestamp()) * 1000000 + 50000000)::bigint")
		answers := strings.Split(one[string](t, p, acquireAll, "plain,raised", "n4,n5"), "\n")
		var plain, raised int64
		_, err := fmt.Sscanf(answers[0]+" "+answers[1], "granted %d 0 granted %d 0", &plain, &raised)
		if err != nil || plain > floor || raised <= floor {
			t.Errorf("got %q, want only the second above %d: %v", answers, floor, err)
		}
		run(t, p, "DELETE FROM fencelock_lead")
	})
	t.Run("of what is ours", func(t *testing.T) { releasesOurs(t, p) })
	t.Run("looks names up", func(t *testing.T) { looksUp(t, s, p) })
}

// granted is the first words of all answers.
func granted(answers string) string {
	var states []string
	for a := range strings.Lines(answers) {
		states = append(states, strings.Fields(a)[0])
	}
	return strings.Join(states, " ")
}

// A release of many frees those that are the caller's, says so of those whose time was not over, and
// hands on what somebody waits for. What it freed it knows when it is sent again.
func releasesOurs(t *testing.T, p *pgxpool.Pool) {
	run(t, p, "DELETE FROM fencelock_lease")
	const names, nonces = "theirs,waited,a,b,over,gone,doubted", "0123456789abcdea,0123456789abcdeb,0123456789abcdec," +
		"0123456789abcded,0123456789abcdee,0123456789abcdef,0123456789abcde0"
	if got := granted(one[string](t, p, acquireAll, names, nonces)); strings.Count(got, "granted") != 7 {
		t.Fatal(got)
	}
	run(t, p, "UPDATE fencelock_lease SET expires_at = clock_timestamp() - interval '1 s' WHERE name = 'over'")
	run(t, p, "UPDATE fencelock_lease SET nonce = 'another' WHERE name = 'theirs'")
	run(t, p, "DELETE FROM fencelock_lease WHERE name = 'gone'")
	run(t, p, "INSERT INTO fencelock_process VALUES ('p', clock_timestamp() + interval '1 min')")
	run(t, p, "INSERT INTO fencelock_queue VALUES ('waited', 1, 'waiter', 'o', 'p')")
	release := func() string {
		return one[string](t, p, releaseAll, names, nonces, "{0,0,0,0,0,0,60000}", "{t,t,t,t,t,t,f}")
	}
	const left = "SELECT coalesce(string_agg(encode(name, 'escape') || '=' || encode(nonce, 'escape'), ' ' " +
		"ORDER BY name), '') FROM fencelock_lease"
	if told, rest := release(), one[string](t, p, left); told != "ftttfft" || rest != "theirs=another waited=waiter" {
		t.Errorf("got %q, and %q is left", told, rest)
	}
	if told, rest := release(), one[string](t, p, left); told != "ftttfff" || rest != "theirs=another waited=waiter" {
		t.Errorf("sent again: got %q, and %q is left", told, rest)
	}
	if n := one[int](t, p, "SELECT count(*) FROM fencelock_gone"); n != 1 {
		t.Errorf("%d tombstones, want that of the one in doubt", n)
	}
}

// Names are looked up in the index, also by sessions that made their plans when the tables were
// empty, as after a vacuum: the server would read them whole, and with every lock more.
func looksUp(t *testing.T, s *servers.PostgresServer, p *pgxpool.Pool) {
	run(t, p, "DELETE FROM fencelock_lease")
	run(t, p, "VACUUM ANALYZE fencelock_lease, fencelock_hold, fencelock_queue, fencelock_gone, fencelock_ring")
	run(t, p, "SELECT pg_stat_force_next_flush()") // what was done so far
	const scans = "SELECT sum(seq_scan)::int FROM pg_stat_user_tables WHERE relname IN ('fencelock_lease', " +
		"'fencelock_hold', 'fencelock_queue', 'fencelock_gone', 'fencelock_ring')"
	const grants = "SELECT n_tup_ins::int FROM pg_stat_user_tables WHERE relname = 'fencelock_lease'"
	const entries = "SELECT idx_tup_read::int FROM pg_stat_user_indexes WHERE indexrelname = 'fencelock_lease_pkey'"
	before, granted, read := one[int](t, p, scans), one[int](t, p, grants), one[int](t, p, entries)
	const workers, cycles = 32, 20
	l := open(t, at(s.Addr(), postgres.Lease, "pool_max_conns", "4"))
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for range cycles {
				le, err := l.Mutex(fmt.Sprint(i)).Lock(t.Context())
				if err == nil {
					err = le.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	must(t, l.Close()) // a session tells its figures when it ends
	await(t, 10*time.Second, "the server has counted all", func() bool {
		return one[int](t, p, grants)-granted >= workers*cycles
	})
	if n := one[int](t, p, scans) - before; n != 0 {
		t.Errorf("%d times a table was read whole", n)
	}
	if n := one[int](t, p, entries) - read; n > 30*workers*cycles {
		t.Errorf("%d entries of the index were read in %d cycles", n, workers*cycles)
	}
}
