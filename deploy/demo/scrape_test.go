package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/deploy/internal/prom"
	"github.com/fencelock/fencelock/internal/leaks"
	"github.com/fencelock/fencelock/internal/servers"
)

// most bounds the whole test.
const most = 55 * time.Second

// envDemo makes the test program the demo.
const envDemo = "FENCELOCK_TEST_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(envDemo) != "" {
		main()
		return
	}
	leaks.Main(m, 3, 5*time.Second)
}

// start runs the demo as a process of its own, until the test ends, and returns its address and the process.
func start(t *testing.T, args ...string) (string, *os.Process) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{"-listen=127.0.0.1:0", "-list=500ms"}, args...)...)
	cmd.Env = append(os.Environ(), envDemo+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the demo: %v", err)
		}
		if t.Failed() {
			t.Logf("the log of the demo ends with:\n%s", log.String()[max(0, log.Len()-4000):])
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() { ended <- cmd.Wait() }()
	_, addr, ok := strings.Cut(line, "http://")
	if err != nil || !ok {
		t.Fatalf("the demo said %q, %v", line, err)
	}
	return strings.TrimSuffix(strings.TrimSpace(addr), "/metrics"), cmd.Process
}

// A real process on a real Redis is scraped by a real Prometheus, which answers every query of the
// dashboard and fires the alerts when a lease is lost.
func TestScrape(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	t.Cleanup(cancel)
	servers.Program(t, "prometheus", "prometheus")
	redis := servers.Redis(t, servers.RedisOptions{})
	target, _ := start(t, redis.URL())
	p := prom.Start(t, config(t, target))

	p.Await(ctx, "the lock metrics", func(ctx context.Context) error {
		return atLeast(ctx, p, `distributed_lock_wait_seconds_count{backend="redis", resource="orders"}`, 5)
	})
	p.Await(ctx, "the leader's lease", func(ctx context.Context) error {
		return atLeast(ctx, p, `distributed_lock_held{backend="redis", resource="jobs"}`, 1)
	})

	// What goes wrong: an operator breaks the leader's lock, and somebody sets a key that never expires.
	l, err := fencelock.Open(ctx, redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := l.Break(ctx, "jobs/leader"); err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(&goredis.Options{Addr: redis.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Set(ctx, backend.DefaultPrefix+"orders/leaked", "somebody", 0).Err(); err != nil {
		t.Fatal(err)
	}
	p.Await(ctx, "the alert of the loss", func(ctx context.Context) error {
		return alerting(ctx, p, "FencelockLostLeases", "firing",
			map[string]string{"backend": "redis", "resource": "jobs", "reason": "revoked"})
	})
	p.Await(ctx, "the alert of the leak", func(ctx context.Context) error {
		return alerting(ctx, p, "FencelockLeakedLocks", "pending",
			map[string]string{"backend": "redis", "resource": "orders"})
	})
	for _, q := range queries(t) {
		p.Await(ctx, q.panel, func(ctx context.Context) error {
			samples, err := p.Query(ctx, q.expr)
			if err == nil && len(samples) == 0 {
				err = fmt.Errorf("%s: no data", q.expr)
			}
			return err
		})
	}
}

// config is a configuration with our alerts that scrapes one target.
func config(t *testing.T, target string) string {
	t.Helper()
	rules, err := filepath.Abs("../prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`
global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - job_name: fencelock
    static_configs: [{targets: [%q]}]
`, rules, target)
}

// atLeast returns nil when the only sample of an expression has at least this value.
func atLeast(ctx context.Context, p *prom.Server, expr string, least float64) error {
	samples, err := p.Query(ctx, expr)
	if err != nil {
		return err
	}
	if len(samples) != 1 || samples[0].Value < least {
		return fmt.Errorf("%s: got %v, want one sample of at least %v", expr, samples, least)
	}
	return nil
}

// alerting returns nil when there is an alert with these labels in a state.
func alerting(ctx context.Context, p *prom.Server, name, state string, labels map[string]string) error {
	alerts, err := p.Alerts(ctx)
	if err != nil {
		return err
	}
next:
	for _, a := range alerts {
		if a.Labels["alertname"] != name || a.State != state || a.Annotations["summary"] == "" {
			continue
		}
		for k, v := range labels {
			if a.Labels[k] != v {
				continue next
			}
		}
		return nil
	}
	return fmt.Errorf("got %v, want %s %s with %v", alerts, name, state, labels)
}

// query is one of the dashboard.
type query struct{ panel, expr string }

// queries returns those of the dashboard, with values for its variables.
func queries(t *testing.T) []query {
	t.Helper()
	raw, err := os.ReadFile("../grafana/dashboards/fencelock.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	// As Grafana does. The interval is long enough for two samples, the range for all.
	fill := strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h", "$backend", ".*", "$resource", ".*")
	var qs []query
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			qs = append(qs, query{"the data of the panel " + p.Title, fill.Replace(target.Expr)})
		}
	}
	if len(qs) < 20 {
		t.Fatalf("got %d queries, want those of the whole dashboard", len(qs))
	}
	return qs
}

func TestDemoWantsAStore(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "memory://") {
		t.Errorf("got %v, want an error that shows a URL", err)
	}
}
