package deploy_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.yaml.in/yaml/v4"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/metrics/prometheus"
)

// promtool runs promtool in the folder of the rules.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, servers.Program(t, "prometheus", "promtool"), args...)
	cmd.Dir = "prometheus"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestAlertRules(t *testing.T) { promtool(t, "test", "rules", "alerts_test.yml") }
func TestAlertRulesAreFit(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yml")
}
func TestConfigOfCompose(t *testing.T) { promtool(t, "check", "config", "prometheus.yml") }

// The names and the help of our metrics are as Prometheus' linter wants them.
func TestMetricsAreFit(t *testing.T) {
	reg := client.NewRegistry()
	c := prometheus.New(nil)
	reg.MustRegister(c)
	c.Observe(t.Context(), fencelock.Event{Kind: fencelock.Acquired, Backend: "redis", Name: "a/1"})
	scraped := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).
		ServeHTTP(scraped, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if !strings.Contains(scraped.Body.String(), "distributed_lock_wait_seconds_bucket") {
		t.Fatalf("got %s", scraped.Body)
	}
	cmd := exec.CommandContext(t.Context(), servers.Program(t, "prometheus", "promtool"), "check", "metrics")
	cmd.Stdin = scraped.Body
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// Every alert has a unit test in which it fires, one in which it does not, and a section that its runbook_url leads to.
func TestEveryAlertIsTestedAndExplained(t *testing.T) {
	raw, err := os.ReadFile("prometheus/alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			Cases []struct {
				Alert string `yaml:"alertname"`
				Want  []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Load(raw, &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.Cases {
			fires[c.Alert] = fires[c.Alert] || len(c.Want) > 0
			silent[c.Alert] = silent[c.Alert] || len(c.Want) == 0
		}
	}
	doc, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range alerts(t) {
		if !fires[name] || !silent[name] {
			t.Errorf("%s: its unit tests make it fire: %v, and keep it silent: %v; want both",
				name, fires[name], silent[name])
		}
		if !strings.Contains(string(doc), "\n### "+name+"\n") {
			t.Errorf("docs/operating.md has no section %q", name)
		}
		want := "/docs/operating.md#" + strings.ToLower(name)
		if !strings.HasSuffix(r.Annotations["runbook_url"], want) {
			t.Errorf("%s: its runbook_url is %q, want one that ends in %q", name, r.Annotations["runbook_url"], want)
		}
		if r.Annotations["summary"] == "" || r.Labels["severity"] != "warning" && r.Labels["severity"] != "critical" {
			t.Errorf("%s: got labels %v, annotations %v, want a summary and a severity", name, r.Labels, r.Annotations)
		}
	}
}
