package servers

import (
	"context"
	"testing"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// What package stores describes, by the names that tests use.
type (
	PostgresServer         = stores.PostgresServer
	PostgresOptions        = stores.PostgresOptions
	PostgresReplicaOptions = stores.PostgresReplicaOptions
)

// Postgres starts one Postgres server.
func Postgres(tb testing.TB, o PostgresOptions) *PostgresServer {
	tb.Helper()
	return start(tb, "postgres", func(ctx context.Context, l stores.Launcher) (*PostgresServer, error) {
		return stores.StartPostgres(ctx, l, o)
	})
}

// PostgresReplica starts a replica of a server, which can be promoted.
func PostgresReplica(tb testing.TB, primary *PostgresServer, o PostgresReplicaOptions) *PostgresServer {
	tb.Helper()
	return start(tb, "postgres", func(ctx context.Context, l stores.Launcher) (*PostgresServer, error) {
		return stores.StartPostgresReplica(ctx, l, primary, o)
	})
}
