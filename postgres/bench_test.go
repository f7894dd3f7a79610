package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// BenchmarkCycle locks and unlocks free names, in turn with the recipe by hand (SELECT … FOR UPDATE
// on a row that is there, and COMMIT) on the same pool, and reports our rate as a ratio to that.
func BenchmarkCycle(b *testing.B) {
	s := servers.Postgres(b, servers.PostgresOptions{})
	for _, mode := range modes {
		for _, workers := range []int{1, 64} {
			b.Run(fmt.Sprintf("backend=postgres-%s/op=cycle/workers=%d", mode, workers), func(b *testing.B) {
				benchmarkCycle(b, s, mode, workers)
			})
		}
	}
}

func benchmarkCycle(b *testing.B, s *servers.PostgresServer, mode postgres.Mode, workers int) {
	pool, err := pgxpool.New(b.Context(), s.URL()+"&pool_max_conns=66")
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	d, err := postgres.New(pool, &postgres.Options{Mode: mode})
	if err != nil {
		b.Fatal(err)
	}
	l, err := fencelock.New(d)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if _, err := pool.Exec(b.Context(), "CREATE TABLE IF NOT EXISTS by_hand (name text PRIMARY "+
		"KEY); INSERT INTO by_hand SELECT 'n' || i FROM generate_series(0, 1000) i ON CONFLICT DO "+
		"NOTHING", pgx.QueryExecModeSimpleProtocol); err != nil {
		b.Fatal(err)
	}
	ours := func(ctx context.Context, name string) error {
		le, err := l.Mutex(name).Lock(ctx)
		if err == nil {
			err = le.Unlock(ctx)
		}
		return err
	}
	byHand := func(ctx context.Context, name string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT FROM by_hand WHERE name = $1 FOR UPDATE", name)
			return err
		})
	}
	// crowd runs n cycles with all workers, each with a name of its own, and returns how long that
	// took.
	crowd := func(n int, cycle func(context.Context, string) error) time.Duration {
		var wg sync.WaitGroup
		var left atomic.Int64
		left.Store(int64(n))
		began := time.Now()
		for i := range workers {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					if err := cycle(b.Context(), fmt.Sprint("n", i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return time.Since(began)
	}
	crowd(4*workers, ours)
	crowd(4*workers, byHand)
	b.ReportAllocs()
	var mine, base time.Duration
	n := 0
	for b.Loop() {
		mine += crowd(10*workers, ours)
		b.StopTimer()
		base += crowd(10*workers, byHand)
		n += 10 * workers
		b.StartTimer()
	}
	b.ReportMetric(float64(base)/float64(mine), "ratio-to-raw")
	b.ReportMetric(float64(n)/mine.Seconds(), "cycles/s")
}
