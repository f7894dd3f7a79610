package backends

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/internal/servers"
)

// TestTooOld: opening a URL of a server that is too old says so, and which version is needed. FENCELOCK_OLD names the
// store that has such a server here (make versions).
func TestTooOld(t *testing.T) {
	needed, urls := "", []string(nil)
	switch store := os.Getenv("FENCELOCK_OLD"); store {
	case "":
		t.Skip("FENCELOCK_OLD names no store whose server is too old: make versions")
	case "redis":
		g := servers.Redises(t, 3, servers.RedisOptions{})
		needed = "6 or later is needed"
		urls = []string{"redis://" + g.Addrs()[0], "redlock://" + strings.Join(g.Addrs(), ",") + "?fresh=1"}
		urls = append(urls, servers.RedisSentinel(t, servers.SentinelOptions{Replicas: 1}).URL())
	case "redis-cluster":
		needed, urls = "7.0 for a cluster", []string{servers.RedisCluster(t, servers.ClusterOptions{Masters: 3}).URL()}
	case "etcd":
		needed, urls = "3.5.13 or later is needed", []string{servers.Etcd(t, servers.EtcdOptions{}).URL()}
	case "zookeeper":
		needed, urls = "3.5.3 or later is needed", []string{servers.ZooKeeper(t, servers.ZooKeeperOptions{}).URL()}
	case "postgres":
		needed = "15 or later is needed"
		url := servers.Postgres(t, servers.PostgresOptions{}).URL()
		urls = []string{url + "&mode=row", url + "&mode=advisory", url + "&mode=lease"}
	default:
		t.Fatalf("FENCELOCK_OLD=%q: want redis, redis-cluster, etcd, zookeeper or postgres", store)
	}
	for _, url := range urls {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		l, err := fencelock.Open(ctx, url)
		cancel()
		if err == nil {
			_ = l.Close()
		}
		if !errors.Is(err, fencelock.ErrInvalid) || !strings.Contains(err.Error(), needed) {
			t.Errorf("%s: got %v, want an error that says %q", url, err, needed)
		} else {
			t.Logf("refused: %v", err)
		}
	}
}
