package peers

import (
	"fmt"
	"strings"
)

// A Goal is one figure that we must reach: a ratio of ours to theirs in one experiment, or a figure
// of ours alone.
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
	// Base is the experiment of theirs, where it is another one.
	Base string `json:"base,omitempty"`
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

// State is what a figure is against the goal: "ok", "90 %" for one that misses it by at most a
// tenth, or "miss".
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

// What many goals name.
const (
	redis, redisEach, redlock = "fencelock redis", "fencelock redis each", "fencelock redlock"
	etcdOurs, etcdEach, etcds = "fencelock etcd", "fencelock etcd each", "etcd mutex each"
	zkOurs, zkEach, zkLock    = "fencelock zookeeper", "fencelock zookeeper each", "zk.Lock"
	pgRow, pgLease            = "fencelock postgres row", "fencelock postgres lease"
	rowEach, leaseEach        = pgRow + " each", pgLease + " each"

	redis4x8, redisWork = "redis contended 4×8", "redis contended 4×8, 200 µs"
	etcd4x8, etcdWork   = "etcd contended 4×8", "etcd contended 4×8, 200 µs"
	zk4x8, postgres4x8  = "zookeeper contended 4×8", "postgres contended 4×8"
	free1, free64       = "1 goroutine", "64 goroutines"
	free512, async      = "512 goroutines", "asynchronous commit"
	through, here       = "contended, through the store", "contended, handed over in the process"
	work, passed        = "the same, a section of 200 µs", "hand-over, p50"
	short100            = "hand-over, p50, held under 100 ms"
)

// Goals returns them all. R is Redis and Redlock, E etcd, Z ZooKeeper, P Postgres, F what faults
// cost, C what a start costs. Tests of the root module hold the goals about the modules that a program gets.
func Goals() []Goal {
	return []Goal{
		{"R1", free1, "redis cycle 1", Rate, redis, "raw redis", 0.85, 0, ""},
		{"R2", "allocations, " + free1, "redis cycle 1", Allocs, redis, "", 0, 25, ""},
		{"R3", free64, "redis cycle 64", Rate, redis, "raw redis", 1.5, 0, ""},
		{"R3", free64, "redis cycle 64", Rate, redis, "rueidislock", 1.3, 0, ""},
		{"R3", free64, "redis cycle 64", Rate, redis, "redsync", 2.2, 0, ""},
		{"R4", free512, "redis cycle 512", Rate, redis, "raw redis", 2.2, 0, ""},
		{"R4", free512, "redis cycle 512", Rate, redis, "redislock", 2.4, 0, ""},
		{"R5", "five nodes, " + free1, "redlock cycle 1", Rate, redlock, "redsync", 0.9, 0, ""},
		{"R5", "five nodes, " + free64, "redlock cycle 64", Rate, redlock, "redsync", 2.5, 0, ""},
		{"R5", "five nodes, " + free512, "redlock cycle 512", Rate, redlock, "redsync", 3, 0, ""},
		{"R6", through, redis4x8, Rate, redisEach, "rueidislock", 1.2, 0, ""},
		{"R6", "p99 of the wait", redis4x8, P99, redisEach, "rueidislock", 0, 0.5, ""},
		{"R6", "requests a grant", redis4x8, Requests, redisEach, "", 0, 3, ""},
		{"R6", "fairness across processes", redis4x8, Fair, redisEach, "", 0.98, 0, ""},
		{"R7", here, redis4x8, Rate, redis, "rueidislock", 20, 0, ""},
		{"R7", work, redisWork, Rate, redis, "rueidislock", 1.8, 0, ""},
		{"R8", passed, "redis hand-over", P50, redis, "raw redis pub/sub", 0, 1, ""},
		{"R8", passed, "redis hand-over", P50, redis, "redislock", 0, 1. / 60, ""},
		{"R9", "held and renewed: CPU", "redis held", CPU, redis, "redislock", 0, 1. / 4, ""},
		{"R9", "held and renewed: memory", "redis held", Bytes, redis, "redislock", 0, 1. / 5, ""},
		{"R9", "held and renewed: goroutines", "redis held", Goroutines, redis, "", 0, 10, ""},
		{
			"R9", "held and renewed: requests", "redis held",
			Requests, redis, "redislock", 0, 1. / 200, "",
		},

		{"E1", free1, "etcd cycle 1", Rate, etcdOurs, "etcd mutex", 0.95, 0, ""},
		{"E1", free64, "etcd cycle 64", Rate, etcdOurs, "etcd mutex", 1.6, 0, ""},
		{"E1", free512, "etcd cycle 512", Rate, etcdOurs, "etcd mutex", 1.8, 0, ""},
		{"E2", "4×8, " + through, etcd4x8, Rate, etcdEach, etcds, 2, 0, ""},
		{"E2", "1×16, " + through, "etcd contended 1×16", Rate, etcdEach, etcds, 4, 0, ""},
		{"E2", "messages a grant, 4×8", etcd4x8, Requests, etcdEach, "", 0, 2.2, ""},
		{"E2", "messages a grant, 1×16", "etcd contended 1×16", Requests, etcdEach, "", 0, 2.2, ""},
		{"E3", short100, "etcd hand-over", P50, etcdOurs, "raw etcd", 0, 1, ""},
		{"E3", short100, "etcd hand-over", P50, etcdOurs, etcds, 0, 1. / 25, ""},
		{"E4", here, etcd4x8, Rate, etcdOurs, etcds, 100, 0, ""},
		{"E4", work, etcdWork, Rate, etcdOurs, etcds, 8, 0, ""},

		{"Z1", free1, "zookeeper cycle 1", Rate, zkOurs, zkLock, 1, 0, ""},
		{"Z2", free64, "zookeeper cycle 64", Rate, zkOurs, zkLock, 3.5, 0, ""},
		{"Z2", free512, "zookeeper cycle 512", Rate, zkOurs, zkLock, 4.5, 0, ""},
		{"Z3", through, zk4x8, Rate, zkEach, zkLock, 0.95, 0, ""},
		{"Z3", here, zk4x8, Rate, zkOurs, zkLock, 50, 0, ""},
		{
			"Z4", "new names, 4 processes × 32 against 1: requests a cycle",
			"zookeeper new names 4×32", Requests, zkOurs, zkOurs, 0, 3, "zookeeper new names 1×32",
		},
		{"Z4", "the slowest cycle", "zookeeper new names 4×32", Longest, zkOurs, zkLock, 0, 1, ""},

		{"P1", "row, " + async, "postgres-async cycle 1", Rate, pgRow, "for update", 1, 0, ""},
		{"P2", "lease, " + free1, "postgres cycle 1", Rate, pgLease, "pglock", 1.5, 0, ""},
		{"P2", "lease, " + async, "postgres-async cycle 1", Rate, pgLease, "pglock", 1, 0, ""},
		{"P3", "lease, " + free64, "postgres cycle 64", Rate, pgLease, "pglock", 3, 0, ""},
		{"P3", "lease, " + free64, "postgres cycle 64", Rate, pgLease, "for update", 1.8, 0, ""},
		{"P3", "lease, " + free512, "postgres cycle 512", Rate, pgLease, "pglock", 6, 0, ""},
		{"P3", "lease, " + free512, "postgres cycle 512", Rate, pgLease, "for update", 3.5, 0, ""},
		{"P4", "row, " + through, postgres4x8, Rate, rowEach, "advisory lock", 0.5, 0, ""},
		{"P5", "lease, " + here, postgres4x8, Rate, pgLease, "advisory lock", 20, 0, ""},
		{"P5", "lease, " + through, postgres4x8, Rate, leaseEach, "advisory lock", 0.3, 0, ""},
		{
			"P6", "lease, 32 processes on one name against 2", "postgres contended 32×1",
			Rate, pgLease, pgLease, 0.5, 0, "postgres contended 2×1",
		},
		{"P7", "row, " + passed, "postgres hand-over", P50, pgRow, "for update", 0, 1.5, ""},
		{
			"P7", "row, " + passed + ", " + async, "postgres-async hand-over",
			P50, pgRow, "for update", 0, 1.5, "",
		},
		{"P7", "lease, " + passed, "postgres hand-over", P50, pgLease, "raw notify", 0, 1.5, ""},

		{
			"F1", "the holder is told before the takeover, worst of all black holes, µs",
			"redis black hole", Margin, redis, "", 0, 0, "",
		},
		{
			"F2", "one of five nodes hangs: lock, renew, unlock", "redlock hung node",
			Slower, redlock, "", 0, 1.2, "",
		},
		{"C1", "open, lock, unlock, close, p50", "redis open", P50, redis, "redislock", 0, 1.5, ""},
	}
}

// short shows three digits.
func short(v float64) string {
	if v != 0 && v < 0.1 && v > -0.1 {
		return strings.TrimRight(fmt.Sprintf("%.4f", v), "0")
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".")
}
