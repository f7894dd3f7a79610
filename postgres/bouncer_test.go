//go:build unix

package postgres_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/gatetest"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// bouncer starts PgBouncer in a mode, with so many connections to the server of an address, and returns its
// own.
func bouncer(t *testing.T, server, mode string, size int) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer"
		if _, err := os.Stat(program); err != nil {
			const how = "pgbouncer is missing; run scripts/setup-tests.sh pgbouncer, or install the package pgbouncer"
			if list := "," + os.Getenv("FENCELOCK_REQUIRE") + ","; strings.Contains(list, ",postgres,") ||
				strings.Contains(list, ",all,") {
				t.Fatal(how)
			}
			t.Skip(how)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	must(t, l.Close())
	host, port, err := net.SplitHostPort(server)
	must(t, err)
	_, mine, err := net.SplitHostPort(addr)
	must(t, err)
	dir, err := os.MkdirTemp("", "fencelock-pgbouncer-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ini := filepath.Join(dir, "pgbouncer.ini")
	must(t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
postgres = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = %d
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
`, host, port, mine, mode, size), 0o644))
	must(t, os.Chmod(dir, 0o755))
	cmd := exec.Command(program, ini)
	if os.Getuid() == 0 { // it refuses to run as root
		account, err := user.Lookup("nobody")
		must(t, err)
		uid, err := strconv.ParseUint(account.Uid, 10, 32)
		must(t, err)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		_ = log.Close()
	})
	await(t, 10*time.Second, "pgbouncer listens", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return addr
}

// Mode lease works behind a pooler in transaction mode, whose connections are shared by all
// clients: more than it has of them hold and wait. Pushes need listen_url; without it the floor
// timer serves.
func TestLeaseBehindPgBouncer(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	addr := bouncer(t, s.Addr(), "transaction", 2)
	p := pool(t, s, "")
	for _, tt := range []struct {
		what string
		keys []string
	}{
		{"with listen_url", []string{"listen_url", s.URL()}},
		{"without", nil},
	} {
		t.Run(tt.what, func(t *testing.T) {
			url := at(addr, postgres.Lease, append([]string{"pool_max_conns", "4", "prefix", tt.what}, tt.keys...)...)
			a, b := open(t, url, fencelock.WithTTL(30*time.Second)), open(t, url)
			var all []*fencelock.Lease
			for i := range 20 {
				all = append(all, lock(t, a.Mutex(fmt.Sprint("x", i))))
			}
			for _, le := range all {
				must(t, le.Renew(t.Context()))
			}
			var last fencelock.Token
			for round := range 3 {
				le := lock(t, a.Mutex("x"))
				if le.Token() <= last {
					t.Errorf("token %d after %d", le.Token(), last)
				}
				wait := queue(t, b, "x", 1)
				if round == 0 {
					<-time.After(time.Second) // the connection that listens comes up
				}
				began := time.Now()
				unlock(t, le)
				next := wait.Granted(t, 5*time.Second)
				t.Logf("handed over after %v", wait.At.Sub(began).Round(time.Millisecond))
				last = next.Token()
				unlock(t, next)
			}
			for _, le := range all {
				unlock(t, le)
			}
			must(t, a.Close())
			must(t, b.Close())
			if n := leftovers(t, p); n != 0 {
				t.Errorf("%d rows are left", n)
			}
		})
	}
	if n := one[int](t, p, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"); n != 0 {
		t.Errorf("%d advisory locks are left in the pooler's sessions", n)
	}
}

// A pooler's connection that carries no pushes does not go on to listen: each push of the database would wake it.
func TestListensNoMoreBehindPgBouncer(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	addr := bouncer(t, s.Addr(), "transaction", 1)
	p, err := pgxpool.New(t.Context(), strings.Replace(s.URL(), s.Addr(), addr, 1)+"&default_query_exec_mode=exec")
	must(t, err)
	t.Cleanup(p.Close)
	le := lock(t, open(t, at(s.Addr(), postgres.Lease)).Mutex("x"))
	wait := queue(t, open(t, at(addr, postgres.Lease, "pool_max_conns", "4")), "x", 1)
	for _, n := range []int{1, 0} {
		await(t, 20*time.Second, fmt.Sprintf("it listens to %d channels", n), func() bool {
			return one[int](t, p, "SELECT count(*) FROM pg_listening_channels()") == n
		})
	}
	unlock(t, le)
	unlock(t, wait.Granted(t, 5*time.Second))
}

// The contract of migrations holds behind a pooler in transaction mode: what marks a holder lasts
// as long as its transaction, or is a row.
func TestGatesBehindPgBouncer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("gates behind a pooler")
	}
	s := servers.Postgres(t, servers.PostgresOptions{})
	addr := bouncer(t, s.Addr(), "transaction", 60)
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			gatetest.Run(t, func(t *testing.T) backend.Driver {
				t.Helper()
				return client(t, at(addr, mode, "pool_max_conns", "12"))
			})
		})
	}
}

// In session mode a pooler tells its own number for the server's process. Waiters are not taken for
// gone by it: they keep their place.
func TestWaitersBehindPgBouncerInSessionMode(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	url := at(bouncer(t, s.Addr(), "session", 60), postgres.Row, "pool_max_conns", "4")
	p := pool(t, s, "")
	a, b, c := open(t, url), open(t, url), open(t, url)
	le := lock(t, a.Mutex("x"))
	first := queue(t, b, "x", 1)
	second := queue(t, c, "x", 2)
	sessions := func() string {
		return one[string](t, p, "SELECT string_agg(DISTINCT pid::text, ' ' ORDER BY pid::text) FROM "+
			"pg_locks WHERE locktype = 'advisory' AND NOT granted")
	}
	before := sessions()
	<-time.After(7 * time.Second) // three looks of each process whether its waiters are there
	if now := sessions(); now != before {
		t.Errorf("the sessions that wait were %s, are %s", before, now)
	}
	unlock(t, le)
	unlock(t, first.Granted(t, 3*time.Second))
	unlock(t, second.Granted(t, 3*time.Second))
	// What a lost reply has got is ended by the process that the server knows.
	d := driver(t, url)
	r := request("y", "")
	_, err := d.Acquire(t.Context(), r)
	must(t, err)
	must(t, d.Abandon(t.Context(), r))
	if info, err := d.Inspect(t.Context(), "y"); err != nil || info.Held {
		t.Errorf("after Abandon: got %+v, %v, want it free", info, err)
	}
}

func TestSQLBehindPgBouncer(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	addr := bouncer(t, s.Addr(), "transaction", 2)
	a, b := overSQL(t, sqlDB(t, addr, 8), nil), overSQL(t, sqlDB(t, addr, 8), nil)
	le := lock(t, a.Mutex("x"))
	wait := queue(t, b, "x", 1)
	must(t, le.Renew(t.Context()))
	unlock(t, le)
	unlock(t, wait.Granted(t, 3*time.Second))
}

// A pooler whose connection to the server breaks ends the client's too, in words of its own: no sign that the COMMIT
// was not done.
func TestCommitWhoseAnswerAPoolerLoses(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	makeNotes(t, p)
	proxy := proxied(t, s)
	addr := bouncer(t, proxy.Addr(), "session", 20)
	for _, mode := range modes[:2] {
		l := open(t, at(addr, mode), fencelock.WithTTL(time.Minute))
		le, _ := noted(t, l, string(mode))
		before := proxy.Counts().LostReplies
		proxy.LoseReplyTo(1, isCommit)
		unlock(t, le)
		wantNotes(t, p, string(mode), 1)
		if n := proxy.Counts().LostReplies - before; n != 1 {
			t.Errorf("%s: %d replies were lost, want 1", mode, n)
		}
	}
}

// Who gives up a lock behind a pooler in transaction mode ends no process that serves another client by now.
func TestAbandonBehindPgBouncer(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	url := at(bouncer(t, s.Addr(), "transaction", 2), postgres.Row, "pool_max_conns", "4")
	d, l := driver(t, url), open(t, url, fencelock.WithTTL(time.Minute))
	release(t, d, request("warm", ""))
	unlock(t, lock(t, l.Mutex("y")))
	for range 20 {
		r := request("a", "")
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		process := holder(t, p, "a")
		must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: g}))
		le := lock(t, l.Mutex("y"))
		if holder(t, p, "y") != process {
			unlock(t, le)
			continue
		}
		r = request("x", "")
		_, err = d.Acquire(t.Context(), r)
		must(t, err)
		must(t, d.Abandon(t.Context(), r))
		if err := le.Renew(t.Context()); err != nil {
			t.Errorf("the other client's lease: %v", err)
		}
		_ = le.Unlock(t.Context())
		return
	}
	t.Error("the pooler gave the two clients no process in common")
}
