package redis_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// compareAndDelete is the classic release.
var compareAndDelete = goredis.NewScript(
	`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`,
)

// rig is a server with a Locker of the default prefix over a client that the raw recipe uses too.
type rig struct {
	client *goredis.Client
	l      *fencelock.Locker
}

func newRig(b *testing.B) rig {
	s := servers.Redis(b, servers.RedisOptions{})
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
	b.Cleanup(func() { _ = client.Close() })
	return rig{client, benchLocker(b, client, "fencelock:")}
}

func benchLocker(b *testing.B, client *goredis.Client, prefix string) *fencelock.Locker {
	d, err := redis.New(client, &redis.Options{Prefix: prefix})
	if err != nil {
		b.Fatal(err)
	}
	l, err := fencelock.New(d)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	return l
}

func cycle(b *testing.B, m fencelock.Mutex) {
	le, err := m.Lock(b.Context())
	if err == nil {
		err = le.Unlock(b.Context())
	}
	if err != nil {
		b.Error(err)
	}
}

// raw is the plain recipe: SET NX PX, compare and delete.
func (r rig) raw(b *testing.B, key, value string) {
	err := r.client.SetNX(b.Context(), key, value, 30*time.Second).Err()
	if err == nil {
		err = compareAndDelete.Run(b.Context(), r.client, []string{key}, value).Err()
	}
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkCycle locks and unlocks free names from one and from many goroutines, in turn with the
// raw recipe on the same client, and reports our rate as a ratio to that.
func BenchmarkCycle(b *testing.B) {
	r := newRig(b)
	const each = 20 // cycles of a goroutine in a turn
	for _, n := range []int{1, 64, 512} {
		mutexes := make([]fencelock.Mutex, n)
		for i := range mutexes {
			mutexes[i] = r.l.Mutex(fmt.Sprint("bench-", i))
		}
		crowd := func(f func(i int)) time.Duration {
			began := time.Now()
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					for range each {
						f(i)
					}
				})
			}
			wg.Wait()
			return time.Since(began)
		}
		b.Run(fmt.Sprintf("backend=redis/op=cycle/goroutines=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var mine, base time.Duration
			for b.Loop() {
				mine += crowd(func(i int) { cycle(b, mutexes[i]) })
				b.StopTimer()
				base += crowd(func(i int) { r.raw(b, "raw"+strconv.Itoa(i), strconv.Itoa(i)) })
				b.StartTimer()
			}
			b.ReportMetric(float64(n*each), "cycles/op")
			b.ReportMetric(float64(base)/float64(mine), "ratio-to-raw")
		})
	}
}

// BenchmarkGate locks and unlocks a free name that does not move in a keyspace with gates, in turn
// with one without, and reports the rate as a ratio, and the time of the server in its scripts as
// another.
func BenchmarkGate(b *testing.B) {
	r := newRig(b)
	gated, err := redis.New(r.client, &redis.Options{Prefix: "gated:"})
	if err != nil {
		b.Fatal(err)
	}
	if err := call(gated).SetGate(b.Context(), closedGate("move/*"), 0); err != nil {
		b.Fatal(err)
	}
	with, without := benchLocker(b, r.client, "gated:").Mutex("bench"), r.l.Mutex("bench")
	cycle(b, with)
	cycle(b, without)
	turn := func(m fencelock.Mutex) (took, server time.Duration) {
		before, began := r.scripts(b), time.Now()
		for range 200 {
			cycle(b, m)
		}
		took = time.Since(began)
		return took, r.scripts(b) - before
	}
	b.Run("backend=redis/op=gated", func(b *testing.B) {
		var mine, base, mineThere, baseThere time.Duration
		for b.Loop() {
			took, there := turn(with)
			mine, mineThere = mine+took, mineThere+there
			b.StopTimer()
			took, there = turn(without)
			base, baseThere = base+took, baseThere+there
			b.StartTimer()
		}
		b.ReportMetric(float64(base)/float64(mine), "ratio-to-ungated")
		b.ReportMetric(float64(baseThere)/float64(mineThere), "server-ratio-to-ungated")
	})
}

// scripts is how long the server has run scripts.
func (r rig) scripts(b *testing.B) time.Duration {
	_, text, _ := strings.Cut(r.client.Info(b.Context(), "commandstats").Val(), "cmdstat_evalsha:")
	_, text, _ = strings.Cut(text, ",usec=")
	text, _, _ = strings.Cut(text, ",")
	us, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}
