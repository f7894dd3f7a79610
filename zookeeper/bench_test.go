package zookeeper_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/zookeeper"
)

// BenchmarkCycle locks and unlocks names of which nobody else has any, with this driver and with
// the client library's own lock in turn, on the same server. Only the ratio of the two means
// something; it is the median of those of the turns.
func BenchmarkCycle(b *testing.B) {
	z := servers.ZooKeeper(b, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
	l, err := fencelock.Open(b.Context(), z.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	conn, events, err := zk.Connect(z.Addrs(), sessionLength, zk.WithLogger(silent{}))
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for range events {
		}
	}()
	defer conn.Close()
	ours := func(ctx context.Context, name string) error {
		le, err := l.Mutex(name).Lock(ctx)
		if err != nil {
			return err
		}
		return le.Unlock(ctx)
	}
	theirs := func(_ context.Context, name string) error {
		lock := zk.NewLock(conn, "/raw/"+name, zk.WorldACL(zk.PermAll))
		if err := lock.Lock(); err != nil {
			return err
		}
		return lock.Unlock()
	}
	for _, n := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("backend=zookeeper/op=cycle/goroutines=%d", n), func(b *testing.B) {
			var rates, ratios []float64
			cycles(b, n, ours)
			cycles(b, n, theirs)
			for b.Loop() {
				rate := cycles(b, n, ours)
				rates, ratios = append(rates, rate), append(ratios, rate/cycles(b, n, theirs))
			}
			slices.Sort(rates)
			slices.Sort(ratios)
			b.ReportMetric(rates[len(rates)/2], "cycles/s")
			b.ReportMetric(ratios[len(ratios)/2], "ratio-to-zk.Lock")
		})
	}
}

// cycles runs goroutines that lock and unlock, each its own name, for a while. It returns how many
// cycles they made in a second.
func cycles(b *testing.B, goroutines int, cycle func(ctx context.Context, name string) error) float64 {
	const slice = 200 * time.Millisecond
	var n atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := range goroutines {
		wg.Go(func() {
			for name := fmt.Sprint("name-", i); time.Since(began) < slice; n.Add(1) {
				if err := cycle(b.Context(), name); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(began).Seconds()
}

// BenchmarkGates locks and unlocks in turn in a keyspace without gates and in one with ten, of
// which all but one let the name alone, and the last lets it in. The ratio is that of the medians.
func BenchmarkGates(b *testing.B) {
	z := servers.ZooKeeper(b, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
	mutex := func(prefix string, gates int) fencelock.Mutex {
		d, err := zookeeper.New(z.Addrs(), &zookeeper.Options{Prefix: prefix})
		if err != nil {
			b.Fatal(err)
		}
		l, err := fencelock.New(d)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = l.Close() })
		for i := range gates {
			g := closedGate(fmt.Sprintf("out/%d/*", i))
			g.Move = fmt.Sprint("move-", i)
			if i == 0 {
				g.Scope[0].Match, g.State = "name*", backend.GateOpen
			}
			if err := call(d).SetGate(b.Context(), g, 0); err != nil {
				b.Fatal(err)
			}
		}
		return l.Mutex("name")
	}
	cycle := func(m fencelock.Mutex) time.Duration {
		began := time.Now()
		le, err := m.Lock(b.Context())
		if err == nil {
			err = le.Unlock(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	without, with := mutex("without", 0), mutex("with", 10)
	cycle(without)
	cycle(with)
	var base, gated []time.Duration
	for b.Loop() {
		base = append(base, cycle(without))
		gated = append(gated, cycle(with))
	}
	slices.Sort(base)
	slices.Sort(gated)
	b.ReportMetric(float64(gated[len(gated)/2])/float64(base[len(base)/2]), "p50-ratio-to-no-gates")
}
