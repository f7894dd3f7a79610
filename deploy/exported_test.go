package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v4"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/metrics/prometheus"
)

// family is a metric as the Collector exports it.
type family struct {
	histogram bool
	labels    map[string][]string // the values seen
}

// exported returns the metrics of a Collector, by name.
func exported(t *testing.T) map[string]*family {
	t.Helper()
	var families map[string]*family
	synctest.Test(t, func(t *testing.T) {
		c := prometheus.New(nil)
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		l, err := fencelock.New(d, fencelock.WithObserver(c))
		if err != nil {
			t.Fatal(err)
		}
		le, err := l.Mutex("jobs/nightly").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := le.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		watched := make(chan error)
		go func() { watched <- c.Watch(ctx, l, "", time.Hour) }()
		synctest.Wait()
		reg := client.NewRegistry()
		reg.MustRegister(c)
		families = gather(t, reg)
		stop()
		<-watched
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return families
}

func gather(t *testing.T, reg *client.Registry) map[string]*family {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	families := map[string]*family{}
	for _, f := range all {
		fam := &family{labels: map[string][]string{}}
		for _, m := range f.GetMetric() {
			fam.histogram = m.GetHistogram() != nil
			for _, l := range m.GetLabel() {
				fam.labels[l.GetName()] = append(fam.labels[l.GetName()], l.GetValue())
			}
		}
		families[f.GetName()] = fam
	}
	return families
}

var (
	selector = regexp.MustCompile(`\b(distributed_lock_[a-z_]+)(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=|!=|=~|!~)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// base returns the name of the metric that a name in an expression belongs to.
func base(name string, all map[string]*family) (string, bool) {
	if f := all[name]; f != nil {
		return name, !f.histogram
	}
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if b, ok := strings.CutSuffix(name, suffix); ok && all[b] != nil {
			return b, all[b].histogram
		}
	}
	return name, false
}

// problems holds an expression to the metrics: names, labels, and the words that are compared with.
// It adds to used the metrics of the expression.
func problems(expr string, all map[string]*family, used map[string]bool) []string {
	var found []string
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	labels := map[string]bool{"le": true, "instance": true} // Prometheus' own
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		name, ok := base(m[1], all)
		if !ok {
			add("%s is not exported, or not in this form", m[1])
			continue
		}
		used[name] = true
		for l := range all[name].labels {
			labels[l] = true
		}
		for _, x := range matcher.FindAllStringSubmatch(m[2], -1) {
			values, known := all[name].labels[x[1]]
			if !known {
				add("%s has no label %q", name, x[1])
			}
			if own := x[1] != "backend" && x[1] != "resource"; own && known && !slices.Contains(values, x[3]) {
				add("%s has no %s %q, only %q", name, x[1], x[3], values)
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			if !labels[strings.TrimSpace(l)] {
				add("grouped by %q, which none of its metrics has", l)
			}
		}
	}
	if !selector.MatchString(expr) {
		add("%q is about none of our metrics", expr)
	}
	return found
}

// rules are the alerts of alerts.yml.
type rules struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

type rule struct {
	Alert, Expr         string
	For                 string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) map[string]rule {
	t.Helper()
	raw, err := os.ReadFile("prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var rs rules
	if err := yaml.Load(raw, &rs, yaml.WithKnownFields()); err != nil {
		t.Fatal(err)
	}
	by := map[string]rule{}
	for _, g := range rs.Groups {
		for _, r := range g.Rules {
			by[r.Alert] = r
		}
	}
	if len(by) < 8 {
		t.Fatalf("got %d alerts, want all", len(by))
	}
	return by
}

// dashboard is what the tests look at of fencelock.json.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name       string
			Type       string
			Definition string
		}
	}
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, RefID string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	raw, err := os.ReadFile("grafana/dashboards/fencelock.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestWhatIsUsedIsExported(t *testing.T) {
	all, used := exported(t), map[string]bool{}
	for name, r := range alerts(t) {
		for _, p := range problems(r.Expr, all, used) {
			t.Errorf("%s: %s", name, p)
		}
	}
	queries := 0
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			for _, found := range problems(target.Expr, all, used) {
				t.Errorf("panel %q: %s", p.Title, found)
			}
			queries++
		}
	}
	if queries < 20 {
		t.Errorf("looked at %d queries of the dashboard, want all", queries)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !used[name] {
			t.Errorf("%s is exported, and neither the dashboard nor an alert looks at it", name)
		}
	}
}

func TestProblemsAreFound(t *testing.T) {
	all := exported(t)
	for _, expr := range []string{
		`sum(distributed_lock_hold)`,
		`sum(distributed_lock_wait_seconds)`,
		`sum(distributed_lock_held_count)`,
		`sum(distributed_lock_held{name="x"})`,
		`sum(distributed_lock_lost_total{reason="exploded"})`,
		`sum by (owner) (distributed_lock_held)`,
		`up`,
	} {
		if got := problems(expr, all, map[string]bool{}); len(got) != 1 {
			t.Errorf("%s: found %q, want one problem", expr, got)
		}
	}
}
