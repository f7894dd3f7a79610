package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// standby makes every COMMIT wait for a standby of that name, which is not there, or for none. The pool has one
// connection, whose own do not wait.
func standby(t *testing.T, p *pgxpool.Pool, name string) {
	t.Helper()
	for _, sql := range []string{
		"SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = '" + name + "'",
		"SELECT pg_reload_conf()",
	} {
		_, err := p.Exec(context.WithoutCancel(t.Context()), sql)
		must(t, err)
	}
}

// A COMMIT that waits for its synchronous standby is not done for Unlock, whatever ends the wait: the standby may be
// promoted without what was written. Nothing of the driver's ends it while the connection is there.
func TestCommitWaitsForItsStandby(t *testing.T) {
	t.Parallel()
	for _, mode := range modes[:2] {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cut %v", mode, cut), func(t *testing.T) {
				t.Parallel()
				s := servers.Postgres(t, servers.PostgresOptions{})
				p := pool(t, s, "&pool_max_conns=1")
				makeNotes(t, p)
				proxy := proxied(t, s)
				seen := cleaned{make(chan struct{}, 100)}
				l := open(t, at(proxy.Addr(), mode), fencelock.WithTTL(3*time.Second), fencelock.WithObserver(seen))
				name := fmt.Sprint(mode, cut)
				le, _ := noted(t, l, name)
				standby(t, p, "nobody")
				t.Cleanup(func() { standby(t, p, "") }) // or nothing ends
				await(t, 20*time.Second, "a COMMIT waits", func() bool {
					_, err := pool(t, s, "").Exec(within(t, 300*time.Millisecond), "CREATE TEMP TABLE x (n int)")
					return err != nil
				})
				done := make(chan error, 1)
				go func() { done <- le.Unlock(within(t, 2*time.Second)) }()
				await(t, 10*time.Second, "the COMMIT waits", func() bool {
					return one[int](t, p, "SELECT count(*) FROM pg_stat_activity "+
						"WHERE wait_event = 'SyncRep' AND application_name LIKE 'fl %'") == 1
				})
				if cut {
					proxy.Cut() // pgx cancels what was under way
				}
				want(t, "Unlock", <-done, fencelock.ErrUnavailable)
				lost(t, le, 20*time.Second)
				if !cut {
					// Tries to clean up are under way, and none ends the wait.
					for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
						if n := notes(t, p, name); n != 0 {
							t.Fatal("what the standby does not have is shown")
						}
					}
				}
				for range 3 {
					want(t, "Unlock", le.Unlock(within(t, time.Second)), fencelock.ErrUnavailable)
				}
				standby(t, p, "")
				err := le.Unlock(within(t, 20*time.Second))
				for errors.Is(err, fencelock.ErrUnavailable) && t.Context().Err() == nil {
					err = le.Unlock(within(t, 20*time.Second))
				}
				must(t, err)
				wantNotes(t, p, name, 1)
			})
		}
	}
}
