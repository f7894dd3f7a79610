package otel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/metrics/prometheus"
)

// Both exporters say the same of the same events, under names that a translation makes equal.
func TestTheSameNumbersAsPrometheus(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		for _, watch := range []func(
			context.Context, *fencelock.Locker, string, time.Duration,
		) error{r.otel.Watch, r.prom.Watch} {
			go func() { _ = watch(t.Context(), r.Locker, "", time.Hour) }()
		}
		synctest.Wait() // both have looked, and seen the same
		le, err := r.Mutex("a/1").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Mutex("a/1").TryLock(t.Context())
		if !errors.Is(err, fencelock.ErrLocked) {
			t.Errorf("got %v, want locked", err)
		}
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err = r.Mutex("a/1").Lock(short); !errors.Is(err, fencelock.ErrLocked) {
			t.Errorf("got %v, want locked", err)
		}
		_, _ = r.Mutex("\x00").Lock(t.Context())
		time.Sleep(30 * time.Second)
		if err := le.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		_ = le.Unlock(t.Context())
		lost, err := r.Mutex("b/1").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.store.down.Store(true)
		<-lost.Done()
		r.store.down.Store(false)
		_, _ = r.Mutex("c/1", fencelock.WithMaxHold(time.Second)).Lock(t.Context())
		if _, err := r.Mutex("held").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = r.Mutex("held").Lock(t.Context()) }()
		time.Sleep(time.Minute)
		synctest.Wait()

		want, got := fromPrometheus(t, r.prom), fromOTel(t, r)
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if d := got[k] - want[k]; d > 1e-9 || d < -1e-9 { // what was never counted is 0 there, and nothing here
				t.Errorf("%s: got %v, want %v", k, got[k], want[k])
			}
		}
		for _, k := range slices.Sorted(maps.Keys(got)) {
			if _, ok := want[k]; !ok {
				t.Errorf("%s: Prometheus has no such series", k)
			}
		}
		names := map[string]bool{}
		for k, v := range want {
			name, _, _ := strings.Cut(k, "{")
			name, _, _ = strings.Cut(name, "_le_")
			names[name] = names[name] || v != 0 && got[k] != 0
		}
		for name, counted := range names {
			if zero := strings.HasSuffix(name, "_clock_jumps_total") ||
				strings.HasSuffix(name, "_leaked") ||
				strings.HasSuffix(name, "_lost_late_total"); !counted && !zero {
				t.Errorf("%s: nothing was counted, so nothing was compared", name)
			}
		}
	})
}

func fromPrometheus(t *testing.T, c *prometheus.Collector) map[string]float64 {
	t.Helper()
	reg := client.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ns := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if h := m.GetHistogram(); h != nil {
				ns[key(f.GetName()+"_count", labels)] = float64(h.GetSampleCount())
				ns[key(f.GetName()+"_sum", labels)] = h.GetSampleSum()
				for _, b := range h.GetBucket() {
					bucket := key(fmt.Sprint(f.GetName(), "_le_", b.GetUpperBound()), labels)
					ns[bucket] = float64(b.GetCumulativeCount())
				}
				continue
			}
			ns[key(f.GetName(), labels)] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return ns
}

func fromOTel(t *testing.T, r *rig) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	ns := map[string]float64{}
	for _, s := range all.ScopeMetrics {
		if s.Scope.Name != "github.com/fencelock/fencelock/metrics/otel" {
			t.Errorf("got scope %q", s.Scope.Name)
		}
		for _, m := range s.Metrics {
			// What an exporter to Prometheus makes of a name and a unit.
			name := strings.ReplaceAll(m.Name, ".", "_")
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				if m.Unit != "s" {
					t.Errorf("%s: got unit %q, want seconds", m.Name, m.Unit)
				}
				name += "_seconds"
				for _, p := range data.DataPoints {
					ns[key(name+"_count", labels(p.Attributes))] = float64(p.Count)
					ns[key(name+"_sum", labels(p.Attributes))] = p.Sum
					sum := uint64(0)
					for i, b := range p.Bounds {
						sum += p.BucketCounts[i]
						ns[key(fmt.Sprint(name, "_le_", b), labels(p.Attributes))] = float64(sum)
					}
				}
			case metricdata.Sum[int64]:
				if data.IsMonotonic {
					name += "_total"
				}
				for _, p := range data.DataPoints {
					ns[key(name, labels(p.Attributes))] = float64(p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					ns[key(name, labels(p.Attributes))] = float64(p.Value)
				}
			default:
				t.Errorf("%s: unexpected data %T", m.Name, data)
			}
		}
	}
	return ns
}

func labels(set attribute.Set) map[string]string {
	by := map[string]string{}
	for _, kv := range set.ToSlice() {
		by[string(kv.Key)] = kv.Value.AsString()
	}
	return by
}

func key(name string, labels map[string]string) string {
	var all []string
	for _, l := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, l+"="+labels[l])
	}
	return name + "{" + strings.Join(all, ",") + "}"
}

func TestCloseEndsWhatIsLookedUp(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		if _, ok := fromOTel(t, r)["distributed_lock_clock_jumps_total{direction=forward}"]; !ok {
			t.Error("clock jumps are not exported")
		}
		if err := r.otel.Close(); err != nil {
			t.Error(err)
		}
		if _, ok := fromOTel(t, r)["distributed_lock_clock_jumps_total{direction=forward}"]; ok {
			t.Error("clock jumps are exported after Close")
		}
	})
}
