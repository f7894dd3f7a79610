package peers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// A Metric is one figure of a measurement.
type Metric string

// The metrics. Requests are what the server received: on Redis read events, which is writes of the
// clients on the wire, on etcd messages, on ZooKeeper packets; for each cycle or grant, or a second
// of holding.
const (
	Rate       Metric = "rate"       // cycles or grants a second
	P50        Metric = "p50"        // µs; of the wait, or of a hand-over from the call of unlock
	P99        Metric = "p99"        // µs
	Longest    Metric = "max"        // µs
	Fair       Metric = "fairness"   // Jain's index of the goroutines' grants
	Requests   Metric = "requests"   //
	Allocs     Metric = "allocs"     // objects a cycle
	CPU        Metric = "cpu"        // µs a cycle, or seconds of a holding
	Bytes      Metric = "bytes"      // of what is held
	Goroutines Metric = "goroutines" // of what is held
	Stuck      Metric = "stuck"      // waiters of a contended name that were never woken
	Slower     Metric = "slower"     // times, by a hung node: the worst of lock, renew and unlock
	Margin     Metric = "margin"     // µs from telling the holder to the next grant, the worst
)

// figures are what a library did in one round.
type figures map[Metric]float64

type kind int

const (
	cycling  kind = iota // free names, one for each of N goroutines
	crowding             // one name, Processes of N goroutines each
	naming               // new names, Processes of N goroutines each
	opening              // free names, and each cycle opens and closes the library too
	handing              // one name, two processes
	keeping              // N names held and renewed
	hanging              // one node of five does not answer
	holing               // holders behind a black hole
)

// An Experiment is the same work through several libraries.
type Experiment struct {
	Name      string
	Libraries []string
	on        string // the store
	kind      kind
	n         int
	processes int
	section   time.Duration
	growth    bool // no goal needs it: how cost grows
}

// section is the critical section that is not empty.
const section = 200 * time.Microsecond

func (e Experiment) of(libraries ...string) Experiment {
	e.Libraries = libraries
	return e
}

func cycle(on string, n int) Experiment {
	return Experiment{Name: fmt.Sprintf("%s cycle %d", on, n), on: on, kind: cycling, n: n}
}

func sizes(on string, libraries ...string) []Experiment {
	var all []Experiment
	for _, n := range []int{1, 64, 512} {
		all = append(all, cycle(on, n).of(libraries...))
	}
	return all
}

func contended(on string, processes, n int) Experiment {
	name := fmt.Sprintf("%s contended %d×%d", on, processes, n)
	return Experiment{Name: name, on: on, kind: crowding, n: n, processes: processes}
}

// newNames is not contended: each cycle has a name that was never locked before.
func newNames(on string, processes, n int) Experiment {
	name := fmt.Sprintf("%s new names %d×%d", on, processes, n)
	return Experiment{Name: name, on: on, kind: naming, n: n, processes: processes}
}

func crowds(on string, libraries ...string) []Experiment {
	plain := contended(on, 4, 8).of(libraries...)
	work := plain
	work.Name, work.section = plain.Name+", 200 µs", section
	return []Experiment{plain, work}
}

func handovers(on string, libraries ...string) Experiment {
	e := Experiment{Name: on + " hand-over", on: on, kind: handing, n: 1, processes: 2}
	return e.of(libraries...)
}

func holdings(name, on string, n int) Experiment {
	return Experiment{Name: name, on: on, kind: keeping, n: n, processes: 1}
}

// Experiments returns all, with so many leases held.
func Experiments(held int) []Experiment {
	hole := Experiment{Name: "redis black hole", on: "redis", kind: holing, n: 20}
	opens := Experiment{Name: "redis open", on: "redis", kind: opening, n: 1}
	hung := Experiment{Name: "redlock hung node", on: "redlock", kind: hanging}
	all := slices.Concat(
		sizes("redis", "fencelock redis", "raw redis", "redsync", "redislock", "rueidislock"),
		crowds(
			"redis", "fencelock redis each", "fencelock redis", "rueidislock", "redislock",
			"redsync",
		),
		[]Experiment{
			handovers(
				"redis", "fencelock redis", "raw redis pub/sub", "redislock", "redsync",
				"rueidislock",
			),
			holdings("redis held", "redis", held).of("fencelock redis", "redislock"),
			hole.of("fencelock redis"),
			opens.of("fencelock redis", "redislock"),
		},
		sizes("redlock", "fencelock redlock", "redsync"),
		[]Experiment{hung.of("fencelock redlock")},
		sizes("etcd", "fencelock etcd", "etcd mutex", "raw etcd"),
		crowds("etcd", "fencelock etcd each", "fencelock etcd", "etcd mutex each"),
		[]Experiment{
			contended("etcd", 1, 16).of("fencelock etcd each", "etcd mutex each"),
			handovers("etcd", "fencelock etcd", "raw etcd", "etcd mutex each"),
		},
		sizes("zookeeper", "fencelock zookeeper", "zk.Lock"),
		crowds("zookeeper", "fencelock zookeeper each", "fencelock zookeeper", "zk.Lock"),
		[]Experiment{
			handovers("zookeeper", "fencelock zookeeper", "zk.Lock"),
			newNames("zookeeper", 4, 32).of("fencelock zookeeper", "zk.Lock"),
			newNames("zookeeper", 1, 32).of("fencelock zookeeper", "zk.Lock"),
		},
		sizes("postgres", "fencelock postgres lease", "pglock", "for update", "advisory lock"),
		crowds(
			"postgres", "fencelock postgres row each", "fencelock postgres lease each",
			"fencelock postgres lease", "advisory lock", "for update",
		),
		[]Experiment{
			handovers(
				"postgres", "fencelock postgres row", "fencelock postgres lease", "for update",
				"advisory lock", "raw notify",
			),
			contended("postgres", 32, 1).of("fencelock postgres lease"),
			contended("postgres", 2, 1).of("fencelock postgres lease"),
			handovers("postgres-async", "fencelock postgres row", "for update"),
			cycle("postgres-async", 1).of(
				"fencelock postgres row", "fencelock postgres lease", "for update", "pglock",
			),
		},
	)
	for _, e := range growth() {
		e.growth = true
		all = append(all, e)
	}
	return all
}

// growth measures how cost grows with waiters, names, held locks and nodes.
func growth() []Experiment {
	var all []Experiment
	for _, n := range []int{2, 16, 128} {
		e := contended("redis", 1, n).of("fencelock redis each", "fencelock redis", "rueidislock")
		e.Name = fmt.Sprintf("redis waiters %d", n)
		all = append(all, e)
	}
	names := cycle("redis", 4096).of("fencelock redis", "raw redis")
	names.Name = "redis names 4096"
	return append(
		all, names,
		holdings("redis held 1000", "redis", 1_000).of("fencelock redis"),
		holdings("redis held 50000", "redis", 50_000).of("fencelock redis"),
		cycle("redlock-3", 64).of("fencelock redlock", "redsync"),
		cycle("redlock-7", 64).of("fencelock redlock", "redsync"),
		cycle("etcd-3", 64).of("fencelock etcd", "etcd mutex"),
		cycle("etcd-5", 64).of("fencelock etcd", "etcd mutex"),
		cycle("zookeeper-3", 64).of("fencelock zookeeper", "zk.Lock"),
		holdings("etcd held 10000", "etcd", 10_000).of("fencelock etcd"),
		holdings("zookeeper held 10000", "zookeeper", 10_000).of("fencelock zookeeper"),
		holdings("postgres held 10000", "postgres", 10_000).of("fencelock postgres lease"),
	)
}

// A contender is a library that is ready for an experiment.
type contender struct {
	round func(ctx context.Context, d time.Duration) (figures, error)
	close func()
}

// prepare makes a library ready.
func (e Experiment) prepare(ctx context.Context, s *store, lib Library) (contender, error) {
	at := s.place()
	requests := s.requests(ctx)
	type round = func(ctx context.Context, d time.Duration) (figures, error)
	alone := func(r round) (contender, error) { return contender{r, func() {}}, nil }
	switch e.kind {
	case cycling:
		l, err := lib.open(ctx, at)
		if err != nil {
			return contender{}, err
		}
		all := make([]measure.Mutex, e.n)
		for i := range all {
			if all[i], err = l.mutex(ctx, fmt.Sprint("free-", i)); err != nil {
				l.close()
				return contender{}, err
			}
		}
		return contender{func(ctx context.Context, d time.Duration) (figures, error) {
			return cycles(ctx, all, d, requests)
		}, l.close}, nil
	case hanging:
		return alone(func(ctx context.Context, d time.Duration) (figures, error) {
			return hung(ctx, s, lib, at, d)
		})
	case holing:
		return alone(func(ctx context.Context, _ time.Duration) (figures, error) {
			return blackHole(ctx, s.place(), e.n)
		})
	case keeping: // each round has a process of its own: what is held stays held
		return alone(func(_ context.Context, d time.Duration) (figures, error) {
			f, err := startFleet(1, Order{Library: lib.Name, At: s.place()})
			if err != nil {
				return nil, err
			}
			defer f.close()
			return f.holding(e.n, max(d, holdFor(e.n)), s.calls(ctx))
		})
	case opening:
		return alone(func(ctx context.Context, d time.Duration) (figures, error) {
			return cycles(ctx, []measure.Mutex{lib.anew(at)}, d, requests)
		})
	case crowding, naming, handing:
	}
	o := Order{
		Library: lib.Name, At: at, N: e.n, Section: e.section, Anew: e.kind == naming,
	}
	f, err := startFleet(e.processes, o)
	if err != nil {
		return contender{}, err
	}
	if e.kind == handing {
		return contender{f.handOver, f.close}, nil
	}
	return contender{func(_ context.Context, d time.Duration) (figures, error) {
		o.For = d
		return f.contend(o, requests)
	}, f.close}, nil
}

// holdFor is how long so many are held: 10,000 for as long as a default TTL, in which each is
// renewed three times.
func holdFor(n int) time.Duration {
	if n < 10_000 {
		return expiry / 10
	}
	return expiry
}
