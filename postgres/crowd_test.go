package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// Many goroutines of two clients lock a few names, by trying, by waiting and by waiting for too
// short a while, while their requests share statements. No name has two holders, its tokens rise,
// and nothing is left.
func TestCrowd(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := servers.Postgres(t, servers.PostgresOptions{})
			p := pool(t, s, "")
			long := fencelock.WithTTL(time.Minute)
			clients := []*fencelock.Locker{open(t, at(s.Addr(), mode), long), open(t, at(s.Addr(), mode), long)}
			const names = 12
			var holders [names]sync.Mutex
			var tokens rising
			var wg sync.WaitGroup
			rounds := 30
			if testing.Short() {
				rounds = 10
			}
			for worker := range 48 {
				wg.Go(func() {
					for round := range rounds {
						n := (worker*7 + round*5) % names
						m := clients[worker%2].Mutex(fmt.Sprint("x", n))
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						lock := m.Lock
						switch (worker + round) % 4 {
						case 0:
							lock = m.TryLock
						case 1:
							cancel()
							ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
						}
						le, err := lock(ctx)
						cancel()
						if err != nil {
							if !errors.Is(err, fencelock.ErrLocked) && !errors.Is(err, context.DeadlineExceeded) {
								t.Error(err)
							}
							continue
						}
						if !holders[n].TryLock() {
							t.Errorf("x%d has two holders", n)
							return
						}
						tokens.saw(t, "in the crowd", le.Name(), le.Token())
						holders[n].Unlock()
						if err := le.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			await(t, 10*time.Second, "nothing is left", func() bool { return leftovers(t, p) == 0 })
		})
	}
}

// A try whose ctx ends before its first statement leaves a connection that another lock takes: that lock stays when the
// try is given up.
func TestTryThatNeverLeft(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	for _, mode := range []postgres.Mode{postgres.Row, postgres.Advisory} {
		t.Run(string(mode), func(t *testing.T) {
			config, err := pgxpool.ParseConfig(s.URL())
			must(t, err)
			var pids []uint32
			ended := func() {}
			config.PrepareConn = func(_ context.Context, c *pgx.Conn) (bool, error) {
				pids = append(pids, c.PgConn().PID())
				ended()
				return true, nil
			}
			p, err := pgxpool.NewWithConfig(t.Context(), config)
			must(t, err)
			defer p.Close()
			d, err := postgres.New(p, &postgres.Options{Mode: mode, Prefix: string(mode)})
			must(t, err)
			defer d.Close()
			claim := func(name, digit string, lost func(error)) *backend.Claim {
				return &backend.Claim{Request: &backend.Request{
					Name: name, Nonce: strings.Repeat(digit, 32), Owner: "o", TTL: time.Minute, Auto: true, Lost: lost,
				}}
			}
			ask := func(ctx context.Context, c *backend.Claim) error {
				d.Ask(ctx, []*backend.Claim{c})
				return c.Err
			}
			warm := claim("warm", "1", func(error) {})
			must(t, ask(t.Context(), warm))
			warm.Leaving, warm.Held = true, true
			d.Leave(t.Context(), []*backend.Claim{warm})
			must(t, warm.Err)

			ctx, cancel := context.WithCancel(t.Context())
			ended = cancel
			never := claim("x", "2", func(error) {})
			if err := ask(ctx, never); !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v, want the end of the ctx", err)
			}
			ended = func() {}
			try := pids[len(pids)-1]
			y := claim("y", "3", func(err error) { t.Errorf("y is lost: %v", err) })
			must(t, ask(t.Context(), y))
			if pids[len(pids)-1] != try {
				t.Fatalf("y has connection %d, want %d, the one of the try", pids[len(pids)-1], try)
			}
			never.Leaving, never.Unsure = true, true
			d.Leave(t.Context(), []*backend.Claim{never})
			must(t, never.Err)
			must(t, d.Keep(t.Context(), []*backend.Claim{y}, true)[0])
			y.Leaving, y.Held = true, true
			d.Leave(t.Context(), []*backend.Claim{y})
			must(t, y.Err)
		})
	}
}

// A try that meets the tidying of the name's row, and is still to be rolled back, keeps no other
// try out.
func TestTryKeepsNoDoor(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	l, p := open(t, at(s.Addr(), postgres.Row)), pool(t, s, "")
	key := []byte(backend.DefaultPrefix + "x")
	run(t, p, "INSERT INTO fencelock_row(name) VALUES ($1)", key)
	tidy, err := p.Begin(t.Context())
	must(t, err)
	_, err = tidy.Exec(t.Context(), "SELECT pg_advisory_xact_lock_shared(fencelock_door($1))", key)
	must(t, err)
	early, err := p.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { // before the pool closes, which waits for them
		_ = tidy.Rollback(context.Background())
		_ = early.Rollback(context.Background())
	})
	var state string
	must(t, early.QueryRow(t.Context(), takeByHand, key, false, len(backend.DefaultPrefix)).Scan(&state))
	if state != "missing 0" {
		t.Errorf("a try beside the tidying: got %q, want missing 0", state)
	}
	must(t, tidy.Rollback(t.Context()))
	le, err := l.Mutex("x").TryLock(t.Context())
	must(t, err)
	unlock(t, le)
}

// A try that the server reads only after it was given up leaves no row; also where a proxy hides the client's port.
func TestTryGivenUpBeforeItIsRead(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	t.Run("direct", func(t *testing.T) { givenUpUnread(t, s, s.Addr()) })
	t.Run("proxied", func(t *testing.T) { givenUpUnread(t, s, proxied(t, s).Addr()) })
}

func givenUpUnread(t *testing.T, s *servers.PostgresServer, addr string) {
	p := pool(t, s, "")
	own, err := pgxpool.New(t.Context(), "postgres://postgres@"+addr+"/postgres?sslmode=disable&pool_max_conns=4")
	must(t, err)
	t.Cleanup(own.Close)
	l := over(t, own, &postgres.Options{Mode: postgres.Row})
	unlock(t, lock(t, l.Mutex("y")))
	idle := own.AcquireAllIdle(t.Context())
	if len(idle) == 0 {
		t.Fatal("the pool has no idle connection")
	}
	for _, c := range idle[1:] {
		defer c.Release()
	}
	busy, err := (&pgproto3.Query{String: "DO $$ BEGIN PERFORM pg_sleep(5); EXCEPTION WHEN query_canceled THEN " +
		"PERFORM pg_sleep(1.5); END $$"}).Encode(nil)
	must(t, err)
	_, err = idle[0].Conn().PgConn().Conn().Write(busy) // pgx does not know, and sends the try behind it
	must(t, err)
	pid := int32(idle[0].Conn().PgConn().PID())
	idle[0].Release()
	_, err = l.Mutex("x").TryLock(within(t, 300*time.Millisecond))
	want(t, "TryLock", err, context.DeadlineExceeded)
	await(t, 4*time.Second, "the session is gone", func() bool {
		return one[int](t, p, "SELECT count(*) FROM pg_stat_activity WHERE pid=$1", pid) == 0
	})
	await(t, 5*time.Second, "nothing is left", func() bool { return leftovers(t, p) == 0 })
}
