package redis_test

import (
	"fmt"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// raced reports whether the race detector is on.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// A caller's client that sends reads to replicas asks the masters all the same: a replica may not
// know of a lock yet.
func TestReadsGoToTheMaster(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 1, Replicas: 1})
	// A replica counts as one once it has something.
	must(t, clusterClient(t, cl).Set(t.Context(), "something", "1", 0).Err())
	await(t, 20*time.Second, "every node names the replica", func() bool {
		for _, s := range cl.Servers() {
			//lint:ignore SA1019 Redis 6.2 has no CLUSTER SHARDS
			slots, err := foreign(t, s).ClusterSlots(t.Context()).Result()
			if err != nil || len(slots) != 1 || len(slots[0].Nodes) != 2 {
				return false
			}
		}
		return true
	})
	// From here on the replica keeps what it has and hears of nothing.
	for _, s := range cl.Servers() {
		c := foreign(t, s)
		must(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-psync", "-replconf", "-sync").Err())
		must(t, c.ConfigSet(t.Context(), "cluster-replica-no-failover", "yes").Err())
		must(t, c.ClientKillByFilter(t.Context(), "TYPE", "replica").Err())
	}
	for _, tt := range []struct {
		name string
		opts goredis.ClusterOptions
	}{
		{"ReadOnly", goredis.ClusterOptions{ReadOnly: true}},
		{"RouteRandomly", goredis.ClusterOptions{RouteRandomly: true}},
		{"RouteByLatency", goredis.ClusterOptions{RouteByLatency: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.opts.RouteByLatency && raced() {
				t.Skip("go-redis 9.23.0 writes a new node's options while it measures the node's latency")
			}
			opts := tt.opts
			opts.Addrs = cl.Addrs()
			c := goredis.NewClusterClient(&opts)
			t.Cleanup(func() { _ = c.Close() })
			l := over(t, c)
			var held []*fencelock.Lease
			for i := range 10 {
				held = append(held, lock(t, l.Mutex(fmt.Sprint(tt.name, i))))
			}
			// Each is looked at twice at least.
			<-time.After(2 * time.Second)
			for _, le := range held {
				must(t, le.Err())
				info, err := l.Inspect(t.Context(), le.Name())
				must(t, err)
				if !info.Held || info.Token != le.Token() {
					t.Errorf("Inspect: got %+v, want it held with token %d", info, le.Token())
				}
			}
			listed := 0
			for info, err := range l.List(t.Context(), tt.name) {
				must(t, err)
				listed++
				if !info.Held {
					t.Errorf("List: got %+v, want it held", info)
				}
			}
			if listed != len(held) {
				t.Errorf("List: got %d names, want %d", listed, len(held))
			}
			for _, le := range held {
				unlock(t, le)
			}
		})
	}
}
