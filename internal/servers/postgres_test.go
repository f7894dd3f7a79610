package servers_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"
)

// query runs SQL on a server and returns its first value.
func query(t *testing.T, s *servers.PostgresServer, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got, err := s.Query(ctx, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

func TestPostgresKeepsAndLosesItsData(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"log_statement=all"}})
	query(t, s, "CREATE TABLE t (n int)")
	query(t, s, "INSERT INTO t VALUES (7)")
	must(t, s.Kill())
	must(t, s.Start())
	expect(t, "after kill", query(t, s, "SELECT n FROM t"), "7")
	must(t, s.Stop())
	must(t, s.Start())
	expect(t, "after stop", query(t, s, "SELECT n FROM t"), "7")
	must(t, s.Restart(false))
	expect(t, "after restart without data", query(t, s, "SELECT count(*) FROM pg_tables WHERE tablename = 't'"), "0")
	expect(t, "setting", query(t, s, "SHOW log_statement"), "all")
	if !strings.HasPrefix(s.URL(), "postgres://postgres@"+s.Addr()) {
		t.Errorf("URL is %q", s.URL())
	}
}

func TestPausedPostgresIsSilent(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	must(t, s.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got, err := s.Query(ctx, "SELECT 1"); !errors.Is(err, os.ErrDeadlineExceeded) &&
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused server answered %q, %v", got, err)
	}
	must(t, s.Resume())
	expect(t, "after resume", query(t, s, "SELECT 1"), "1")
	if _, err := s.Query(t.Context(), "SELECT nonsense"); err == nil || !strings.Contains(err.Error(), "42703") {
		t.Errorf("got %v, want the server's error with its code", err)
	}
}

func TestPostgresReplicaIsPromoted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two servers and a copy")
	}
	primary := servers.Postgres(t, servers.PostgresOptions{})
	replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{Synchronous: true})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	query(t, primary, "CREATE TABLE t (n int)")
	query(t, primary, "INSERT INTO t VALUES (7)")
	must(t, replica.AwaitCaughtUp(ctx, primary))
	expect(t, "on the replica", query(t, replica, "SELECT n FROM t"), "7")
	if _, err := replica.Query(ctx, "INSERT INTO t VALUES (8)"); err == nil {
		t.Error("a replica took a write")
	}
	must(t, replica.Restart(false)) // copies the primary anew
	must(t, replica.AwaitCaughtUp(ctx, primary))
	must(t, primary.Kill())
	must(t, replica.Promote(ctx))
	query(t, replica, "INSERT INTO t VALUES (8)")
	expect(t, "after promotion", query(t, replica, "SELECT sum(n) FROM t"), "15")
}
