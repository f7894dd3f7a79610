package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// random is so many bytes that nothing compresses.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return string(b)
}

func checkToken(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	check := func(ctx context.Context, resource string, token fencelock.Token) error {
		return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error { return postgres.CheckToken(ctx, tx, resource, token) })
	}
	want(t, "without the table", check(t.Context(), "a", 1), fencelock.ErrInvalid)
	conn, err := p.Acquire(t.Context())
	must(t, err)
	must(t, postgres.CreateSchema(t.Context(), conn.Conn(), ""))
	must(t, postgres.CreateSchema(t.Context(), conn.Conn(), ""))
	conn.Release()
	for _, tt := range []struct {
		what     string
		resource string
		token    fencelock.Token
		want     error
	}{
		{"first", "a", 5, nil},
		{"equal: the same holder again", "a", 5, nil},
		{"lower", "a", 4, fencelock.ErrStale},
		{"another resource", "b/'\"\\é", 1, nil},
		{"higher", "a", 9, nil},
		{"what was the highest before", "a", 5, fencelock.ErrStale},
		{"no token", "a", 0, fencelock.ErrInvalid},
		{"a long resource", random(2600), 1, nil},
		{"one that is too long", random(8000), 1, fencelock.ErrInvalid},
	} {
		if got := check(t.Context(), tt.resource, tt.token); !errors.Is(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.what, got, tt.want)
		}
	}
	var stale *fencelock.StaleError
	if err := check(t.Context(), "a", 1); !errors.As(err, &stale) || stale.Max != 9 {
		t.Errorf("got %v, want a StaleError with Max 9", err)
	}
	// A check that is rolled back has seen nothing.
	tx, err := p.Begin(t.Context())
	must(t, err)
	must(t, postgres.CheckToken(t.Context(), tx, "a", 100))
	must(t, tx.Rollback(t.Context()))
	must(t, check(t.Context(), "a", 9))
}

// The check and what follows it in the transaction are one step: among writers with different
// tokens the value never goes back, whether they read it or write it.
func checkTokenIsAtomic(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "&pool_max_conns=10")
	conn, err := p.Acquire(t.Context())
	must(t, err)
	must(t, postgres.CreateSchema(t.Context(), conn.Conn(), ""))
	conn.Release()
	run(t, p, "CREATE TABLE account (token bigint, n int); INSERT INTO account VALUES (0, 0)")
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for token := fencelock.Token(1); token <= 20; token++ {
		wg.Go(func() {
			for range 5 {
				err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
					if err := postgres.CheckToken(t.Context(), tx, "account", token); err != nil {
						return err
					}
					var seen fencelock.Token
					var n int
					if err := tx.QueryRow(t.Context(), "SELECT token, n FROM account").Scan(&seen, &n); err != nil {
						return err
					}
					if seen > token {
						t.Errorf("token %d was let through after %d", token, seen)
					}
					_, err := tx.Exec(t.Context(), "UPDATE account SET token = $1, n = $2", token, n+1)
					return err
				})
				switch {
				case err == nil:
					mu.Lock()
					done++
					mu.Unlock()
				case !errors.Is(err, fencelock.ErrStale):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := one[int](t, p, "SELECT n FROM account"); n != done {
		t.Errorf("%d increments were acknowledged, %d are there", done, n)
	}
}
