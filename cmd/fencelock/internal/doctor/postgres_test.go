package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// alive are settings with which the server finds vanished hosts soon.
const alive = "tcp_keepalives_idle=10"

func sql(t *testing.T, s *servers.PostgresServer, statements ...string) string {
	t.Helper()
	last := ""
	for _, text := range statements {
		var err error
		if last, err = s.Query(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return last
}

// as is a server's URL for a role.
func as(s *servers.PostgresServer, role string) string {
	return "postgres://" + role + "@" + s.Addr() + "/postgres?sslmode=disable"
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{alive}})
	for _, mode := range []string{"row", "lease"} {
		finds(t, examine(t, with(t, s.URL(), "mode", mode)), "postgres-schema-missing")
	}
	if n := sql(t, s, "SELECT count(*) FROM pg_class WHERE relname LIKE 'fencelock%'"); n != "0" {
		t.Errorf("the examination made %s objects", n)
	}
	for _, mode := range []string{"row", "lease"} {
		use(t, with(t, s.URL(), "mode", mode))
		r := examine(t, with(t, s.URL(), "mode", mode))
		finds(t, r)
		sound(t, r)
		if r.Backend != "postgres-"+mode {
			t.Errorf("backend %q, want mode %s", r.Backend, mode)
		}
	}
	has(t, examine(t, s.URL(), behind(time.Minute)), "clock-differs", "ahead")
	has(t, examine(t, s.URL(), tooOld("postgres")), "postgres-version", "1")
	finds(t, examine(t, with(t, s.URL(), "pool_max_conns", "500")), "postgres-connections")
	finds(t, examine(t, with(t, s.URL(), "options", "-c statement_timeout=4000")), "postgres-statement-timeout")
	slow := "postgres://postgres@" + delayed(t, s.Addr(), 30*time.Millisecond) + "/postgres?sslmode=disable"
	finds(t, examine(t, with(t, slow, "ttl", "400ms")), "round-trip-slow")
}

// A lease of mode row that is held for long holds back vacuum, whatever the mode of the URL is; one
// of mode advisory does not, but whoever waits for it does.
func TestPostgresLongHold(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{alive}})
	l, err := fencelock.Open(t.Context(), s.URL())
	must(t, err)
	defer l.Close()
	le, err := l.Mutex("leader").TryLock(t.Context())
	must(t, err)
	at := with(t, s.URL(), "mode", "lease")
	finds(t, examine(t, at))
	at = with(t, at, "application_name", "fl 0 of a waiter")
	finds(t, examine(t, at, func(x *exam) { x.hold = time.Millisecond }), "postgres-long-hold")
	has(t, examine(t, at, func(x *exam) { x.hold = 0 }), "postgres-long-hold", "1 for more than 0s")
	must(t, le.Unlock(t.Context()))
	finds(t, examine(t, at, func(x *exam) { x.hold = 0 }))

	l, err = fencelock.Open(t.Context(), with(t, s.URL(), "mode", "advisory"))
	must(t, err)
	defer l.Close()
	le, err = l.Mutex("leader").TryLock(t.Context())
	must(t, err)
	finds(t, examine(t, at, func(x *exam) { x.hold = 0 }))
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { _, err := l.Mutex("leader").Lock(ctx); waited <- err }()
	for info, err := l.Inspect(t.Context(), "leader"); info.Waiters == 0; info, err = l.Inspect(t.Context(), "leader") {
		must(t, err)
	}
	has(t, examine(t, at, func(x *exam) { x.hold = 0 }), "postgres-long-hold", "1 for more than 0s")
	cancel()
	<-waited
	must(t, le.Unlock(t.Context()))
}

// Settings in force for a role.
func TestPostgresSettings(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{alive}})
	use(t, with(t, s.URL(), "mode", "lease"))
	for _, tt := range []struct{ setting, to, id, value string }{
		{"synchronous_commit", "off", "postgres-async-commit", "off"},
		{"statement_timeout", "800", "postgres-statement-timeout", "800 ms"},
		{"lock_timeout", "50", "postgres-lock-timeout", "50 ms"},
		{"idle_session_timeout", "60000", "postgres-idle-session", "60000 ms"},
		{"default_transaction_read_only", "on", "postgres-read-only", "on"},
		{"tcp_keepalives_idle", "7200", "postgres-keepalives", "7200 s"},
	} {
		sql(t, s, "ALTER ROLE postgres SET "+tt.setting+" = '"+tt.to+"'")
		r := examine(t, with(t, s.URL(), "mode", "lease"))
		finds(t, r, tt.id)
		has(t, r, tt.id, tt.value)
		if tt.id == "postgres-idle-session" {
			finds(t, examine(t, s.URL())) // of no concern to mode row
		}
		sql(t, s, "BEGIN READ WRITE; ALTER ROLE postgres RESET "+tt.setting+"; COMMIT")
	}
	for _, key := range []string{"synchronous_commit=off", "statement_timeout=800", "lock_timeout=50"} {
		k, v, _ := strings.Cut(key, "=")
		if r := examine(t, with(t, s.URL(), k, v)); len(r.Findings) != 1 || r.Findings[0].Setting != k {
			t.Errorf("%s in the URL: found %+v", key, r.Findings)
		}
	}
}

// These do not cut holders, and are not found: the driver sets them for its own transactions.
func TestPostgresSettingsThatDoNotMatter(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{
		Config: []string{
			alive, "idle_in_transaction_session_timeout=300", "client_connection_check_interval=0",
		},
	})
	l, err := fencelock.Open(t.Context(), s.URL())
	must(t, err)
	defer l.Close()
	le, err := l.Mutex("x", fencelock.WithTTL(20*time.Second)).TryLock(t.Context())
	must(t, err)
	select {
	case <-le.Done():
		t.Errorf("the holder was cut: %v", le.Err())
	case <-time.After(time.Second): // three times the server's setting
	}
	finds(t, examine(t, s.URL()))
	must(t, le.Unlock(t.Context()))
}

func TestPostgresDurability(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{
		Config: []string{alive, "fsync=off", "full_page_writes=off", "synchronous_commit=off"},
	})
	finds(t, examine(t, s.URL()), "postgres-async-commit", "postgres-fsync",
		"postgres-full-page-writes", "postgres-schema-missing")
}

func TestPostgresStandby(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two servers and a copy")
	}
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{alive}})
	use(t, s.URL())
	sql(t, s, "CREATE ROLE app LOGIN",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app",
		"GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO app")
	standby := servers.PostgresReplica(t, s, servers.PostgresReplicaOptions{})
	must(t, standby.AwaitCaughtUp(t.Context(), s))
	finds(t, examine(t, s.URL()), "postgres-async-standby")
	finds(t, examine(t, as(s, "app")), "postgres-replication-unseen")
	r := examine(t, standby.URL())
	has(t, r, "postgres-read-only", "a standby")
	both := "postgres://postgres@" + standby.Addr() + "," + s.Addr() + "/postgres?sslmode=disable"
	has(t, examine(t, both), "postgres-hosts", "any")
	finds(t, examine(t, both+"&target_session_attrs=read-write"), "postgres-async-standby")
	sql(t, s, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	await(t, "the standby is synchronous", func() bool {
		return sql(t, s, "SELECT sync_state FROM pg_stat_replication") == "sync"
	})
	finds(t, examine(t, s.URL()))
	has(t, examine(t, with(t, s.URL(), "synchronous_commit", "local")), "postgres-async-standby", "local")
}

func TestPostgresRoles(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{alive}})
	sql(t, s, "CREATE ROLE app LOGIN", "CREATE ROLE few LOGIN CONNECTION LIMIT 5",
		"CREATE SCHEMA closed", "CREATE SCHEMA locks", "CREATE SCHEMA \"od d\"")
	// Version 15 lets nobody but the owner create in public.
	has(t, examine(t, as(s, "app")), "postgres-schema", "missing in schema public")
	has(t, examine(t, with(t, as(s, "app"), "schema", "closed")), "postgres-rights", "no USAGE on schema closed")
	has(t, examine(t, with(t, as(s, "app"), "schema", "nowhere")), "postgres-schema", "no schema")
	sql(t, s, "GRANT CREATE, USAGE ON SCHEMA locks TO app")
	finds(t, examine(t, with(t, as(s, "app"), "schema", "locks")), "postgres-schema-missing")
	use(t, with(t, s.URL(), "schema", "od d"))
	finds(t, examine(t, with(t, s.URL(), "schema", "od d")))

	use(t, s.URL())
	r := examine(t, as(s, "app"))
	finds(t, r, "postgres-rights")
	has(t, r, "postgres-rights", "fencelock_")
	sql(t, s, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app, few",
		"GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO app, few")
	finds(t, examine(t, as(s, "app")))
	use(t, as(s, "app"))
	finds(t, examine(t, as(s, "few")), "postgres-connections")
	await(t, "the server has ended that session", func() bool {
		return sql(t, s, "SELECT count(*)::text FROM pg_stat_activity WHERE usename = 'few'") == "0"
	})
	has(t, examine(t, as(s, "few")), "postgres-connections", "room for 5")
	sql(t, s, "REVOKE DELETE ON fencelock_queue FROM app")
	has(t, examine(t, as(s, "app")), "postgres-rights", "DELETE on fencelock_queue")
	sql(t, s, "GRANT DELETE ON fencelock_queue TO app", "REVOKE EXECUTE ON FUNCTION fencelock_break FROM PUBLIC")
	has(t, examine(t, as(s, "app")), "postgres-rights", "EXECUTE on fencelock_break")
	sql(t, s, "GRANT EXECUTE ON FUNCTION fencelock_break TO PUBLIC",
		"CREATE OR REPLACE FUNCTION fencelock_version() RETURNS int LANGUAGE "+
			"sql IMMUTABLE AS 'SELECT 7'")
	has(t, examine(t, as(s, "app")), "postgres-schema-old", "version 7")
	finds(t, examine(t, s.URL()), "postgres-schema-old") // the owner's too
	sql(t, s, "CREATE SCHEMA other",
		"CREATE FUNCTION other.fencelock_version() RETURNS int LANGUAGE "+
			"sql IMMUTABLE AS 'SELECT 7'")
	// though tables are missing
	has(t, examine(t, with(t, s.URL(), "schema", "other")), "postgres-schema-old", "version 7")
	sql(t, s, "REVOKE USAGE ON SCHEMA public FROM PUBLIC")
	has(t, examine(t, with(t, as(s, "app"), "schema", "public")), "postgres-rights", "no USAGE on schema public")
	refused(t, as(s, "nobody")+"&password=s3cret", "s3cret", backend.ErrInvalid)
	refused(t, strings.Replace(as(s, "app"), "/postgres?", "/nodatabase?", 1), "", backend.ErrInvalid)
}

// bouncer starts PgBouncer in a mode, and returns its URL.
func bouncer(t *testing.T, s *servers.PostgresServer, mode string) string {
	t.Helper()
	program := servers.Program(t, "pgbouncer", "pgbouncer", "/usr/sbin/pgbouncer")
	host, port, _ := net.SplitHostPort(s.Addr())
	addr := closedPort(t)
	_, mine, _ := net.SplitHostPort(addr)
	dir, err := os.MkdirTemp("", "fencelock-pgbouncer-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	ini := filepath.Join(dir, "pgbouncer.ini")
	must(t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
postgres = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = 60
ignore_startup_parameters = extra_float_digits
`, host, port, mine, mode), 0o644))
	cmd := exec.Command(program, ini)
	if os.Getuid() == 0 { // it refuses to run as root
		account, err := user.Lookup("nobody")
		must(t, err)
		uid, err := strconv.ParseUint(account.Uid, 10, 32)
		must(t, err)
		asUser(cmd, uint32(uid))
	}
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // killed
	await(t, "pgbouncer listens", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

func TestPostgresPooler(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{alive}})
	use(t, s.URL())
	for _, mode := range []string{"transaction", "statement"} {
		through := bouncer(t, s, mode)
		finds(t, examine(t, through), "postgres-pooler")
		finds(t, examine(t, with(t, through, "mode", "lease")), "postgres-pooler-listen")
		finds(t, examine(t, with(t, through, "mode", "lease", "listen_url", s.URL())))
	}
	session := bouncer(t, s, "session")
	finds(t, examine(t, session), "postgres-pooler-session")
	finds(t, examine(t, with(t, session, "mode", "lease")), "postgres-pooler-session")
}

// The tables that rights are asked for are those of the schema.
func TestObjectsAreThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	conn, err := pgx.Connect(t.Context(), s.URL())
	must(t, err)
	defer conn.Close(t.Context())
	must(t, postgres.CreateSchema(t.Context(), conn, ""))
	for kind, want := range map[string][]string{"r": tables, "S": sequences} {
		var n int
		must(t,
			conn.QueryRow(t.Context(),
				"SELECT count(*) FROM pg_class WHERE relname LIKE "+
					"'fencelock%' AND relkind::text = $1",
				kind).Scan(&n))
		if n != len(want) || n == 0 {
			t.Errorf("the schema has %d objects of kind %s, the doctor knows %v", n, kind, want)
		}
	}
}
