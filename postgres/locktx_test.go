package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// begin begins a transaction that is rolled back with the test, if it is still there.
func begin(t *testing.T, p *pgxpool.Pool, opts ...pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := p.BeginTx(t.Context(), append(opts, pgx.TxOptions{})[0])
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// lockTx locks a name that is free.
func lockTx(t *testing.T, tx pgx.Tx, name string) fencelock.Token {
	t.Helper()
	token, err := postgres.LockTx(within(t, 10*time.Second), tx, name)
	must(t, err)
	return token
}

// held reports what Inspect says.
func held(t *testing.T, l *fencelock.Locker, name string) bool {
	t.Helper()
	info, err := l.Inspect(t.Context(), name)
	must(t, err)
	return info.Held
}

func lockTxExcludes(t *testing.T, s *servers.PostgresServer) {
	p, l := pool(t, s, "&pool_max_conns=30"), open(t, at(s.Addr(), postgres.Row))
	run(t, p, "CREATE TABLE IF NOT EXISTS notes (what text)")
	var last fencelock.Token
	rises := func(what string, token fencelock.Token) {
		t.Helper()
		if token <= last {
			t.Errorf("%s: token %d after %d", what, token, last)
		}
		last = token
	}
	for _, end := range []string{"commit", "rollback"} {
		le := lock(t, l.Mutex("tx"))
		rises("a Mutex", le.Token())
		tx := begin(t, p)
		_, err := postgres.TryLockTx(t.Context(), tx, "tx")
		want(t, "TryLockTx of what a Mutex holds", err, fencelock.ErrLocked)
		unlock(t, le)
		_, err = tx.Exec(t.Context(), note, "tx") // the transaction goes on
		must(t, err)
		const settings = "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM " +
			"pg_settings WHERE name <> 'transaction_isolation'"
		var before, after string
		must(t, tx.QueryRow(t.Context(), settings).Scan(&before))
		rises("LockTx", lockTx(t, tx, "tx"))
		rises("LockTx again", lockTx(t, tx, "tx"))
		must(t, tx.QueryRow(t.Context(), settings).Scan(&after))
		if before != after {
			t.Errorf("the session's settings: got %s, want %s", after, before)
		}
		if !held(t, l, "tx") {
			t.Error("Inspect: not held")
		}
		// A try that waited would wait for ever.
		_, err = l.Mutex("tx").TryLock(t.Context())
		want(t, "TryLock of a Mutex", err, fencelock.ErrLocked)
		_, err = postgres.TryLockTx(t.Context(), begin(t, p), "tx")
		want(t, "TryLockTx of another transaction", err, fencelock.ErrLocked)
		for _, other := range []string{"TX", "tx/", "other"} {
			unlock(t, lock(t, l.Mutex(other)))
		}
		unlock(t, lock(t, open(t, at(s.Addr(), postgres.Row, "prefix", "else:")).Mutex("tx")))
		if end == "commit" {
			must(t, tx.Commit(t.Context()))
		} else {
			must(t, tx.Rollback(t.Context()))
		}
		if held(t, l, "tx") {
			t.Errorf("held after the %s", end)
		}
		token, err := postgres.TryLockTx(t.Context(), begin(t, p), "tx/"+end)
		must(t, err)
		rises("TryLockTx", token)
		le = lock(t, l.Mutex("tx"))
		rises("the next Mutex", le.Token())
		unlock(t, le)
	}
	if n := notes(t, p, "tx"); n != 1 {
		t.Errorf("%d notes, want that of the commit alone", n)
	}
	run(t, p, "SELECT fencelock_tidy(NULL)") // where a transaction has kept a row from being deleted
	await(t, 3*time.Second, "no row is left", func() bool { return leftovers(t, p) == 0 })
}

// Nobody goes by: transactions and Mutexes count a number up by reading and writing it, and the
// tokens rise in that order.
func lockTxCounts(t *testing.T, s *servers.PostgresServer) {
	p, l := pool(t, s, "&pool_max_conns=30"), open(t, at(s.Addr(), postgres.Row))
	run(t, p, "CREATE TABLE count (n int, token bigint); INSERT INTO count VALUES (0, 0)")
	up := func(db interface {
		QueryRow(context.Context, string, ...any) pgx.Row
		Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	}, token fencelock.Token,
	) error {
		var n int
		var seen fencelock.Token
		if err := db.QueryRow(t.Context(), "SELECT n, token FROM count").Scan(&n, &seen); err != nil {
			return err
		}
		if seen >= token {
			return fmt.Errorf("token %d after %d", token, seen)
		}
		_, err := db.Exec(t.Context(), "UPDATE count SET n = $1, token = $2", n+1, token)
		return err
	}
	const each = 40
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for done := 0; done < each; {
				err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
					how := postgres.LockTx
					if i%2 == 0 {
						how = postgres.TryLockTx
					}
					token, err := how(t.Context(), tx, "count")
					if err != nil {
						return err
					}
					return up(tx, token)
				})
				switch {
				case err == nil:
					done++
				case !errors.Is(err, fencelock.ErrLocked):
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for range each {
				le, err := l.Mutex("count").Lock(t.Context())
				if err == nil {
					err = up(p, le.Token())
				}
				if err == nil {
					err = le.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := one[int](t, p, "SELECT n FROM count"); n != 8*each {
		t.Errorf("counted to %d, want %d", n, 8*each)
	}
	run(t, p, "SELECT fencelock_tidy(NULL)")
}

// The queue is one: a transaction that came before a Mutex has the lock before it.
func lockTxWaits(t *testing.T, s *servers.PostgresServer) {
	p, l := pool(t, s, "&pool_max_conns=30"), open(t, at(s.Addr(), postgres.Row))
	first := lock(t, l.Mutex("queue"))
	tx := begin(t, p)
	type grant struct {
		token fencelock.Token
		err   error
	}
	done := make(chan grant, 1)
	go func() {
		token, err := postgres.LockTx(t.Context(), tx, "queue")
		done <- grant{token, err}
	}()
	waiters(t, l, "queue", 1)
	_, err := postgres.TryLockTx(t.Context(), begin(t, p), "queue")
	want(t, "TryLockTx behind a waiter", err, fencelock.ErrLocked)
	third := queue(t, l, "queue", 2)
	unlock(t, first)
	got := <-done
	must(t, got.err)
	if got.token <= first.Token() {
		t.Errorf("token %d after %d", got.token, first.Token())
	}
	select {
	case <-third.Done:
		t.Errorf("the Mutex behind has it too: %v", third.Err)
	case <-time.After(200 * time.Millisecond):
	}
	found := false
	for info, err := range l.List(t.Context(), "queue") {
		must(t, err)
		found = found || info.Name == "queue" && info.Held && info.Waiters == 1
	}
	if !found {
		t.Error("List does not show what is waited for")
	}
	must(t, tx.Commit(t.Context()))
	next := third.Granted(t, 2*time.Second)
	if next.Token() <= got.token {
		t.Errorf("token %d after %d", next.Token(), got.token)
	}
	unlock(t, next)
}

// A try beside the tidying of the name's row finds the lock free after it.
func lockTxTidied(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	open(t, at(s.Addr(), postgres.Row)) // makes the tables
	tidying := parked(t, p, "SELECT pg_advisory_xact_lock_shared(fencelock_door('fencelock:tidied'))")
	proxy := proxied(t, s)
	far, err := pgxpool.New(t.Context(), strings.Replace(s.URL(), s.Addr(), proxy.Addr(), 1))
	must(t, err)
	t.Cleanup(far.Close)
	tx := begin(t, far)
	proxy.Set(faultproxy.Mode{Delay: 50 * time.Millisecond}) // so that all tries take longer than the tidying
	asked := proxy.Counts().Requests
	done := make(chan error, 1)
	go func() { _, err := postgres.TryLockTx(t.Context(), tx, "tidied"); done <- err }()
	must(t, proxy.Await(within(t, 10*time.Second), func(c faultproxy.Counts) bool { return c.Requests > asked+1 }))
	must(t, tidying.Rollback(t.Context()))
	must(t, <-done)
}

func lockTxEnds(t *testing.T, s *servers.PostgresServer) {
	p, l := pool(t, s, "&pool_max_conns=30"), open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	le := lock(t, l.Mutex("ends"))

	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	waited := make(chan error, 1)
	tx := begin(t, p)
	go func() { _, err := postgres.LockTx(ctx, tx, "ends"); waited <- err }()
	waiters(t, l, "ends", 1)
	cancel(cause)
	err := <-waited
	want(t, "a wait that is cancelled", err, context.Canceled)
	want(t, "a wait that is cancelled", err, cause)
	want(t, "a wait that is cancelled", err, fencelock.ErrLocked)
	await(t, 10*time.Second, "the waiter is gone", func() bool {
		info, err := l.Inspect(t.Context(), "ends")
		return err == nil && info.Waiters == 0
	})
	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(nil)
	_, err = postgres.TryLockTx(ctx, begin(t, p), "ends")
	want(t, "a ctx that had ended", err, context.Canceled)

	tx = begin(t, p)
	_, err = tx.Exec(t.Context(), "SET LOCAL lock_timeout = 50")
	must(t, err)
	_, err = postgres.LockTx(t.Context(), tx, "ends")
	want(t, "a lock_timeout", err, fencelock.ErrLocked)
	_, err = postgres.LockTx(t.Context(), tx, "ends")
	want(t, "a transaction that has failed", err, fencelock.ErrInvalid)
	must(t, le.Renew(t.Context()))
	unlock(t, le)

	for _, how := range []string{"terminated", "broken"} {
		tx := begin(t, p)
		lockTx(t, tx, "ends")
		if how == "terminated" {
			run(t, p, "SELECT pg_terminate_backend($1)", int32(tx.Conn().PgConn().PID()))
		} else {
			must(t, l.Break(t.Context(), "ends"))
		}
		le := lock(t, l.Mutex("ends"))
		_, err := postgres.LockTx(t.Context(), tx, "ends")
		want(t, "LockTx on a session that is gone", err, fencelock.ErrUnavailable)
		unlock(t, le)
	}
	proxy := proxied(t, s)
	cut, err := pgxpool.New(t.Context(), at(proxy.Addr(), "")[:strings.Index(at(proxy.Addr(), ""),
		"?")]+"?sslmode=disable")
	must(t, err)
	t.Cleanup(cut.Close)
	tx = begin(t, cut)
	before := proxy.Counts().Requests
	lockTx(t, tx, "ends")
	if n := proxy.Counts().Requests - before; n != 1 {
		t.Errorf("%d requests for a lock that is free, want 1", n)
	}
	proxy.Cut()
	unlock(t, lock(t, l.Mutex("ends")))
}

func lockTxSavepoints(t *testing.T, s *servers.PostgresServer) {
	p, l := pool(t, s, "&pool_max_conns=30"), open(t, at(s.Addr(), postgres.Row))
	tx := begin(t, p)
	part, err := tx.Begin(t.Context())
	must(t, err)
	lockTx(t, part, "part")
	must(t, part.Rollback(t.Context()))
	unlock(t, lock(t, l.Mutex("part")))
	// With a row of its name, and without.
	run(t, p, "INSERT INTO fencelock_row VALUES ('fencelock:part') ON CONFLICT DO NOTHING")
	for _, name := range []string{"part", "rowless"} {
		part, err = tx.Begin(t.Context())
		must(t, err)
		lockTx(t, part, name)
		must(t, part.Commit(t.Context()))
		_, err = l.Mutex(name).TryLock(t.Context())
		want(t, "after the part's commit", err, fencelock.ErrLocked)
		if !held(t, l, name) {
			t.Errorf("Inspect: %s is not held", name)
		}
	}
	part, err = tx.Begin(t.Context())
	must(t, err)
	_, err = part.Exec(t.Context(), "SELECT 1/0")
	if err == nil {
		t.Fatal("the division: got nil")
	}
	_, err = postgres.TryLockTx(t.Context(), part, "failed")
	want(t, "inside a part that has failed", err, fencelock.ErrInvalid)
	must(t, part.Rollback(t.Context()))
	lockTx(t, tx, "failed")
	must(t, l.Break(t.Context(), "part"))
	for _, name := range []string{"part", "rowless", "failed"} {
		unlock(t, lock(t, l.Mutex(name)))
	}
	await(t, 3*time.Second, "no row is left", func() bool { return leftovers(t, p) == 0 })

	// In the transaction of a lease: both locks end with it.
	le := lock(t, l.Mutex("lease"))
	lockTx(t, txOf(t, le), "with the lease")
	must(t, le.Renew(t.Context()))
	_, err = postgres.TryLockTx(t.Context(), begin(t, p), "with the lease")
	want(t, "what a lease's transaction has", err, fencelock.ErrLocked)
	unlock(t, le)
	lockTx(t, begin(t, p), "with the lease")
	_, err = postgres.LockTx(t.Context(), txOf(t, lock(t, l.Mutex("x"))), strings.Repeat("n", 513))
	want(t, "a long name", err, fencelock.ErrInvalid)
}

func lockTxRefuses(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "&pool_max_conns=30")
	open(t, at(s.Addr(), postgres.Row)) // makes the tables
	for _, tt := range []struct {
		what string
		in   pgx.TxOptions
		by   postgres.Options
		name string
	}{
		{"serializable", pgx.TxOptions{IsoLevel: pgx.Serializable}, postgres.Options{}, "x"},
		{"repeatable read", pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, postgres.Options{}, "x"},
		{"read only", pgx.TxOptions{AccessMode: pgx.ReadOnly}, postgres.Options{}, "x"},
		{"no name", pgx.TxOptions{}, postgres.Options{}, ""},
		{"a long name", pgx.TxOptions{}, postgres.Options{}, strings.Repeat("x", 513)},
		{"no text", pgx.TxOptions{}, postgres.Options{}, "a\xff"},
		{"another schema", pgx.TxOptions{}, postgres.Options{Schema: "nowhere"}, "x"},
		{"no schema's name", pgx.TxOptions{}, postgres.Options{Schema: "a'b"}, "x"},
		{"mode lease", pgx.TxOptions{}, postgres.Options{Mode: postgres.Lease}, "x"},
		{"two prefixes", pgx.TxOptions{}, postgres.Options{Prefix: "a", NoPrefix: true}, "x"},
	} {
		_, err := tt.by.LockTx(t.Context(), begin(t, p, tt.in), tt.name)
		want(t, tt.what, err, fencelock.ErrInvalid)
		_, err = tt.by.TryLockTx(t.Context(), begin(t, p, tt.in), tt.name)
		want(t, tt.what, err, fencelock.ErrInvalid)
	}
	token, err := postgres.LockTx(t.Context(), begin(t, p), strings.Repeat("x", 512))
	if err != nil || token == 0 {
		t.Errorf("a name of 512 bytes: got %d, %v", token, err)
	}
	tx := begin(t, p)
	must(t, tx.Rollback(t.Context()))
	_, err = postgres.LockTx(t.Context(), tx, "x")
	want(t, "a transaction that has ended", err, pgx.ErrTxClosed)

	// The locks of a driver with options.
	run(t, p, `CREATE SCHEMA "Locks""of tx"`)
	for _, o := range []*postgres.Options{{Schema: `Locks"of tx`}, {Prefix: "tx:"}, {NoPrefix: true}} {
		l := over(t, pool(t, s, ""), o)
		unlock(t, lock(t, l.Mutex("options")))
		tx := begin(t, p)
		_, err := o.LockTx(t.Context(), tx, "options")
		must(t, err)
		_, err = l.Mutex("options").TryLock(t.Context())
		want(t, fmt.Sprintf("TryLock with %+v", o), err, fencelock.ErrLocked)
		must(t, tx.Commit(t.Context()))
		unlock(t, lock(t, l.Mutex("options")))
	}
	run(t, p, `DROP SCHEMA "Locks""of tx" CASCADE`)

	// A program that locks the row by hand.
	run(t, p, "INSERT INTO fencelock_row VALUES ('fencelock:by hand')")
	hand := parked(t, p, "SELECT FROM fencelock_row WHERE name = 'fencelock:by hand' FOR UPDATE")
	_, err = postgres.TryLockTx(t.Context(), begin(t, p), "by hand")
	want(t, "what is locked by hand", err, fencelock.ErrLocked)
	must(t, hand.Rollback(t.Context()))
	lockTx(t, begin(t, p), "by hand")
}

// A gate that is closed refuses, and one that closes finds the transactions that came before,
// whether they have a row or not.
func lockTxGates(t *testing.T, s *servers.PostgresServer) {
	p, d := pool(t, s, "&pool_max_conns=30"), driver(t, at(s.Addr(), postgres.Row, "prefix", "txgate:"))
	o := &postgres.Options{Prefix: "txgate:"}
	run(t, p, "INSERT INTO fencelock_row VALUES ('txgate:in/row')")
	var before []pgx.Tx
	for _, name := range []string{"in/row", "in/rowless"} {
		tx := begin(t, p)
		_, err := o.LockTx(t.Context(), tx, name)
		must(t, err)
		before = append(before, tx)
	}
	waiting := begin(t, p)
	done := make(chan error, 1)
	go func() {
		_, err := o.LockTx(t.Context(), waiting, "in/row")
		done <- err
	}()
	await(t, 10*time.Second, "a transaction waits", func() bool {
		info, err := d.Inspect(t.Context(), "in/row")
		return err == nil && info.Waiters == 1
	})
	g := gateOf("m", backend.GateBoth, backend.Pattern{Match: "in/*"})
	must(t, d.SetGate(t.Context(), g, 0))
	for _, how := range []func(context.Context, pgx.Tx, string) (fencelock.Token, error){o.LockTx, o.TryLockTx} {
		_, err := how(t.Context(), begin(t, p), "in/new")
		refusedBy(t, err, g)
		want(t, "a closed gate", err, fencelock.ErrUnsupported)
	}
	out := begin(t, p)
	_, err := o.LockTx(t.Context(), out, "out") // is in nobody's way
	must(t, err)
	rowless := "postgres.LockTx of process " + fmt.Sprint(before[1].Conn().PgConn().PID())
	if got := undrained(t, d, g); len(got) != 3 || got[0] != "in/row" || !strings.Contains(fmt.Sprint(got), rowless) {
		t.Errorf("undrained: got %q, want in/row, and two by their processes, %q among them", got, rowless)
	}
	must(t, before[0].Commit(t.Context()))
	refusedBy(t, <-done, g) // looks at the gates once it has the lock
	must(t, waiting.Rollback(t.Context()))
	if got := fmt.Sprint(undrained(t, d, g)); got != "["+rowless+"]" {
		t.Errorf("undrained: got %s, want %s", got, rowless)
	}
	must(t, before[1].Rollback(t.Context()))
	if got := undrained(t, d, g); len(got) > 0 {
		t.Errorf("undrained at the end: %q", got)
	}
	open := g
	open.State, open.Epoch = backend.GateOpen, time.Now().UnixMicro()
	must(t, d.SetGate(t.Context(), open, g.Epoch))
	_, err = o.TryLockTx(t.Context(), begin(t, p), "in/new")
	must(t, err)
	run(t, p, "DELETE FROM fencelock_gate WHERE keyspace = 'txgate:'; SELECT fencelock_tidy(NULL)")
}

// childEnv has the URL for a child of TestLockTxOfAnotherProcess.
const childEnv = "FENCELOCK_TEST_LOCKTX"

// A process that is killed inside its transaction frees the lock.
func TestLockTxOfAnotherProcess(t *testing.T) {
	if url := os.Getenv(childEnv); url != "" {
		conn, err := pgx.Connect(t.Context(), url)
		must(t, err)
		tx, err := conn.Begin(t.Context())
		must(t, err)
		token, err := postgres.LockTx(t.Context(), tx, "process")
		fmt.Println("token", token, err)
		select {}
	}
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	l := open(t, at(s.Addr(), postgres.Row))
	before := lock(t, l.Mutex("process"))
	unlock(t, before)
	exe, err := os.Executable()
	must(t, err)
	child := exec.Command(exe, "-test.run=^TestLockTxOfAnotherProcess$")
	child.Env = append(os.Environ(), childEnv+"="+s.URL())
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the child says nothing")
	}
	words := strings.Fields(lines.Text())
	if len(words) != 3 || words[2] != "<nil>" {
		t.Fatalf("the child: %q", lines.Text())
	}
	token, err := strconv.ParseInt(words[1], 10, 64)
	must(t, err)
	_, err = l.Mutex("process").TryLock(t.Context())
	want(t, "TryLock while the other process has it", err, fencelock.ErrLocked)
	next := queue(t, l, "process", 1)
	must(t, child.Process.Kill())
	le := next.Granted(t, 2*time.Second)
	if !(before.Token() < token && token < le.Token()) {
		t.Errorf("tokens %d, %d and %d do not rise", before.Token(), token, le.Token())
	}
	unlock(t, le)
}
