package peers

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/performance.md")

const (
	beginSummary = "<!-- BEGIN summary: cd bench/peers && go test -run TestSummary -update . -->\n"
	endSummary   = "<!-- END summary -->"
)

// A pair is a row of the summary: ours beside theirs, on the experiments of one store.
type pair struct{ store, ours, theirs, label string }

var pairs = []pair{
	{"redis", "fencelock redis", "raw redis", "Redis, raw: `SET NX PX` and a script that deletes"},
	{"redis", "fencelock redis", "raw redis pub/sub", "Redis, raw, with a message to the waiter"},
	{"redis", "fencelock redis", "redsync", "Redis, redsync"},
	{"redis", "fencelock redis", "redislock", "Redis, redislock"},
	{"redis", "fencelock redis", "rueidislock", "Redis, rueidislock"},
	{"redlock", "fencelock redlock", "redsync", "Redlock of five, redsync"},
	{"etcd", "fencelock etcd", "raw etcd", "etcd, raw: put if absent, delete, watch"},
	{"etcd", "fencelock etcd", "etcd mutex", "etcd, `concurrency.Mutex`"},
	{"zookeeper", "fencelock zookeeper", "zk.Lock", "ZooKeeper, go-zookeeper's `Lock`"},
	{"postgres", "fencelock postgres lease", "pglock", "Postgres `lease`, pglock"},
	{"postgres", "fencelock postgres lease", "for update", "Postgres `lease`, `FOR UPDATE`"},
	{"postgres-async", "fencelock postgres row", "for update", "Postgres `row`, `FOR UPDATE`, asynchronous commit"},
	{"postgres", "fencelock postgres row", "for update", "Postgres `row`, `FOR UPDATE`"},
	{"postgres", "fencelock postgres row", "advisory lock", "Postgres `row`, an advisory lock"},
}

// median finds a library's median in an experiment; 0 if it was not measured.
func (r Report) median(experiment, library string, of Metric) float64 {
	for _, name := range []string{library, library + " each"} { // some have a client for every goroutine only
		for _, m := range r.Measured {
			if m.Experiment == experiment && m.Library == name {
				v, _ := m.Median(of)
				return v
			}
		}
	}
	return 0
}

// times is how many times as fast ours was, in the runs: the least and the greatest.
func (p pair) times(runs []Report, experiment, ours string, of Metric) string {
	var all []float64
	for _, r := range runs {
		a, b := r.median(experiment, ours, of), r.median(experiment, p.theirs, of)
		switch {
		case a <= 0 || b <= 0:
		case of == Rate:
			all = append(all, a/b)
		default:
			all = append(all, b/a)
		}
	}
	return spread(all)
}

func spread(all []float64) string {
	if len(all) == 0 {
		return "–"
	}
	low, high := all[0], all[0]
	for _, v := range all {
		low, high = min(low, v), max(high, v)
	}
	if big(low) == big(high) {
		return big(low)
	}
	return big(low) + "–" + big(high)
}

// summary is what docs/performance.md shows of the runs.
func summary(runs []Report) string {
	var b strings.Builder
	row(&b, "beside", "1 goroutine", "64", "512", "contended, through the store", "contended, passed on", "hand-over")
	b.WriteString(strings.Repeat("|---", 7) + "|\n")
	for _, p := range pairs {
		cells := []string{p.label}
		for _, n := range []int{1, 64, 512} {
			cells = append(cells, p.times(runs, cycle(p.store, n).Name, p.ours, Rate))
		}
		crowd := p.store + " contended 4×8"
		passed := "–"
		if p.ours != "fencelock postgres row" { // which passes nothing on
			passed = p.times(runs, crowd, p.ours, Rate)
		}
		row(&b,
			append(cells, p.times(runs, crowd, p.ours+" each", Rate),
				passed, p.times(runs, p.store+" hand-over", p.ours, P50))...)
	}
	b.WriteString("\n")
	row(&b, "one lock, 4 processes × 8 goroutines, Redis", "grants a second", "p50 of the wait, ms",
		"p99, ms", "fairness", "waiters never woken")
	b.WriteString(strings.Repeat("|---", 6) + "|\n")
	for _, l := range []string{"fencelock redis each", "fencelock redis", "redsync", "redislock", "rueidislock"} {
		figures := map[Metric][]float64{}
		for _, r := range runs {
			if r.median("redis contended 4×8", l, Rate) == 0 {
				continue // it was not measured
			}
			for _, of := range []Metric{Rate, P50, P99, Fair, Stuck} {
				figures[of] = append(figures[of], r.median("redis contended 4×8", l, of))
			}
		}
		label := map[string]string{
			"fencelock redis":      "Fencelock, passed on within a process",
			"fencelock redis each": "Fencelock, through the store",
		}[l]
		if label == "" {
			label = l
		}
		row(&b, label, spread(figures[Rate]), spread(thousandths(figures[P50])),
			spread(thousandths(figures[P99])), spread(figures[Fair]), spread(figures[Stuck]))
	}
	b.WriteString("\n")
	row(&b, "what else", "measured")
	b.WriteString("|---|---|\n")
	for _, of := range []struct{ id, what, label string }{
		{"R9", "held and renewed: CPU", "10,000 held leases: CPU, of redislock's with a goroutine each"},
		{"R9", "held and renewed: memory", "memory, of redislock's"},
		{"R9", "held and renewed: requests", "requests, of redislock's"},
		{"F1", "", "a Redis that goes silent: how long before the takeover the holder is told, worst case, ms"},
		{"F2", "", "one of five Redlock nodes hangs: lock, renew and unlock, against all five up"},
	} {
		var figures []float64
		for _, r := range runs {
			for _, s := range r.Scores {
				if s.ID == of.id && (of.what == "" || s.What == of.what) && s.Rounds > 0 {
					figures = append(figures, s.Figure)
				}
			}
		}
		if of.id == "F1" {
			figures = thousandths(figures)
		}
		row(&b, of.label, spread(figures))
	}
	return b.String()
}

func thousandths(all []float64) []float64 {
	var out []float64
	for _, v := range all {
		out = append(out, v/1000)
	}
	return out
}

// TestSummary: docs/performance.md shows what the kept runs have measured.
func TestSummary(t *testing.T) {
	paths, err := filepath.Glob("runs/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no runs: %v", err)
	}
	rep, err := Read(paths...)
	if err != nil {
		t.Fatal(err)
	}
	want := summary(append([]Report{rep}, rep.Others...))
	const path = "../../docs/performance.md"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(data), beginSummary)
	got, after, ended := strings.Cut(rest, endSummary)
	if !begun || !ended {
		t.Fatalf("%s has no %q and %q", path, beginSummary, endSummary)
	}
	if *update {
		if err := os.WriteFile(path,
			fmt.Appendf(nil, "%s%s%s%s%s", before, beginSummary, want, endSummary, after),
			0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s has\n%s\nwant\n%s\n(go test ./bench/peers -run TestSummary -update)", path, got, want)
	}
}
