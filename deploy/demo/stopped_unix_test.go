//go:build unix

package main

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/deploy/internal/prom"
	"github.com/fencelock/fencelock/internal/servers"
)

// A process that was stopped for longer than its lease hears of the loss too late, and that is an alert of its own.
func TestScrapeOfAProcessThatWasStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	t.Cleanup(cancel)
	servers.Program(t, "prometheus", "prometheus")
	const ttl = 2 * time.Second
	target, demo := start(t, "-ttl="+ttl.String(), "memory://")
	p := prom.Start(t, config(t, target))
	p.Await(ctx, "the leader's lease", func(ctx context.Context) error {
		return atLeast(ctx, p, `distributed_lock_held{backend="memory", resource="jobs"}`, 1)
	})
	if err := demo.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(ttl + ttl/2)
	if err := demo.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.Await(ctx, "the alert of the late loss", func(ctx context.Context) error {
		return alerting(ctx, p, "FencelockLateLoss", "firing",
			map[string]string{"backend": "memory", "resource": "jobs", "instance": target})
	})
	p.Await(ctx, "the negative margin", func(ctx context.Context) error {
		return atLeast(ctx, p, `distributed_lock_loss_margin_seconds_bucket{resource="jobs", le="0"}`, 1)
	})
}
