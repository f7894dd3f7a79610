package peers

import (
	"context"
	"fmt"
	"time"
)

// A Metric is one figure of a measurement.
type Metric string

// The metrics. Requests are what the server received: on Redis read events, which is writes of the clients on the wire, on etcd messages,
// on ZooKeeper packets; for each cycle or grant, or a second of holding.
const (
	Rate       Metric = "rate"       // cycles or grants a second
	P50        Metric = "p50"        // µs; of a contended name the wait, of a hand-over from the call of unlock to the grant
	P99        Metric = "p99"        // µs
	Fair       Metric = "fairness"   // Jain's index of the goroutines' grants
	Requests   Metric = "requests"   //
	Allocs     Metric = "allocs"     // objects a cycle
	CPU        Metric = "cpu"        // µs a cycle, or seconds of a holding
	Bytes      Metric = "bytes"      // of what is held
	Goroutines Metric = "goroutines" // of what is held
	Stuck      Metric = "stuck"      // waiters of a contended name that were never woken
	Slower     Metric = "slower"     // times: the worst of lock, renew and unlock with a hung node against all healthy, each p50
	Margin     Metric = "margin"     // µs from the holder's being told to the next one's grant, the worst of a round
)

// figures are what a library did in one round.
type figures map[Metric]float64

type kind int

const (
	cycling  kind = iota // free names, one for each of N goroutines
	crowding             // one name, Processes of N goroutines each
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

func sizes(on string, libraries ...string) []Experiment {
	var all []Experiment
	for _, n := range []int{1, 64, 512} {
		all = append(all, Experiment{Name: fmt.Sprintf("%s cycle %d", on, n), on: on, kind: cycling, n: n, Libraries: libraries})
	}
	return all
}

func crowds(on string, libraries ...string) []Experiment {
	return []Experiment{
		{Name: on + " contended 4×8", on: on, kind: crowding, n: 8, processes: 4, Libraries: libraries},
		{Name: on + " contended 4×8, 200 µs", on: on, kind: crowding, n: 8, processes: 4, section: section, Libraries: libraries},
	}
}

func handovers(on string, libraries ...string) Experiment {
	return Experiment{Name: on + " hand-over", on: on, kind: handing, n: 1, processes: 2, Libraries: libraries}
}

// Experiments returns all, with so many leases held.
func Experiments(held int) []Experiment {
	var all []Experiment
	add := func(e ...Experiment) { all = append(all, e...) }
	add(sizes("redis", "fencelock redis", "raw redis", "redsync", "redislock", "rueidislock")...)
	add(crowds("redis", "fencelock redis each", "fencelock redis", "rueidislock", "redislock", "redsync")...)
	add(
		handovers("redis", "fencelock redis", "raw redis pub/sub", "redislock", "redsync", "rueidislock"),
		Experiment{Name: "redis held", on: "redis", kind: keeping, n: held, processes: 1, Libraries: []string{"fencelock redis", "redislock"}},
		Experiment{Name: "redis black hole", on: "redis", kind: holing, n: 20, Libraries: []string{"fencelock redis"}},
	)
	add(sizes("redlock", "fencelock redlock", "redsync")...)
	add(Experiment{Name: "redlock hung node", on: "redlock", kind: hanging, Libraries: []string{"fencelock redlock"}})
	add(sizes("etcd", "fencelock etcd", "etcd mutex", "raw etcd")...)
	add(crowds("etcd", "fencelock etcd each", "fencelock etcd", "etcd mutex each")...)
	add(
		Experiment{Name: "etcd contended 1×16", on: "etcd", kind: crowding, n: 16, processes: 1, Libraries: []string{"fencelock etcd each", "etcd mutex each"}},
		handovers("etcd", "fencelock etcd", "raw etcd", "etcd mutex each"),
	)
	add(sizes("zookeeper", "fencelock zookeeper", "zk.Lock")...)
	add(crowds("zookeeper", "fencelock zookeeper each", "fencelock zookeeper", "zk.Lock")...)
	add(handovers("zookeeper", "fencelock zookeeper", "zk.Lock"))
	add(sizes("postgres", "fencelock postgres lease", "pglock", "for update", "advisory lock")...)
	add(crowds("postgres", "fencelock postgres row each", "fencelock postgres lease each", "fencelock postgres lease", "advisory lock", "for update")...)
	add(
		handovers("postgres", "fencelock postgres row", "fencelock postgres lease", "for update", "advisory lock"),
		Experiment{
			Name: "postgres-async cycle 1", on: "postgres-async", kind: cycling, n: 1,
			Libraries: []string{"fencelock postgres row", "fencelock postgres lease", "for update", "pglock"},
		},
	)
	for _, e := range growth() {
		e.growth = true
		add(e)
	}
	return all
}

// growth measures how cost grows with waiters, names, held locks and nodes.
func growth() []Experiment {
	var all []Experiment
	for _, n := range []int{2, 16, 128} {
		all = append(all, Experiment{
			Name: fmt.Sprintf("redis waiters %d", n), on: "redis", kind: crowding, n: n, processes: 1,
			Libraries: []string{"fencelock redis each", "fencelock redis", "rueidislock"},
		})
	}
	all = append(all, Experiment{Name: "redis names 4096", on: "redis", kind: cycling, n: 4096, Libraries: []string{"fencelock redis", "raw redis"}})
	for _, n := range []int{1_000, 50_000} {
		all = append(all, Experiment{Name: fmt.Sprintf("redis held %d", n), on: "redis", kind: keeping, n: n, processes: 1, Libraries: []string{"fencelock redis"}})
	}
	for _, n := range []int{3, 7} {
		on := fmt.Sprintf("redlock-%d", n)
		all = append(all, Experiment{Name: on + " cycle 64", on: on, kind: cycling, n: 64, Libraries: []string{"fencelock redlock", "redsync"}})
	}
	for _, on := range []string{"etcd-3", "etcd-5"} {
		all = append(all, Experiment{Name: on + " cycle 64", on: on, kind: cycling, n: 64, Libraries: []string{"fencelock etcd", "etcd mutex"}})
	}
	return append(
		all,
		Experiment{Name: "zookeeper-3 cycle 64", on: "zookeeper-3", kind: cycling, n: 64, Libraries: []string{"fencelock zookeeper", "zk.Lock"}},
		Experiment{Name: "etcd held 10000", on: "etcd", kind: keeping, n: 10_000, processes: 1, Libraries: []string{"fencelock etcd"}},
		Experiment{Name: "zookeeper held 10000", on: "zookeeper", kind: keeping, n: 10_000, processes: 1, Libraries: []string{"fencelock zookeeper"}},
		Experiment{Name: "postgres held 10000", on: "postgres", kind: keeping, n: 10_000, processes: 1, Libraries: []string{"fencelock postgres lease"}},
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
	requests := func() int64 { return s.requests(ctx) }
	switch e.kind {
	case cycling:
		l, err := lib.open(ctx, at)
		if err != nil {
			return contender{}, err
		}
		all, err := mutexes(ctx, l, e.n)
		if err != nil {
			l.close()
			return contender{}, err
		}
		return contender{func(ctx context.Context, d time.Duration) (figures, error) { return cycles(ctx, all, d, requests) }, l.close}, nil
	case hanging:
		return contender{func(ctx context.Context, d time.Duration) (figures, error) { return hung(ctx, s, lib, at, d) }, func() {}}, nil
	case holing:
		round := 0
		return contender{func(ctx context.Context, _ time.Duration) (figures, error) {
			round++
			at.Prefix = fmt.Sprintf("%s-%d", at.Prefix, round)
			return blackHole(ctx, at, e.n)
		}, func() {}}, nil
	case keeping: // each round has a process of its own: what is held stays held
		return contender{func(_ context.Context, d time.Duration) (figures, error) {
			f, err := startFleet(lib, s.place(), 1, 0)
			if err != nil {
				return nil, err
			}
			defer f.close()
			return f.holding(e.n, max(d, holdFor(e.n)), func() int64 { return s.calls(ctx) })
		}, func() {}}, nil
	case crowding, handing:
	}
	f, err := startFleet(lib, at, e.processes, e.n)
	if err != nil {
		return contender{}, err
	}
	if e.kind == handing {
		return contender{func(_ context.Context, d time.Duration) (figures, error) { return f.handOver(d) }, f.close}, nil
	}
	return contender{func(_ context.Context, d time.Duration) (figures, error) { return f.contend(d, e.section, requests) }, f.close}, nil
}

// holdFor is how long so many are held: 10,000 for as long as a default TTL, in which each is renewed three times.
func holdFor(n int) time.Duration {
	if n < 10_000 {
		return expiry / 10
	}
	return expiry
}
