package postgres_test

import (
	"context"
	"database/sql"
	valuer "database/sql/driver"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib" // and the driver "pgx"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// sqlDB returns a db that knows nothing of locks, with at most so many connections; 0: any number.
// Its driver sends each statement's text, as behind a pooler.
func sqlDB(t *testing.T, addr string, most int) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", "postgres://postgres@"+addr+
		"/postgres?sslmode=disable&application_name=theirs&default_query_exec_mode=exec")
	must(t, err)
	db.SetMaxOpenConns(most)
	t.Cleanup(func() { _ = db.Close() }) // a test may have closed it
	return db
}

// overSQL returns a Locker over a db.
func overSQL(
	t *testing.T, db *sql.DB, o *postgres.Options, opts ...fencelock.Option,
) *fencelock.Locker {
	t.Helper()
	d, err := postgres.NewSQL(db, o)
	must(t, err)
	l, err := fencelock.New(d, opts...)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// says fails the test unless err matches target and says what.
func says(t *testing.T, call string, err, target error, what string) {
	t.Helper()
	if !errors.Is(err, target) || !strings.Contains(fmt.Sprint(err), what) {
		t.Errorf("%s: got %v, want one that matches %v and says %q", call, err, target, what)
	}
}

func TestSQLOptions(t *testing.T) {
	t.Parallel()
	db := sqlDB(t, "127.0.0.1:1", 0)
	for _, tt := range []struct {
		db   *sql.DB
		opts *postgres.Options
		want error
		says string
	}{
		{nil, nil, fencelock.ErrInvalid, "nil"},
		{db, &postgres.Options{Mode: postgres.Row}, fencelock.ErrUnsupported, `mode "lease"`},
		{db, &postgres.Options{Mode: postgres.Advisory}, fencelock.ErrUnsupported, `mode "lease"`},
		{db, &postgres.Options{Mode: "raw"}, fencelock.ErrInvalid, `mode "raw"`},
		{db, &postgres.Options{Prefix: "x", NoPrefix: true}, fencelock.ErrInvalid, "NoPrefix"},
		{db, &postgres.Options{Schema: "it's"}, fencelock.ErrInvalid, "schema"},
	} {
		_, err := postgres.NewSQL(tt.db, tt.opts)
		says(t, fmt.Sprintf("%+v", tt.opts), err, tt.want, tt.says)
	}
	for _, mode := range []postgres.Mode{"", postgres.Lease} { // a server that is not there is nobody's business yet
		d, err := postgres.NewSQL(db, &postgres.Options{Mode: mode})
		must(t, err)
		must(t, d.Close())
	}
}

// A db is the program's: as many connections, with nothing set, after as before.
func TestSQLStaysTheProgram(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	db := sqlDB(t, s.Addr(), 3)
	d, err := postgres.NewSQL(db, nil)
	must(t, err)
	if n := db.Stats().OpenConnections; n != 0 {
		t.Errorf("NewSQL has made %d connections", n)
	}
	l, err := fencelock.New(d)
	must(t, err)
	unlock(t, lock(t, l.Mutex("x")))
	must(t, l.Close())
	var left int
	must(t, db.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM pg_settings WHERE source = 'session')
		+ (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')`).Scan(&left))
	if now := db.Stats(); left != 0 || now.InUse != 0 || now.MaxOpenConnections != 3 {
		t.Errorf("%d settings and locks are left, and the db is %+v", left, now)
	}
}

// The lock is one, whatever the way to it.
func TestSQLAndPoolExclude(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	a, b := overSQL(t, sqlDB(t, s.Addr(), 0), nil), open(t, at(s.Addr(), postgres.Lease))
	le := lock(t, a.Mutex("x"))
	_, err := b.Mutex("x").TryLock(t.Context())
	want(t, "TryLock", err, fencelock.ErrLocked)
	info, err := b.Inspect(t.Context(), "x")
	must(t, err)
	if info.Token != le.Token() || info.Owner != le.Owner() {
		t.Errorf("Inspect: got %+v, want the token %d of %s", info, le.Token(), le.Owner())
	}
	for _, l := range []*fencelock.Locker{b, a, b} { // each waits for the other
		wait := queue(t, l, "x", 1)
		unlock(t, le)
		next := wait.Granted(t, 2*time.Second)
		if next.Token() <= le.Token() {
			t.Errorf("token %d after %d", next.Token(), le.Token())
		}
		le = next
	}
	unlock(t, le)
}

// A waiter over a sql.DB is woken by a push if it can listen, and otherwise asks.
func TestSQLHandOver(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	listen, err := pgx.ParseConfig(s.URL())
	must(t, err)
	holder := open(t, at(s.Addr(), postgres.Lease))
	for _, tt := range []struct {
		what string
		opts *postgres.Options
		most time.Duration
	}{
		{"with Options.Listen", &postgres.Options{Listen: listen}, 200 * time.Millisecond},
		{"without", nil, time.Second},
	} {
		l := overSQL(t, sqlDB(t, s.Addr(), 0), tt.opts)
		took := time.Hour
		for range 3 {
			le := lock(t, holder.Mutex("x"))
			wait := queue(t, l, "x", 1)
			<-time.After(time.Second) // what listens comes up; the pause of what asks is 250 ms
			began := time.Now()
			unlock(t, le)
			unlock(t, wait.Granted(t, 3*time.Second))
			took = min(took, wait.At.Sub(began))
		}
		t.Logf("%s: handed over after %v", tt.what, took.Round(time.Millisecond))
		if took > tt.most {
			t.Errorf("%s: handed over after %v, want at most %v", tt.what, took, tt.most)
		}
		must(t, l.Close())
	}
}

func TestSQLLostReplies(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p, proxy := pool(t, s, ""), proxied(t, s)
	l := overSQL(t, sqlDB(t, proxy.Addr(), 0), nil, fencelock.WithTTL(time.Minute))
	unlock(t, lock(t, l.Mutex("warm")))
	proxy.LoseReplyTo(1, calling("fencelock_acquire"))
	le := lock(t, l.Mutex("x"))
	if drawn := one[int64](t, p, "SELECT last_value FROM fencelock_token"); drawn != le.Token() {
		t.Errorf("the last token drawn is %d, the lease has %d: want no second token", drawn, le.Token())
	}
	proxy.LoseReplyTo(1, calling("fencelock_renew"))
	must(t, le.Renew(t.Context()))
	proxy.LoseReplyTo(1, calling("fencelock_release"))
	unlock(t, le)
	if n := proxy.Counts().LostReplies; n != 3 {
		t.Errorf("%d replies were lost, want 3", n)
	}
	await(t, 3*time.Second, "no row is left", func() bool { return leftovers(t, p) == 0 })
}

// A program that has used up its db is told so, and loses nothing by having asked.
func TestSQLUsedUp(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	db := sqlDB(t, s.Addr(), 1)
	l := overSQL(t, db, nil)
	le := lock(t, l.Mutex("held"))
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	for _, patience := range []time.Duration{300 * time.Millisecond, 2 * time.Second} {
		began := time.Now()
		_, err = l.Mutex("x").Lock(within(t, patience))
		says(t, "Lock", err, context.DeadlineExceeded, "SetMaxOpenConns")
		want(t, "Lock", err, fencelock.ErrUnavailable)
		if took := time.Since(began); took > patience+500*time.Millisecond {
			t.Errorf("Lock with a ctx of %v took %v", patience, took)
		}
	}
	_, err = l.Mutex("x").TryLock(t.Context())
	says(t, "TryLock", err, fencelock.ErrUnavailable, "SetMaxOpenConns")
	_, err = l.Inspect(t.Context(), "x")
	says(t, "Inspect", err, fencelock.ErrUnavailable, "SetMaxOpenConns")
	must(t, tx.Rollback())
	unlock(t, le)
	unlock(t, lock(t, l.Mutex("x")))
}

// With connections of its own the driver keeps and frees locks while the program has used up its db.
func TestSQLUsedUpWithListen(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	listen, err := pgx.ParseConfig(s.URL())
	must(t, err)
	db := sqlDB(t, s.Addr(), 1)
	l := overSQL(t, db, &postgres.Options{Listen: listen}, fencelock.WithTTL(2*time.Second))
	le := lock(t, l.Mutex("held"))
	conn, err := db.Conn(t.Context())
	must(t, err)
	<-time.After(5 * time.Second)
	must(t, le.Err())
	unlock(t, le)
	unlock(t, lock(t, l.Mutex("x")))
	must(t, conn.Close())
}

func TestSQLClosed(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	db := sqlDB(t, s.Addr(), 0)
	l := overSQL(t, db, nil)
	le := lock(t, l.Mutex("x"))
	must(t, db.Close())
	_, err := l.Mutex("y").TryLock(t.Context())
	says(t, "TryLock", err, fencelock.ErrUnavailable, "database is closed")
	says(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrUnavailable, "database is closed")
}

// Connections that have died in the db cost no call, and a Break whose reply is lost is not sent
// again: a second copy could free the next holder's lock.
func TestSQLBreak(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	proxy := proxied(t, s)
	db := sqlDB(t, proxy.Addr(), 0)
	db.SetMaxIdleConns(8)
	d, err := postgres.NewSQL(db, nil)
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	_, err = call(d).Acquire(t.Context(), request("x", ""))
	must(t, err)
	var conns []*sql.Conn
	for range 8 {
		conn, err := db.Conn(t.Context())
		must(t, err)
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		must(t, conn.Close())
	}
	proxy.Cut()
	must(t, d.Break(t.Context(), "x"))
	free(t, d, "x")
	var sent atomic.Int64
	proxy.LoseReplyTo(2, func(request []byte) bool {
		return calling("fencelock_break")(request) && sent.Add(1) > 0
	})
	if err := d.Break(t.Context(), "x"); err == nil || backend.Final(err) {
		t.Errorf("Break whose reply is lost: got %v, want that nobody knows", err)
	}
	if n := sent.Load(); n != 1 {
		t.Errorf("the Break was sent %d times", n)
	}
}

// badConns makes connections that say ErrBadConn of whatever breaks them, as lib/pq does of an end in the middle.
type badConns struct{ valuer.Connector }

func (c badConns) Connect(ctx context.Context) (valuer.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return badConn{conn.(*stdlib.Conn)}, nil
}

type badConn struct{ *stdlib.Conn }

func (c badConn) QueryContext(ctx context.Context, text string, args []valuer.NamedValue) (valuer.Rows, error) {
	rows, err := c.Conn.QueryContext(ctx, text, args)
	if c.Conn.Conn().IsClosed() {
		err = valuer.ErrBadConn
	}
	return rows, err
}

// A request that arrives late, after its connection was said to be a bad one and its copy was granted and released,
// is granted nothing more. A few connections that have died cost no call anything.
func TestSQLBadConn(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	way := newResetting(t, s.Addr())
	way.later = make(chan struct{})
	later := sync.OnceFunc(func() { close(way.later) })
	t.Cleanup(later)
	config, err := pgx.ParseConfig("postgres://postgres@" + way.Addr().String() +
		"/postgres?sslmode=disable&application_name=theirs&default_query_exec_mode=exec")
	must(t, err)
	db := sql.OpenDB(badConns{stdlib.GetConnector(*config)})
	t.Cleanup(func() { must(t, db.Close()) })
	l := overSQL(t, db, nil, fencelock.WithTTL(time.Minute))
	unlock(t, lock(t, l.Mutex("x")))
	var sent atomic.Int64
	way.mu.Lock()
	way.late = func(request []byte) bool { return calling("fencelock_acquire")(request) && sent.Add(1) == 1 }
	way.mu.Unlock()
	le, err := l.Mutex("x").TryLock(t.Context())
	must(t, err)
	unlock(t, le)
	p := pool(t, s, "")
	const asked = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query LIKE '%fencelock_acquire%'"
	before := one[int](t, p, asked)
	later()
	await(t, 10*time.Second, "the request has arrived", func() bool { return one[int](t, p, asked) > before })
	other := open(t, at(s.Addr(), postgres.Lease))
	le, err = other.Mutex("x").TryLock(t.Context())
	must(t, err)
	unlock(t, le)

	db.SetMaxIdleConns(8)
	for _, try := range []func() (*fencelock.Lease, error){
		func() (*fencelock.Lease, error) { return l.Mutex("x").TryLock(t.Context()) },
		func() (*fencelock.Lease, error) { return l.Mutex("x").Lock(within(t, 10*time.Second)) },
	} {
		var conns []*sql.Conn
		for range 8 {
			conn, err := db.Conn(t.Context())
			must(t, err)
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			must(t, conn.Close())
		}
		run(t, p, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'theirs'")
		began := time.Now()
		le, err := try()
		must(t, err)
		t.Logf("among connections that have died: %v", time.Since(began).Round(time.Millisecond))
		unlock(t, le)
	}
}

// free fails the test unless a lock is free.
func free(t *testing.T, d *postgres.Driver, name string) {
	t.Helper()
	if info, err := call(d).Inspect(t.Context(), name); err != nil || info.Held {
		t.Errorf("%s: got %+v, %v, want it free", name, info, err)
	}
}

// A network that carries nothing costs no caller more than its ctx.
func TestSQLBlackHole(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	proxy := proxied(t, s)
	l := overSQL(t, sqlDB(t, proxy.Addr(), 0), nil)
	unlock(t, lock(t, l.Mutex("x")))
	proxy.Set(faultproxy.BlackHole)
	t.Cleanup(func() { proxy.Set(faultproxy.Mode{}); proxy.Cut() })
	began := time.Now()
	_, err := l.Mutex("x").Lock(within(t, time.Second))
	want(t, "Lock", err, context.DeadlineExceeded)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Lock with a ctx of 1s took %v", took)
	}
}

// accounts is the database of ExampleNewSQL.
var accounts = "postgres://localhost/accounts"

// Locks over the sql.DB that a program has. What the holder writes is guarded by the token, in the
// transaction of the write.
func ExampleNewSQL() {
	ctx := context.Background()
	db, err := sql.Open("pgx", accounts) // or lib/pq
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	driver, err := postgres.NewSQL(db, nil)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := fencelock.New(driver)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	err = locker.Do(ctx, "account/7", func(ctx context.Context, lease *fencelock.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := postgres.CheckTokenSQL(ctx, tx, "", "account/7", lease.Token()); err != nil {
			return err // ErrStale: a later holder was here
		}
		if _, err := tx.ExecContext(ctx, "UPDATE account SET total = total - 30 WHERE id = 7"); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("committed")
}

func TestExampleNewSQL(t *testing.T) {
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	run(t, p, "CREATE TABLE account (id int PRIMARY KEY, total int); INSERT INTO account VALUES (7, 100)")
	accounts = s.URL()
	ExampleNewSQL()
	if total := one[int](t, p, "SELECT total FROM account"); total != 70 {
		t.Errorf("the total is %d, want 70", total)
	}
	if n := one[int](t, p, "SELECT count(*) FROM fencelock_guard"); n != 1 {
		t.Errorf("%d resources are guarded, want 1", n)
	}
}
