package peers

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis"
	redsyncgo "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redlock"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports every dial that a fault makes fail
	os.Exit(m.Run())
}

const (
	turns = 8                      // of each library, one after the other
	turn  = 250 * time.Millisecond // of one
)

// library is one way to lock and unlock a free name.
type library struct {
	name  string
	cycle func(ctx context.Context, name string) error
}

// five starts five nodes, and both libraries over clients of the same settings.
func five(b *testing.B) (*servers.Group, []library) {
	g := servers.Redises(b, 5, servers.RedisOptions{})
	clients := func() (cs []goredis.UniversalClient) {
		for _, addr := range g.Addrs() {
			c := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
			b.Cleanup(func() { _ = c.Close() })
			cs = append(cs, c)
		}
		return cs
	}
	d, err := redlock.New(clients(), &redlock.Options{Fresh: true})
	if err != nil {
		b.Fatal(err)
	}
	l, err := fencelock.New(d)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	var pools []redsyncpool.Pool
	for _, c := range clients() {
		pools = append(pools, redsyncgo.NewPool(c))
	}
	rs := redsync.New(pools...)
	return g, []library{
		{"redlock", func(ctx context.Context, name string) error {
			le, err := l.Mutex(name).Lock(ctx)
			if err != nil {
				return err
			}
			return le.Unlock(ctx)
		}},
		{"redsync", func(ctx context.Context, name string) error {
			m := rs.NewMutex(name, redsync.WithExpiry(30*time.Second))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			_, err := m.UnlockContext(ctx)
			return err
		}},
	}
}

// run keeps n goroutines at it for one turn, each on a name of its own, and returns how many cycles a second there were.
func run(b *testing.B, l library, n int) float64 {
	var cycles atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := range n {
		wg.Go(func() {
			name := fmt.Sprintf("%s-%d", l.name, i)
			for time.Since(began) < turn {
				if err := l.cycle(b.Context(), name); err != nil {
					b.Errorf("%s: %v", l.name, err)
					return
				}
				cycles.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(cycles.Load()) / time.Since(began).Seconds()
}

// compare gives the libraries turns, and reports the mean rate of each, and of the first also its ratio to the second.
func compare(b *testing.B, libraries []library, op string, n int) {
	sum := make([]float64, len(libraries))
	for _, l := range libraries {
		run(b, l, n) // warm
	}
	for range turns {
		for i, l := range libraries {
			sum[i] += run(b, l, n)
		}
	}
	for i, l := range libraries {
		b.Run(fmt.Sprintf("backend=%s/op=%s", l.name, op), func(b *testing.B) {
			for b.Loop() { // measured above, in turns
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(sum[i]/turns, "cycles/s")
			if i == 0 {
				b.ReportMetric(sum[0]/sum[1], "ratio")
			}
		})
	}
}

// BenchmarkRedlock locks and unlocks free names on five nodes, in turn with redsync.
func BenchmarkRedlock(b *testing.B) {
	_, libraries := five(b)
	for _, n := range []int{1, 64, 512} {
		compare(b, libraries, fmt.Sprintf("cycle-%d", n), n)
	}
}

// BenchmarkRedlockHungNode measures Lock and Unlock of this library with one of five nodes paused, against all healthy.
// (redsync waits for every node.)
func BenchmarkRedlockHungNode(b *testing.B) {
	g, libraries := five(b)
	ours := libraries[0]
	run(b, ours, 1)
	var healthy, hung float64
	for range turns {
		healthy += run(b, ours, 1)
		if err := g.Servers()[4].Pause(); err != nil {
			b.Fatal(err)
		}
		hung += run(b, ours, 1)
		if err := g.Servers()[4].Resume(); err != nil {
			b.Fatal(err)
		}
		run(b, ours, 1) // not counted: what was owed to the node is caught up meanwhile
	}
	b.Run("backend=redlock/op=cycle-hung-node", func(b *testing.B) {
		for b.Loop() {
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(hung/turns, "cycles/s")
		b.ReportMetric(healthy/hung, "times-slower")
	})
}
