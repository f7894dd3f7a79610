package servers

import (
	"context"
	"testing"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// What package stores describes, by the names that tests use.
type (
	EtcdCluster = stores.EtcdCluster
	EtcdOptions = stores.EtcdOptions
)

// Etcd starts an etcd cluster. The first test that needs it builds the server, which takes a minute or two.
func Etcd(tb testing.TB, o EtcdOptions) *EtcdCluster {
	tb.Helper()
	return start(tb, "etcd", func(ctx context.Context, l stores.Launcher) (*EtcdCluster, error) {
		return stores.StartEtcd(ctx, l, o)
	})
}
