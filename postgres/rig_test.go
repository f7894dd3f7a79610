package postgres_test

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/fencelock/fencelock/postgres"
)

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

// open returns a Locker of its own: one more client of the store.
func open(t *testing.T, url string, opts ...fencelock.Option) *fencelock.Locker {
	t.Helper()
	l, err := fencelock.Open(t.Context(), url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the test may have taken its server away
	return l
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
	p, err := faultproxy.New(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want fails the test unless err matches target.
func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

// await returns when ok does, and fails the test if that takes too long.
func await(t *testing.T, most time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", most, what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// within is a ctx of the test that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// lock takes a lock that is free, or soon will be.
func lock(t *testing.T, m fencelock.Mutex) *fencelock.Lease {
	t.Helper()
	le, err := m.Lock(within(t, 15*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return le
}

// unlock frees a lock that is surely held.
func unlock(t *testing.T, le *fencelock.Lease) {
	t.Helper()
	if err := le.Unlock(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
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

// pending is a Lock that waits on a goroutine of its own.
type pending struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has returned
	at     time.Time     // when; with what follows valid once done is closed
	lease  *fencelock.Lease
	err    error
}

// queue begins to wait for a lock that is held and returns when the server has n waiters.
func queue(t *testing.T, l *fencelock.Locker, name string, n int) *pending {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &pending{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.lease, p.err = l.Mutex(name).Lock(ctx)
		p.at = time.Now()
	}()
	t.Cleanup(func() { p.cancel(); <-p.done })
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

// granted returns the lease of a wait, which must have been granted in time.
func (p *pending) granted(t *testing.T, most time.Duration) *fencelock.Lease {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(most):
		t.Fatalf("not granted within %v", most)
	}
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.lease
}

// lost waits for the end of a lease and checks its reason, if there is one to check.
func lost(t *testing.T, le *fencelock.Lease, most time.Duration, reasons ...fencelock.Reason) time.Time {
	t.Helper()
	select {
	case <-le.Done():
	case <-time.After(most):
		t.Fatalf("the loss was not seen within %v", most)
	}
	seen := time.Now()
	var l *fencelock.LostError
	if !errors.As(le.Err(), &l) {
		t.Fatalf("got %v, want a loss", le.Err())
	}
	for _, r := range reasons {
		if l.Reason == r {
			return seen
		}
	}
	if len(reasons) > 0 {
		t.Errorf("got %v, want one of %v", l, reasons)
	}
	return seen
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
		'{0}', '{0}', '{NULL}', ARRAY[fencelock_gates_now()], '{-1}', '', 0, 2000, $3)`
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
