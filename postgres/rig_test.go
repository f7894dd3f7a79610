package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/postgres"
)

// What all drivers' tests do alike.
var (
	open   = testkit.Open
	must   = testkit.Must
	want   = testkit.Want
	await  = testkit.Await
	within = testkit.Within
	lock   = testkit.Lock
	unlock = testkit.Unlock
	lost   = testkit.Lost
)

type pending = testkit.Pending

// modes are for tests that hold for each.
var modes = []postgres.Mode{postgres.Row, postgres.Advisory, postgres.Lease}

// inTx runs a test for each mode whose lease is a transaction.
func inTx(
	test func(*testing.T, *servers.PostgresServer, postgres.Mode),
) func(*testing.T, *servers.PostgresServer) {
	return func(t *testing.T, s *servers.PostgresServer) {
		for _, mode := range modes[:2] {
			t.Run(string(mode), func(t *testing.T) { test(t, s, mode) })
		}
	}
}

// at is the URL of a server, by its address, with keys.
func at(addr string, mode postgres.Mode, keys ...string) string {
	q := url.Values{"sslmode": {"disable"}, "mode": {string(mode)}}
	for i := 0; i+1 < len(keys); i += 2 {
		q.Set(keys[i], keys[i+1])
	}
	return "postgres://postgres@" + addr + "/postgres?" + q.Encode()
}

// listening returns a Locker of mode lease that listens by this address, and what returns once it
// has heard the push that it sends to itself.
func listening(
	t *testing.T, s *servers.PostgresServer, addr, prefix string,
) (*fencelock.Locker, func()) {
	t.Helper()
	config, err := pgx.ParseConfig("postgres://postgres@" + addr + "/postgres?sslmode=disable")
	must(t, err)
	heard := make(chan struct{})
	done := sync.OnceFunc(func() { close(heard) })
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return tap{conn, done}, err
	}
	l := over(t, pool(t, s, ""), &postgres.Options{Mode: postgres.Lease, Listen: config, Prefix: prefix})
	return l, func() {
		t.Helper()
		select {
		case <-heard:
		case <-time.After(10 * time.Second):
			t.Fatal("no greeting within 10s")
		}
	}
}

// tap tells when the greeting arrives.
type tap struct {
	net.Conn
	greeted func()
}

func (c tap) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if bytes.Contains(p[:n], []byte("hello")) {
		c.greeted()
	}
	return n, err
}

// pool returns a pool that knows nothing of locks.
func pool(t *testing.T, s *servers.PostgresServer, keys string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(context.Background(), s.URL()+keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// over returns a Locker over a pool that the test has made.
func over(t *testing.T, p *pgxpool.Pool, o *postgres.Options, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	d, err := postgres.New(p, o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := fencelock.New(d, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// one is the first column of the first row.
func one[T any](t *testing.T, p *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	rows, err := p.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// run runs SQL.
func run(t *testing.T, p *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := p.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// proxied puts a fault proxy in front of the server.
func proxied(t *testing.T, s *servers.PostgresServer) *faultproxy.Proxy {
	t.Helper()
	return testkit.Proxied(t, s.Addr())
}

// lasts unlocks a lease that must last so long.
func lasts(t *testing.T, le *fencelock.Lease, most time.Duration) {
	t.Helper()
	select {
	case <-le.Done():
		t.Errorf("the lease: %v", le.Err())
	case <-time.After(most):
		unlock(t, le)
	}
}

// queue begins to wait for a lock that is held and returns when the server has n waiters.
func queue(t *testing.T, l *fencelock.Locker, name string, n int) *pending {
	t.Helper()
	p := testkit.Start(t, l.Mutex(name))
	waiters(t, l, name, n)
	return p
}

// waiters returns when the server has n.
func waiters(t *testing.T, l *fencelock.Locker, name string, n int) {
	t.Helper()
	await(t, 10*time.Second, fmt.Sprintf("%d waiters for %q", n, name), func() bool {
		info, err := l.Inspect(t.Context(), name)
		return err == nil && info.Waiters == n
	})
}

// holder is the process of the server that has a lock, of mode row or advisory: the door of the name.
func holder(t *testing.T, p *pgxpool.Pool, name string) int32 {
	t.Helper()
	return one[int32](t, p,
		`SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND objsubid = 1
		AND classid::bigint << 32 | objid::bigint = fencelock_door($1)`, []byte("fencelock:"+name))
}

// takeByHand and acquireByHand are the statements of the two modes for a client that knows the
// gates.
const (
	takeByHand    = "SELECT fencelock_take($1, 0, $2, $3, NULL, fencelock_gates_now(), NULL, NULL)"
	acquireByHand = `SELECT fencelock_acquire(ARRAY[$1::bytea], ARRAY[$2::bytea], '{me}', '{60000}',
		'{0}', '{0}', '{NULL}', ARRAY[fencelock_gates_now()], '{-1}', '{0}', '', 0, 2000, $3)`
)

// leftovers counts the rows that are there for names.
func leftovers(t *testing.T, p *pgxpool.Pool) int {
	t.Helper()
	return one[int](t, p, "SELECT (SELECT count(*) FROM fencelock_row) + (SELECT count(*) FROM "+
		"fencelock_lease) + (SELECT count(*) FROM fencelock_hold) + (SELECT count(*) FROM fencelock_queue)")
}

// caller is a driver, and how the engine calls it.
type caller struct {
	*postgres.Driver
	core.Gater
}

// call returns the caller of d; as in Go, nothing comes of an error before.
func call(d *postgres.Driver) caller { return caller{d, core.Of(d).(core.Gater)} }
