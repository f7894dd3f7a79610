package stores

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// replicaName is the name by which a primary knows its replica.
const replicaName = "fencelock_replica"

// PostgresReplicaOptions describes a replica.
type PostgresReplicaOptions struct {
	Synchronous bool // the primary confirms a commit only when the replica has it
}

// StartPostgresReplica copies the primary and starts a replica that follows it. Wiped and started
// again, it copies it anew.
func StartPostgresReplica(
	ctx context.Context, l Launcher, primary *PostgresServer, o PostgresReplicaOptions,
) (*PostgresServer, error) {
	conn := fmt.Sprintf("host=127.0.0.1 port=%s user=%s application_name=%s sslmode=disable",
		portOf(primary.addr), pgUser, replicaName)
	r, err := startPostgres(ctx, l, nil, copyOf(conn))
	if err != nil {
		return nil, err
	}
	err = r.awaitStreaming(ctx)
	if err == nil && o.Synchronous {
		err = primary.setSynchronous(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// copyOf is the origin of a replica.
func copyOf(conn string) origin {
	return func(_ context.Context, i *pgInstall, dir, data string) (func(context.Context) error, string, error) {
		args := []string{
			i.program("pg_basebackup"), "-d", conn, "-D", data, "-R", "-X", "stream", "-c", "fast",
			"--no-sync",
		}
		// The primary's own wish for a synchronous replica comes along; promoted, this one would wait for ever.
		const alone = "synchronous_standby_names = ''"
		setup := func(ctx context.Context) error {
			if err := run(ctx, dir, i.user, args...); err != nil {
				return err
			}
			f, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString(alone + "\n")
			return errors.Join(err, f.Close())
		}
		script := `$as pg_basebackup -d "` + conn + `" -D "$data" -R -X stream -c fast --no-sync
	echo "` + alone + `" >>"$data/postgresql.auto.conf"`
		return setup, script, nil
	}
}

// awaitStreaming waits until the replica receives what the primary writes.
func (s *PostgresServer) awaitStreaming(ctx context.Context) error {
	return s.awaitValue(ctx, "SELECT coalesce((SELECT status FROM pg_stat_wal_receiver), 'none')", "streaming")
}

// AwaitCaughtUp waits until a replica has replayed all that the primary had written when it was called.
func (s *PostgresServer) AwaitCaughtUp(ctx context.Context, primary *PostgresServer) error {
	at, err := primary.Query(ctx, "SELECT pg_current_wal_lsn()")
	if err != nil {
		return err
	}
	return s.awaitValue(ctx, "SELECT pg_last_wal_replay_lsn() >= '"+at+"'", "t")
}

// setSynchronous makes a primary wait for its replica at every commit.
func (s *PostgresServer) setSynchronous(ctx context.Context) error {
	if _, err := s.Query(ctx, "ALTER SYSTEM SET synchronous_standby_names = '"+replicaName+"'"); err != nil {
		return err
	}
	if _, err := s.Query(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	if err := s.awaitValue(ctx, "SHOW synchronous_standby_names", replicaName); err != nil {
		return err
	}
	return s.awaitValue(ctx, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1")
}

// Promote makes a replica a primary and returns when it takes writes. Writes that it had not received are lost.
func (s *PostgresServer) Promote(ctx context.Context) error {
	if _, err := s.Query(ctx, "SELECT pg_promote(false)"); err != nil {
		return err
	}
	return s.awaitValue(ctx, "SELECT pg_is_in_recovery()", "f")
}

// awaitValue waits until a query has a result.
func (s *PostgresServer) awaitValue(ctx context.Context, sql, want string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.until(ctx, func(ctx context.Context) error {
		got, err := s.Query(ctx, sql)
		if err == nil && got != want {
			err = fmt.Errorf("%s: %q instead of %q", sql, got, want)
		}
		return err
	})
}
