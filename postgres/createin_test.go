package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/internal/servers"
)

// endedUnheard has ended, and nobody was told: a context that ends just when a connection is had.
type endedUnheard struct{ context.Context }

func (endedUnheard) Err() error            { return context.Canceled }
func (endedUnheard) Done() <-chan struct{} { return nil }

// A first call whose ctx ends when it has its connection gives that back, or Close waits for ever.
func TestFirstCallGivesItsConnectionBack(t *testing.T) {
	s := servers.Postgres(t, servers.PostgresOptions{})
	pool, err := pgxpool.New(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	d, err := New(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = d.st.createIn(endedUnheard{t.Context()}, "") // whatever comes of it
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Close waits for a connection that nobody has")
	}
}
