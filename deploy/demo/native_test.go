package main

import (
	"context"
	"testing"

	"github.com/fencelock/fencelock/deploy/internal/prom"
	"github.com/fencelock/fencelock/internal/servers"
)

// A Prometheus that takes native histograms gets them.
func TestScrapeOfNativeHistograms(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	t.Cleanup(cancel)
	servers.Program(t, "prometheus", "prometheus")
	target, _ := start(t, "memory://")
	p := prom.Start(t, config(t, target), "--enable-feature=native-histograms")
	for _, expr := range []string{
		`histogram_count(distributed_lock_wait_seconds{backend="memory", resource="orders"})`,
		`histogram_count(distributed_lock_hold_seconds{backend="memory", resource="orders"})`,
	} {
		p.Await(ctx, expr, func(ctx context.Context) error { return atLeast(ctx, p, expr, 5) })
	}
}
