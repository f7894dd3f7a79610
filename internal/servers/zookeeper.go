package servers

import (
	"context"
	"testing"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// What package stores describes, by the names that tests use.
type (
	ZooKeeperEnsemble = stores.ZooKeeperEnsemble
	ZooKeeperOptions  = stores.ZooKeeperOptions
)

// ZooKeeper starts a ZooKeeper ensemble.
func ZooKeeper(tb testing.TB, o ZooKeeperOptions) *ZooKeeperEnsemble {
	tb.Helper()
	return start(tb, "zookeeper", func(ctx context.Context, l stores.Launcher) (*ZooKeeperEnsemble, error) {
		return stores.StartZooKeeper(ctx, l, o)
	})
}
