package redis_test

import (
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// compareAndDelete is the classic release.
var compareAndDelete = goredis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// BenchmarkCycle locks and unlocks a free name, in turn with the raw recipe (SET
// NX PX, compare and delete) on the same client, and reports our rate as a ratio to that.
func BenchmarkCycle(b *testing.B) {
	s := servers.Redis(b, servers.RedisOptions{})
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
	b.Cleanup(func() { _ = client.Close() })
	d, err := redis.New(client, nil)
	if err != nil {
		b.Fatal(err)
	}
	l, err := fencelock.New(d)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	m := l.Mutex("bench")
	ours := func() {
		le, err := m.Lock(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := le.Unlock(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	n := 0
	raw := func() {
		n++
		value := strconv.Itoa(n)
		if err := client.SetNX(b.Context(), "raw", value, 30*time.Second).Err(); err != nil {
			b.Fatal(err)
		}
		if err := compareAndDelete.Run(b.Context(), client, []string{"raw"}, value).Err(); err != nil {
			b.Fatal(err)
		}
	}
	ours()
	raw()
	b.Run("backend=redis/op=cycle", func(b *testing.B) {
		b.ReportAllocs()
		var mine, base time.Duration
		for b.Loop() {
			t0 := time.Now()
			ours()
			t1 := time.Now()
			b.StopTimer()
			raw()
			base += time.Since(t1)
			b.StartTimer()
			mine += t1.Sub(t0)
		}
		b.ReportMetric(float64(base)/float64(mine), "ratio-to-raw")
	})
}
