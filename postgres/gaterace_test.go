package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// parked runs SQL in a transaction that stays open, between what it has looked at and its commit.
func parked(t *testing.T, p *pgxpool.Pool, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := p.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	_, err = tx.Exec(t.Context(), sql, args...)
	must(t, err)
	return tx
}

// undrained are the names that keep a gate from being drained.
func undrained(t *testing.T, d caller, g backend.Gate) []string {
	t.Helper()
	infos, err := d.Undrained(t.Context(), g)
	must(t, err)
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return names
}

// asking asks for what keeps a gate from being drained, on a goroutine of its own.
func asking(t *testing.T, d caller, g backend.Gate) <-chan []string {
	t.Helper()
	ctx := within(t, 20*time.Second)
	done := make(chan []string, 1)
	go func() {
		defer close(done)
		infos, err := d.Undrained(ctx, g)
		if err != nil {
			t.Errorf("Undrained: %v", err)
		}
		var names []string
		for _, i := range infos {
			names = append(names, i.Name)
		}
		done <- names
	}()
	return done
}

// blocked returns when a session of Undrained waits for a lock, and fails the test if it has
// answered.
func blocked(t *testing.T, p *pgxpool.Pool, done <-chan []string) {
	t.Helper()
	await(t, 10*time.Second, "Undrained waits", func() bool {
		select {
		case names := <-done:
			t.Fatalf("Undrained answered %v while a transaction that may have passed the gate was open", names)
		default:
		}
		return one[int](t, p, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "+
			"AND query LIKE '%settled%' AND pid <> pg_backend_pid()") == 1
	})
}

// Whoever has passed the open gate and has not come further is returned: nothing tells of him but
// his door.
func gateParkedRow(t *testing.T, s *servers.PostgresServer) {
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), postgres.Row, "prefix", "parked:"))
	moves := backend.Pattern{Match: "in/*"}
	var open []pgx.Tx
	for _, name := range []string{"in/a", "in/b", "out"} {
		run(t, p, "INSERT INTO fencelock_row VALUES ($1)", []byte("parked:"+name))
		open = append(open, parked(t, p, takeByHand, []byte("parked:"+name), name == "in/b", 7))
	}
	both, held := request("in/both", backend.PhaseBoth), request("in/held", backend.PhaseBoth)
	held.Move = "another"
	mine, err := d.Acquire(t.Context(), both)
	must(t, err)
	theirs, err := d.Acquire(t.Context(), held)
	must(t, err)
	waiter := request("in/a", "")
	waiter.Wait = true
	wait := acquiring(t, d, waiter)
	await(t, 10*time.Second, "a session waits", func() bool {
		info, err := d.Inspect(t.Context(), "in/a")
		return err == nil && info.Waiters == 1
	})
	g := gateOf("m", backend.GateBoth, moves)
	must(t, d.SetGate(t.Context(), g, 0))
	if got, want := fmt.Sprint(undrained(t, d, g)), "[in/a in/b in/held]"; got != want {
		t.Errorf("undrained: got %s, want %s", got, want)
	}
	_, err = d.Acquire(t.Context(), request("in/a", "")) // who comes now does not touch the door
	refusedBy(t, err, g)
	for _, tx := range open {
		must(t, tx.Commit(t.Context()))
	}
	refusedBy(t, (<-wait).err, g) // who waits at a door looks at the gates once he has it
	must(t, d.Release(t.Context(), &core.Hold{Request: held, Grant: theirs}))
	if got := undrained(t, d, g); len(got) > 0 {
		t.Errorf("undrained at the end: %v", got)
	}
	must(t, d.Release(t.Context(), &core.Hold{Request: both, Grant: mine}))
	run(t, p, "SELECT fencelock_tidy(NULL)")
}

// A grant that has passed the open gate and is not committed yet is waited for.
func gateParkedLease(t *testing.T, s *servers.PostgresServer) {
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), postgres.Lease, "prefix", "leases:"))
	g := gateOf("m", backend.GateBoth, backend.Pattern{Match: "*"})
	acquire := func(name string) pgx.Tx {
		return parked(t, p, acquireByHand, []byte("leases:"+name), []byte(nonce()[:16]), 7)
	}
	a, b := acquire("a"), acquire("b")
	must(t, d.SetGate(t.Context(), g, 0))
	done := asking(t, d, g)
	blocked(t, p, done)
	must(t, a.Commit(t.Context()))
	blocked(t, p, done)
	// Names whose lock nobody has go on meanwhile.
	release(t, d, request("c", backend.PhaseBoth))
	must(t, b.Rollback(t.Context()))
	if got := fmt.Sprint(<-done); got != "[a]" {
		t.Errorf("undrained: got %s, want [a]", got)
	}
	_, err := d.Acquire(t.Context(), request("b", ""))
	refusedBy(t, err, g)
	must(t, d.Break(t.Context(), "a"))
	if got := undrained(t, d, g); len(got) > 0 {
		t.Errorf("undrained at the end: %v", got)
	}
	if n := one[int](t, p, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 7307"); n != 0 {
		t.Errorf("%d advisory locks are left", n)
	}
}

// A renewal that found the lease alive, and commits after its expiry has been seen, is waited for
// too.
func gateParkedRenewal(t *testing.T, s *servers.PostgresServer) {
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), postgres.Lease, "prefix", "renewal:"))
	r := request("x", "")
	r.TTL = time.Second
	h, err := d.Acquire(t.Context(), r)
	must(t, err)
	g := gateOf("m", backend.GateBoth, backend.Pattern{Match: "*"})
	must(t, d.SetGate(t.Context(), g, 0))
	tx := parked(t, p, "SELECT fencelock_renew(ARRAY[name], ARRAY[nonce], ARRAY[60000]) FROM "+
		"fencelock_lease WHERE name = 'renewal:x'")
	await(t, 10*time.Second, "the lease looks expired", func() bool {
		return one[bool](t, p, "SELECT expires_at < clock_timestamp() FROM fencelock_lease WHERE name = 'renewal:x'")
	})
	done := asking(t, d, g)
	blocked(t, p, done)
	must(t, tx.Commit(t.Context()))
	if got := fmt.Sprint(<-done); got != "[x]" {
		t.Errorf("undrained: got %s, want [x]", got)
	}
	must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: h}))
	// A lease that has expired for good holds up nothing.
	run(t, p, "INSERT INTO fencelock_lease VALUES ('renewal:y', 'n', 'me', 1, "+
		"clock_timestamp() - interval '1 s', NULL, false, false)")
	if got := undrained(t, d, g); len(got) > 0 {
		t.Errorf("undrained: %v", got)
	}
	run(t, p, "DELETE FROM fencelock_lease WHERE name = 'renewal:y'")
}

// Locks of programs that use neither the door nor the gates show; a gate's own both clients do not.
func gateStrangers(t *testing.T, s *servers.PostgresServer) {
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), postgres.Row, "prefix", "strange:"))
	g := gateOf("m", backend.GateBoth, backend.Pattern{Match: "*"})
	must(t, d.SetGate(t.Context(), g, 0))
	run(t, p, "INSERT INTO fencelock_row VALUES ('strange:x'), ('strange:y'), ('stranger')")
	tx := parked(t, p, "SELECT FROM fencelock_row WHERE name IN ('strange:x', 'stranger') FOR UPDATE")
	both := request("y", backend.PhaseBoth)
	h, err := d.Acquire(t.Context(), both)
	must(t, err)
	if got := fmt.Sprint(undrained(t, d, g)); got != "[x]" {
		t.Errorf("undrained: got %s, want [x]", got)
	}
	must(t, tx.Rollback(t.Context()))
	if got := undrained(t, d, g); len(got) > 0 {
		t.Errorf("undrained: %v", got)
	}
	must(t, d.Release(t.Context(), &core.Hold{Request: both, Grant: h}))
	run(t, p, "SELECT fencelock_tidy(NULL)")
}
