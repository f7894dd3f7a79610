package zookeeper_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// BenchmarkCycle locks and unlocks names of which nobody else has any, with this driver and with the client
// library's own lock, on the same server. Only the ratio of the two means something.
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
	for _, n := range []int{1, 64, 512} {
		for _, way := range []struct {
			backend string
			cycle   func(ctx context.Context, name string) error
		}{
			{"zookeeper", func(ctx context.Context, name string) error {
				le, err := l.Mutex(name).Lock(ctx)
				if err != nil {
					return err
				}
				return le.Unlock(ctx)
			}},
			{"zk.Lock", func(_ context.Context, name string) error {
				lock := zk.NewLock(conn, "/raw/"+name, zk.WorldACL(zk.PermAll))
				if err := lock.Lock(); err != nil {
					return err
				}
				return lock.Unlock()
			}},
		} {
			b.Run(fmt.Sprintf("backend=%s/op=cycle/goroutines=%d", way.backend, n), func(b *testing.B) {
				var next atomic.Int64
				b.SetParallelism(n / 2)
				if n == 1 {
					for b.Loop() {
						if err := way.cycle(b.Context(), "name-0"); err != nil {
							b.Fatal(err)
						}
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					name := fmt.Sprint("name-", next.Add(1))
					for pb.Next() {
						if err := way.cycle(b.Context(), name); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
