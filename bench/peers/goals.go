package peers

import (
	"fmt"
	"strings"
)

// A Goal is one figure that we must reach: a ratio of ours to theirs in one experiment, or a figure of ours alone.
type Goal struct {
	ID         string `json:"id"`
	What       string `json:"what"`
	Experiment string `json:"experiment"`
	Metric     Metric `json:"metric"`
	Ours       string `json:"ours"`
	Theirs     string `json:"theirs"` // empty: the figure itself
	// Least or Most bounds it; the other is 0.
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
}

// Bound is the goal in words: "≥ 1.2".
func (g Goal) Bound() string {
	switch {
	case g.Metric == Margin:
		return "> 0"
	case g.Most > 0:
		return "≤ " + short(g.Most)
	}
	return "≥ " + short(g.Least)
}

// State is what a figure is against the goal: "ok", "90 %" for one that misses it by at most a tenth, or "miss".
func (g Goal) State(figure float64) string {
	switch {
	case g.Metric == Margin:
		if figure > 0 {
			return "ok"
		}
		return "miss"
	case g.Most > 0 && figure <= g.Most, g.Most == 0 && figure >= g.Least:
		return "ok"
	case g.Most > 0 && figure <= g.Most/0.9, g.Most == 0 && figure >= g.Least*0.9:
		return "90 %"
	}
	return "miss"
}

// Goals returns them all. R is Redis and Redlock, E etcd, Z ZooKeeper, P Postgres, F what faults cost.
func Goals() []Goal {
	var all []Goal
	faster := func(id, what, experiment, ours, theirs string, least float64) {
		all = append(all, Goal{id, what, experiment, Rate, ours, theirs, least, 0})
	}
	less := func(id, what, experiment string, m Metric, ours, theirs string, most float64) {
		all = append(all, Goal{id, what, experiment, m, ours, theirs, 0, most})
	}
	redisGoals(faster, less)
	all = append(all, Goal{"R6", "fairness across processes", "redis contended 4×8", Fair, "fencelock redis each", "", 0.98, 0})
	otherGoals(faster, less)
	all = append(all, Goal{"F1", "the holder is told before the takeover, worst of all black holes, µs", "redis black hole", Margin, "fencelock redis", "", 0, 0})
	less("F2", "one of five nodes hangs: lock, renew, unlock", "redlock hung node", Slower, "fencelock redlock", "", 1.5)
	return all
}

type (
	fasterGoal func(id, what, experiment, ours, theirs string, least float64)
	lessGoal   func(id, what, experiment string, m Metric, ours, theirs string, most float64)
)

func redisGoals(faster fasterGoal, less lessGoal) {
	const us, each = "fencelock redis", "fencelock redis each"
	const cycle1, cycle64, cycle512, crowd, work = "redis cycle 1", "redis cycle 64", "redis cycle 512", "redis contended 4×8", "redis contended 4×8, 200 µs"
	faster("R1", "1 goroutine", cycle1, us, "raw redis", 0.85)
	less("R2", "allocations, 1 goroutine", cycle1, Allocs, us, "", 30)
	faster("R3", "64 goroutines", cycle64, us, "raw redis", 1.2)
	faster("R3", "64 goroutines", cycle64, us, "rueidislock", 1.2)
	faster("R3", "64 goroutines", cycle64, us, "redsync", 2)
	faster("R4", "512 goroutines", cycle512, us, "raw redis", 1.7)
	faster("R4", "512 goroutines", cycle512, us, "redislock", 2.2)
	faster("R5", "five nodes, 1 goroutine", "redlock cycle 1", "fencelock redlock", "redsync", 1)
	faster("R5", "five nodes, 64 goroutines", "redlock cycle 64", "fencelock redlock", "redsync", 2.5)
	faster("R5", "five nodes, 512 goroutines", "redlock cycle 512", "fencelock redlock", "redsync", 3.3)
	faster("R6", "contended, through the store", crowd, each, "rueidislock", 1.6)
	less("R6", "p99 of the wait", crowd, P99, each, "rueidislock", 0.4)
	less("R6", "requests a grant", crowd, Requests, each, "", 3)
	faster("R7", "contended, handed over in the process", crowd, us, "rueidislock", 20)
	faster("R7", "the same, a section of 200 µs", work, us, "rueidislock", 1.5)
	less("R8", "hand-over, p50", "redis hand-over", P50, us, "raw redis pub/sub", 1.15)
	less("R8", "hand-over, p50", "redis hand-over", P50, us, "redislock", 1./50)
	less("R9", "held and renewed: CPU", "redis held", CPU, us, "redislock", 1./4)
	less("R9", "held and renewed: memory", "redis held", Bytes, us, "redislock", 1./5)
	less("R9", "held and renewed: goroutines", "redis held", Goroutines, us, "", 10)
	less("R9", "held and renewed: requests", "redis held", Requests, us, "redislock", 1./100)
}

func otherGoals(faster fasterGoal, less lessGoal) {
	for i, least := range []float64{0.9, 1.4, 1.5} {
		faster("E1", plural(i), "etcd cycle "+size(i), "fencelock etcd", "etcd mutex", least)
	}
	const crowd, work = " contended 4×8", " contended 4×8, 200 µs"
	faster("E2", "contended 4×8, through the store", "etcd"+crowd, "fencelock etcd each", "etcd mutex each", 2)
	faster("E2", "contended 1×16, through the store", "etcd contended 1×16", "fencelock etcd each", "etcd mutex each", 4)
	less("E2", "messages a grant, 4×8", "etcd"+crowd, Requests, "fencelock etcd each", "", 2.5)
	less("E2", "messages a grant, 1×16", "etcd contended 1×16", Requests, "fencelock etcd each", "", 2.5)
	less("E3", "hand-over, p50, held under 100 ms", "etcd hand-over", P50, "fencelock etcd", "raw etcd", 1)
	less("E3", "hand-over, p50, held under 100 ms", "etcd hand-over", P50, "fencelock etcd", "etcd mutex each", 1./25)
	faster("E4", "contended, handed over in the process", "etcd"+crowd, "fencelock etcd", "etcd mutex each", 50)
	faster("E4", "the same, a section of 200 µs", "etcd"+work, "fencelock etcd", "etcd mutex each", 8)

	for i, least := range []float64{0.95, 3.5, 3.5} {
		faster([]string{"Z1", "Z2", "Z2"}[i], plural(i), "zookeeper cycle "+size(i), "fencelock zookeeper", "zk.Lock", least)
	}
	faster("Z3", "contended, through the store", "zookeeper"+crowd, "fencelock zookeeper each", "zk.Lock", 0.95)
	faster("Z3", "contended, handed over in the process", "zookeeper"+crowd, "fencelock zookeeper", "zk.Lock", 20)

	faster("P1", "row, 1 goroutine, asynchronous commit", "postgres-async cycle 1", "fencelock postgres row", "for update", 1)
	faster("P2", "lease, 1 goroutine", "postgres cycle 1", "fencelock postgres lease", "pglock", 2.3)
	faster("P2", "lease, 1 goroutine, asynchronous commit", "postgres-async cycle 1", "fencelock postgres lease", "pglock", 3.5)
	for i := 1; i <= 2; i++ {
		faster("P3", "lease, "+plural(i), "postgres cycle "+size(i), "fencelock postgres lease", "pglock", 4.5)
		faster("P3", "lease, "+plural(i), "postgres cycle "+size(i), "fencelock postgres lease", "for update", 1.4)
	}
	faster("P4", "row, contended, through the store", "postgres"+crowd, "fencelock postgres row each", "advisory lock", 0.95)
	faster("P4", "lease, contended, handed over in the process", "postgres"+crowd, "fencelock postgres lease", "advisory lock", 20)
	less("P5", "row, hand-over, p50", "postgres hand-over", P50, "fencelock postgres row", "for update", 1.3)
}

func size(i int) string { return []string{"1", "64", "512"}[i] }

func plural(i int) string { return []string{"1 goroutine", "64 goroutines", "512 goroutines"}[i] }

// short shows three digits.
func short(v float64) string {
	if v != 0 && v < 0.1 && v > -0.1 {
		return strings.TrimRight(fmt.Sprintf("%.4f", v), "0")
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".")
}
