package redlock_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock"
)

// cycle locks, renews and unlocks a free name.
func cycle(b *testing.B, m fencelock.Mutex) {
	le, err := m.Lock(b.Context())
	if err == nil {
		err = le.Renew(b.Context())
	}
	if err == nil {
		err = le.Unlock(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCycle locks and unlocks a free name on five nodes.
func BenchmarkCycle(b *testing.B) {
	c := start(b, 5)
	m := open(b, c.url("fresh=1")).Mutex("bench")
	unlock(b, lock(b, m))
	b.Run("backend=redlock/op=cycle", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			unlock(b, lock(b, m))
		}
	})
}

// BenchmarkHungNode locks, renews and unlocks a free name with one of five nodes paused, in turn with all healthy, and
// reports the time as a ratio to that.
func BenchmarkHungNode(b *testing.B) {
	c := start(b, 5)
	m := open(b, c.url("fresh=1")).Mutex("bench")
	cycle(b, m)
	b.Run("backend=redlock/op=cycle-hung-node", func(b *testing.B) {
		const some = 20
		var hung, healthy time.Duration
		for b.Loop() {
			b.StopTimer()
			t0 := time.Now()
			for range some {
				cycle(b, m)
			}
			healthy += time.Since(t0)
			must(b, c.Servers()[0].Pause())
			b.StartTimer()
			t1 := time.Now()
			for range some {
				cycle(b, m)
			}
			hung += time.Since(t1)
			b.StopTimer()
			must(b, c.Servers()[0].Resume())
			b.StartTimer()
		}
		b.ReportMetric(float64(hung)/float64(healthy), "ratio-to-healthy")
	})
}
