package bench_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench"
)

// allStores are the stores of every backend.
var allStores = append(
	slices.Clip(backends),
	named{"zookeeper", func(t testing.TB) store { return zooKeeperStore(t, false) }},
	named{"postgres-row", func(tb testing.TB) store { return postgresStore(tb, "row") }},
	named{"postgres-lease", func(tb testing.TB) store { return postgresStore(tb, "lease") }},
	named{"redlock", redlockStore},
)

// BenchmarkBackends measures every row of every backend, ours and raw in turns, under names that
// benchstat lines up: backend=redis/op=cycle/goroutines=64. A row is measured once, however large
// b.N: its rounds are of 200 ms. So ns/op would mean nothing and is left out; cycles/s and the
// like, p50-us, p99-us, allocs, CPU and the ratio to the raw store stand there.
func BenchmarkBackends(b *testing.B) {
	const held = 1000
	for _, s := range allStores {
		b.Run("backend="+s.name, func(b *testing.B) {
			target := bench.Target{URL: s.open(b).url}
			for _, c := range bench.Cases(backend.TraitsOf(s.name), held) {
				b.Run("op="+c.Name(), func(b *testing.B) {
					o := bench.Options{
						Only: []string{c.Name()}, Duration: 200 * time.Millisecond, Rounds: 3,
						Held: held,
					}
					rows, err := bench.Run(b.Context(), []bench.Target{target}, o)
					if err != nil {
						b.Fatal(err)
					}
					for b.Loop() { // measured above, in turns
					}
					b.ReportMetric(0, "ns/op")
					report(b, rows[0])
				})
			}
		})
	}
}

func report(b *testing.B, r bench.Result) {
	b.ReportMetric(r.Rate, strings.ReplaceAll(r.Unit, "1/p50", "handovers/s"))
	b.ReportMetric(r.P50, "p50-us")
	b.ReportMetric(r.P99, "p99-us")
	for unit, v := range map[string]*float64{
		"ratio-to-raw": r.Ratio, "allocs/cycle": r.AllocsPerOp, "cpu-us/cycle": r.CPUPerOp,
		"commands/cycle": r.CommandsPerOp, "fairness": r.Fairness,
	} {
		if v != nil {
			b.ReportMetric(*v, unit)
		}
	}
}
