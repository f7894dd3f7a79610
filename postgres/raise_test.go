package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// handle makes a hold look like a lease, for postgres.Tx.
type handle struct{ h *core.Hold }

func (h handle) Handle() any { return h.h.Handle }

// A raise leaves the holder's transaction alone, waits for its statements, and lasts when it is
// rolled back.
func raiseHeldInTx(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), mode, "prefix", "raise:"))
	run(t, p, "CREATE TABLE IF NOT EXISTS written (n int); DELETE FROM written")
	var last backend.Token
	for round, fails := range []bool{false, true} {
		r := request("x", backend.PhaseBoth)
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		if g.Token <= last {
			t.Errorf("token %d after a raise to %d", g.Token, last)
		}
		h := &core.Hold{Request: r, Grant: g}
		tx, ok := postgres.Tx(handle{h})
		if !ok {
			t.Fatal("no Tx")
		}
		_, err = tx.Exec(t.Context(), "INSERT INTO written VALUES ($1)", round)
		must(t, err)
		if fails {
			if _, err := tx.Exec(t.Context(), "SELECT 1/0"); err == nil {
				t.Error("1/0 went well")
			}
		}
		rows, err := tx.Query(t.Context(), "SELECT n FROM written") // has the connection
		must(t, err)
		last = g.Token + 1e9
		raised := make(chan error, 1)
		go func() { raised <- d.RaiseHeld(t.Context(), h, last) }()
		await(t, 10*time.Second, "the raise has committed", func() bool {
			source,
				err := d.Source(t.Context())
			return err == nil && source >= last
		})
		rows.Close()
		must(t, rows.Err())
		must(t, <-raised)
		must(t, d.RaiseHeld(t.Context(), h, last-1))
		err = d.Release(t.Context(), h)
		if undone := errors.As(err, new(*backend.UndoneError)); undone != fails {
			t.Errorf("release: got %v", err)
		}
	}
	if n := one[int](t, p, "SELECT count(*) FROM written"); n != 1 {
		t.Errorf("%d rows were written, want that of the transaction that did not fail", n)
	}
}

// Whoever has lost the lock raises nothing, and is told so.
func raiseHeldAfterLoss(t *testing.T, s *servers.PostgresServer) {
	for _, mode := range modes {
		d, other := driver(t, at(s.Addr(), mode, "prefix", "lost:")), driver(t, at(s.Addr(), mode, "prefix", "lost:"))
		r := request("x", backend.PhaseBoth)
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		must(t, other.Break(t.Context(), "x"))
		before, err := d.Source(t.Context())
		must(t, err)
		err = d.RaiseHeld(t.Context(), &core.Hold{Request: r, Grant: g}, before+1e12)
		want(t, string(mode)+": RaiseHeld of a lock that was taken away", err, backend.ErrLost)
		if after, err := d.Source(t.Context()); err != nil || after > before+1e10 {
			t.Errorf("%s: the source was %d, is %d, %v", mode, before, after, err)
		}
		_ = d.Abandon(t.Context(), r)
	}
}

// A raise of a lock that is lost before its commit has an answer is none of the holder's.
func raiseHeldLostMeanwhile(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p, d := pool(t, s, ""), driver(t, at(s.Addr(), mode, "prefix", "meanwhile:"))
	r := request("x", backend.PhaseBoth)
	g, err := d.Acquire(t.Context(), r)
	must(t, err)
	resume := stopped(t, p)
	defer resume()
	raised := make(chan error, 1)
	go func() {
		raised <- d.RaiseHeld(within(t, 20*time.Second), &core.Hold{Request: r, Grant: g}, g.Token+1000)
	}()
	await(t, 10*time.Second, "the raise waits", func() bool {
		return one[int](t, p, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%fencelock_raise%' "+
			"AND wait_event = 'advisory'") == 1
	})
	must(t, d.Break(t.Context(), "x"))
	resume()
	want(t, "RaiseHeld", <-raised, backend.ErrLost)
	_ = d.Abandon(t.Context(), r)
}

// A raise is durable when it returns, though the holder's transaction is open when the server dies.
func TestRaiseHeldIsDurable(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{
		"wal_writer_delay=10s",
		"bgwriter_delay=10s", "synchronous_commit=off",
	}})
	floors := map[postgres.Mode]backend.Token{}
	for _, mode := range modes {
		d := driver(t, at(s.Addr(), mode, "prefix", string(mode)))
		r := request("x", backend.PhaseBoth)
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		floors[mode] = g.Token + 1e12 // eleven days ahead
		must(t, d.RaiseHeld(t.Context(), &core.Hold{Request: r, Grant: g}, floors[mode]))
	}
	must(t, s.Kill())
	must(t, s.Start())
	for _, mode := range modes {
		d := driver(t, at(s.Addr(), mode, "prefix", string(mode)))
		must(t, d.Break(t.Context(), "x"))
		g, err := d.Acquire(t.Context(), request("x", backend.PhaseBoth))
		must(t, err)
		if g.Token <= floors[mode] {
			t.Errorf("%s: token %d after a raise to %d and a kill", mode, g.Token, floors[mode])
		}
		if source, err := d.Source(context.WithoutCancel(t.Context())); err != nil || source < g.Token {
			t.Errorf("%s: source %d, %v after token %d", mode, source, err, g.Token)
		}
	}
}
