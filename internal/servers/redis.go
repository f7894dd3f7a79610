package servers

import (
	"context"
	"testing"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// What package stores describes, by the names that tests use.
type (
	Server          = stores.Server
	Group           = stores.Group
	RedisOptions    = stores.RedisOptions
	Sentinel        = stores.Sentinel
	SentinelOptions = stores.SentinelOptions
	Cluster         = stores.Cluster
	ClusterOptions  = stores.ClusterOptions
)

// Redis starts one Redis server.
func Redis(tb testing.TB, o RedisOptions) *Server {
	tb.Helper()
	return start(tb, "redis", func(ctx context.Context, l stores.Launcher) (*Server, error) {
		return stores.StartRedis(ctx, l, o)
	})
}

// Redises starts n Redis servers that know nothing of each other.
func Redises(tb testing.TB, n int, o RedisOptions) *Group {
	tb.Helper()
	return start(tb, "redis", func(ctx context.Context, l stores.Launcher) (*Group, error) {
		return stores.StartRedises(ctx, l, n, o)
	})
}

// RedisSentinel starts a Redis master, replicas and three sentinels.
func RedisSentinel(tb testing.TB, o SentinelOptions) *Sentinel {
	tb.Helper()
	return start(tb, "redis", func(ctx context.Context, l stores.Launcher) (*Sentinel, error) {
		return stores.StartSentinel(ctx, l, o)
	})
}

// RedisCluster starts a Redis Cluster.
func RedisCluster(tb testing.TB, o ClusterOptions) *Cluster {
	tb.Helper()
	return start(tb, "redis", func(ctx context.Context, l stores.Launcher) (*Cluster, error) {
		return stores.StartCluster(ctx, l, o)
	})
}
