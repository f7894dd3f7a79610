package servers

import (
	"context"
	"testing"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// The types of package stores, by the names that tests use.
type (
	Server                 = stores.Server
	Group                  = stores.Group
	RedisOptions           = stores.RedisOptions
	Sentinel               = stores.Sentinel
	SentinelOptions        = stores.SentinelOptions
	Cluster                = stores.Cluster
	ClusterOptions         = stores.ClusterOptions
	EtcdCluster            = stores.EtcdCluster
	EtcdOptions            = stores.EtcdOptions
	ZooKeeperEnsemble      = stores.ZooKeeperEnsemble
	ZooKeeperOptions       = stores.ZooKeeperOptions
	PostgresServer         = stores.PostgresServer
	PostgresOptions        = stores.PostgresOptions
	PostgresReplicaOptions = stores.PostgresReplicaOptions
)

// Redis starts one Redis server.
func Redis(tb testing.TB, o RedisOptions) *Server {
	tb.Helper()
	return start(tb, "redis", stores.StartRedis, o)
}

// Redises starts n Redis servers that know nothing of each other.
func Redises(tb testing.TB, n int, o RedisOptions) *Group {
	tb.Helper()
	many := func(ctx context.Context, l stores.Launcher, o RedisOptions) (*Group, error) {
		return stores.StartRedises(ctx, l, n, o)
	}
	return start(tb, "redis", many, o)
}

// RedisSentinel starts a Redis master, replicas and three sentinels.
func RedisSentinel(tb testing.TB, o SentinelOptions) *Sentinel {
	tb.Helper()
	return start(tb, "redis", stores.StartSentinel, o)
}

// RedisCluster starts a Redis Cluster.
func RedisCluster(tb testing.TB, o ClusterOptions) *Cluster {
	tb.Helper()
	return start(tb, "redis", stores.StartCluster, o)
}

// Etcd starts an etcd cluster. The first test that needs it builds the server, which takes a minute
// or two.
func Etcd(tb testing.TB, o EtcdOptions) *EtcdCluster {
	tb.Helper()
	return start(tb, "etcd", stores.StartEtcd, o)
}

// ZooKeeper starts a ZooKeeper ensemble.
func ZooKeeper(tb testing.TB, o ZooKeeperOptions) *ZooKeeperEnsemble {
	tb.Helper()
	return start(tb, "zookeeper", stores.StartZooKeeper, o)
}

// Postgres starts one Postgres server.
func Postgres(tb testing.TB, o PostgresOptions) *PostgresServer {
	tb.Helper()
	return start(tb, "postgres", stores.StartPostgres, o)
}

// PostgresReplica starts a replica of a server, which can be promoted.
func PostgresReplica(
	tb testing.TB, primary *PostgresServer, o PostgresReplicaOptions,
) *PostgresServer {
	tb.Helper()
	replica := func(
		ctx context.Context, l stores.Launcher, o PostgresReplicaOptions,
	) (*PostgresServer, error) {
		return stores.StartPostgresReplica(ctx, l, primary, o)
	}
	return start(tb, "postgres", replica, o)
}
