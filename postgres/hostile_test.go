package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// What ends the lease's transaction and begins another, which looks like it, is a lost lease at
// once.
func txReplaced(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p := pool(t, s, "")
	a, b := open(t, at(s.Addr(), mode)), open(t, at(s.Addr(), mode))
	exec := func(sql string) func(tx pgx.Tx) error {
		return func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return err
		}
	}
	for what, statement := range map[string]func(tx pgx.Tx) error{
		"COMMIT AND CHAIN":            exec("COMMIT AND CHAIN"),
		"ROLLBACK AND CHAIN":          exec("ROLLBACK AND CHAIN"),
		"two statements":              exec("COMMIT; BEGIN"),
		"and some more":               exec("COMMIT; BEGIN; SELECT pg_current_xact_id()"),
		"and one that fails":          exec("COMMIT; BEGIN; SELECT 1/0"),
		"and savepoints of that name": exec("COMMIT; BEGIN; SAVEPOINT fencelock_granted; SELECT 1/0"),
		"through the extended protocol": func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "COMMIT AND CHAIN", pgx.QueryExecModeExec)
			return err
		},
		"a prepared statement": func(tx pgx.Tx) error {
			if _, err := tx.Prepare(t.Context(), "chain", "COMMIT AND CHAIN"); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), "chain")
			return err
		},
		"a query": func(tx pgx.Tx) error {
			rows, err := tx.Query(t.Context(), "COMMIT AND CHAIN")
			if err != nil {
				return err
			}
			rows.Close()
			return rows.Err()
		},
		"a batch": func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue("SELECT 1")
			b.Queue("COMMIT AND CHAIN")
			return tx.SendBatch(t.Context(), b).Close()
		},
		"a nested one": func(tx pgx.Tx) error {
			return pgx.BeginFunc(t.Context(), tx, func(part pgx.Tx) error { return exec("COMMIT AND CHAIN")(part) })
		},
	} {
		t.Run(what, func(t *testing.T) {
			le := lock(t, a.Mutex("replaced"))
			tx := txOf(t, le)
			if err := statement(tx); !errors.Is(err, fencelock.ErrLost) && what != "a nested one" {
				t.Errorf("got %v, want ErrLost", err)
			}
			lost(t, le, time.Second, fencelock.SessionLost)
			want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrLost)
			unlock(t, lock(t, b.Mutex("replaced")))
		})
	}

	t.Run("a new name of the session is none", func(t *testing.T) {
		le := lock(t, a.Mutex("renamed"))
		tx := txOf(t, le)
		for range 2 {
			must(t, exec("SET LOCAL application_name = 'mine'")(tx))
		}
		must(t, exec("SELECT 1")(tx))
		must(t, le.Renew(t.Context()))
		unlock(t, le)
	})

	// The name can be faked. What is compared then is the transaction.
	for what, found := range map[string]func(le *fencelock.Lease) error{
		"Renew":  func(le *fencelock.Lease) error { return le.Renew(t.Context()) },
		"Unlock": func(le *fencelock.Lease) error { return le.Unlock(t.Context()) },
	} {
		t.Run("found by "+what, func(t *testing.T) {
			le := lock(t, a.Mutex("faked"))
			pid := holder(t, p, "faked")
			label := one[string](t, p, "SELECT application_name FROM pg_stat_activity WHERE pid = $1", pid)
			must(t, exec("COMMIT; BEGIN; SET LOCAL application_name = '"+label+"'")(txOf(t, le)))
			must(t, exec("INSERT INTO notes VALUES ('faked')")(txOf(t, le)))
			want(t, what, found(le), fencelock.ErrLost)
			want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrLost)
			if n := notes(t, p, "faked"); n != 0 {
				t.Errorf("got %d notes of the other transaction, want none", n)
			}
			unlock(t, lock(t, b.Mutex("faked")))
		})
	}
}

// Close does not wait for what a holder has left open.
func txLeftOpen(t *testing.T, s *servers.PostgresServer) {
	const many = "SELECT generate_series(1, 1000000)"
	for what, leave := range map[string]func(tx pgx.Tx) (end func()){
		"Rows": func(tx pgx.Tx) func() {
			rows, err := tx.Query(t.Context(), many)
			must(t, err)
			rows.Next()
			return func() {
				for rows.Next() {
				}
				want(t, "the Rows", rows.Err(), fencelock.ErrLost)
				rows.Close()
			}
		},
		"a batch": func(tx pgx.Tx) func() {
			b := &pgx.Batch{}
			for range 3 {
				b.Queue(many).Query(func(pgx.Rows) error { t.Error("a callback was called"); return nil })
			}
			res := tx.SendBatch(t.Context(), b)
			rows, err := res.Query()
			must(t, err)
			rows.Next()
			return func() {
				rows.Close()
				want(t, "the batch", res.Close(), fencelock.ErrLost)
			}
		},
	} {
		for how, end := range map[string]func(t *testing.T, l *fencelock.Locker, le *fencelock.Lease){
			"Close": func(t *testing.T, l *fencelock.Locker, _ *fencelock.Lease) {
				_ = l.Close() // which says that the release was not confirmed
			},
			"a loss": func(t *testing.T, l *fencelock.Locker, le *fencelock.Lease) {
				lost(t, le, 10*time.Second)
				must(t, l.Close())
			},
		} {
			t.Run(what+" and "+how, func(t *testing.T) {
				t.Parallel()
				l := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(3*time.Second))
				le := lock(t, l.Mutex("open "+what+how))
				done := leave(txOf(t, le))
				began := time.Now()
				closed := make(chan struct{})
				go func() { end(t, l, le); close(closed) }()
				select {
				case <-closed:
				case <-time.After(20 * time.Second):
					t.Errorf("Close has not returned after %v", time.Since(began))
				}
				unlock(t, lock(t, open(t, at(s.Addr(), postgres.Row)).Mutex("open "+what+how)))
				done()
				<-closed
			})
		}
	}
}

// A server that takes longer to accept a connection than connect_timeout is opened within the 5 s of Open.
func openOfSlow(t *testing.T, s *servers.PostgresServer) {
	link := proxied(t, s)
	link.Set(faultproxy.BlackHole)
	defer time.AfterFunc(2500*time.Millisecond, func() { link.Set(faultproxy.Mode{}) }).Stop()
	lock(t, open(t, at(link.Addr(), postgres.Lease)).Mutex("slow"))
}

// A server that is slow to begin connections is not asked for all of them at once, also where another host was tried
// before it.
func beginsFew(t *testing.T, s *servers.PostgresServer) {
	const locks, most = 40, 8 + 1 // one cancels what the first connection carried
	for _, before := range []string{"", "127.0.0.1:1,"} {
		link := proxied(t, s)
		l := open(t, at(before+link.Addr(), postgres.Row))
		link.Set(faultproxy.BlackHole)
		open := link.Counts().Open
		var asking sync.WaitGroup
		for i := range locks {
			asking.Go(func() {
				if _, err := l.Mutex(fmt.Sprint("begin", before, i)).Lock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		ctx := within(t, time.Second)
		if link.Await(ctx, func(c faultproxy.Counts) bool { return c.Open > open+most }) == nil {
			t.Errorf("more than %d connections were begun at once", most)
		}
		link.Set(faultproxy.Mode{})
		asking.Wait()
	}
}

// After an outage each of many waits for a connection of its own, and a server that is slow to begin them is none that
// is away.
func slowToBegin(t *testing.T, s *servers.PostgresServer) {
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	const locks = 40
	link := proxied(t, s)
	l := open(t, at(link.Addr(), postgres.Row))
	link.Set(faultproxy.BlackHole)
	var asking sync.WaitGroup
	began := time.Now()
	for i := range locks {
		asking.Go(func() {
			if _, err := l.Mutex(fmt.Sprint("slowly begun", i)).Lock(t.Context()); err != nil {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		})
	}
	time.Sleep(core.Patience - time.Second)
	link.Set(faultproxy.Mode{Delay: 150 * time.Millisecond})
	asking.Wait()
	link.Set(faultproxy.Mode{})
}

// Connections are begun a few at once: who waits for that has the whole of connect_timeout afterwards, and what was
// made late is used as it is. TLS and a password take six round trips of 150 to 300 ms; here one is half of the
// timeout.
func manyBeginSlowly(t *testing.T, s *servers.PostgresServer) {
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	const locks = 40
	link := proxied(t, s)
	l := open(t, at(link.Addr(), postgres.Row, "connect_timeout", "1"))
	link.Set(faultproxy.Mode{Delay: 280 * time.Millisecond})
	before := link.Counts().Opened
	var asking sync.WaitGroup
	began := time.Now()
	for i := range locks {
		asking.Go(func() {
			if _, err := l.Mutex(fmt.Sprint("many begin", i)).Lock(t.Context()); err != nil {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		})
	}
	asking.Wait()
	link.Set(faultproxy.Mode{})
	if n := link.Counts().Opened - before; n > 2*locks {
		t.Errorf("%d connections were begun for %d locks: most were thrown away", n, locks)
	}
}

// A lock and its token take three answers one after the other, and five where connections were idle for a second, which
// are pinged: on a slow way they come later than one call may take.
func slowDraw(t *testing.T, s *servers.PostgresServer) {
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	for _, idle := range []time.Duration{0, 1100 * time.Millisecond} {
		link := proxied(t, s)
		l := open(t, at(link.Addr(), postgres.Advisory))
		unlock(t, lock(t, l.Mutex("slow draw")))
		link.Set(faultproxy.Mode{Delay: 150 * time.Millisecond})
		time.Sleep(idle)
		began := time.Now()
		le, err := l.Mutex("slow draw").Lock(within(t, 10*time.Second))
		must(t, err)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("idle for %v: granted after %v, want within a few calls", idle, took)
		}
		unlock(t, le)
		link.Set(faultproxy.Mode{})
	}
}

// On a slow way the program's pool keeps its connections.
func poolOnASlowWay(t *testing.T, s *servers.PostgresServer) {
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	link := proxied(t, s)
	config, err := pgxpool.ParseConfig("postgres://postgres@" + link.Addr() + "/postgres?sslmode=disable")
	must(t, err)
	var closed atomic.Int64
	config.BeforeClose = func(*pgx.Conn) { closed.Add(1) }
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	defer p.Close()
	for _, mode := range []postgres.Mode{postgres.Row, postgres.Lease} {
		l := over(t, p, &postgres.Options{Mode: mode})
		unlock(t, lock(t, l.Mutex("slow way")))
		link.Set(faultproxy.Mode{Delay: 75 * time.Millisecond})
		time.Sleep(1100 * time.Millisecond) // the pool pings what was idle for a second
		_, err := l.Inspect(t.Context(), "slow way")
		must(t, err)
		unlock(t, lock(t, l.Mutex("slow way")))
		link.Set(faultproxy.Mode{})
	}
	if n := closed.Load(); n > 0 {
		t.Errorf("%d of the program's connections were closed", n)
	}
}

// Every statement ends soon after its ctx, though the server be silent.
func TestTxObeysItsContext(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(20*time.Second))
	for what, call := range map[string]func(ctx context.Context, tx, part pgx.Tx) error{
		"Exec": func(ctx context.Context, tx, _ pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1")
			return err
		},
		"QueryRow": func(ctx context.Context, tx, _ pgx.Tx) error {
			var one int
			return tx.QueryRow(ctx, "SELECT $1::int", 1).Scan(&one)
		},
		"Begin": func(ctx context.Context, tx, _ pgx.Tx) error {
			_, err := tx.Begin(ctx)
			return err
		},
		"Commit of a part":   func(ctx context.Context, _, part pgx.Tx) error { return part.Commit(ctx) },
		"Rollback of a part": func(ctx context.Context, _, part pgx.Tx) error { return part.Rollback(ctx) },
	} {
		for _, used := range []bool{false, true} {
			if !used && strings.HasSuffix(what, "part") {
				continue
			}
			le := lock(t, l.Mutex("x"))
			tx := txOf(t, le)
			var part pgx.Tx
			if used {
				var err error
				part, err = tx.Begin(t.Context())
				must(t, err)
			}
			pid := int(holder(t, p, "x"))
			signalTo(t, pid, "STOP")
			began := time.Now()
			err := call(within(t, 300*time.Millisecond), tx, part)
			took := time.Since(began)
			signalTo(t, pid, "CONT")
			t.Logf("%s (used before: %v) with a ctx of 300 ms: %v after %v",
				what, used, err, took.Round(10*time.Millisecond))
			want(t, what, err, context.DeadlineExceeded)
			if took > 5*time.Second {
				t.Errorf("%s (used before: %v): took %v, want 1.3 s, and some on a busy machine", what, used, took)
			}
			want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrLost)
		}
	}
}

// A COMMIT that takes longer than one send is neither cancelled nor taken for lost, though the caller
// has gone meanwhile.
func txSlowCommit(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	run(t, p, `CREATE TABLE slow (n int);
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION slow()`)
	l := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	for n, most := range []time.Duration{10 * time.Second, 300 * time.Millisecond} {
		le := lock(t, l.Mutex("slow"))
		_, err := txOf(t, le).Exec(t.Context(), "INSERT INTO slow VALUES ($1)", n)
		must(t, err)
		if err = le.Unlock(within(t, most)); n > 0 {
			want(t, "Unlock that is left alone", err, context.DeadlineExceeded)
			err = le.Unlock(within(t, 10*time.Second))
		}
		must(t, err)
		if got := one[int](t, p, "SELECT count(*) FROM slow"); got != n+1 {
			t.Errorf("got %d rows, want %d", got, n+1)
		}
	}
}

// A holder's statements share one subtransaction, and cost a round trip each.
func txCosts(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	proxy := proxied(t, s)
	l := open(t, at(proxy.Addr(), postgres.Row, "default_query_exec_mode", "exec"), fencelock.WithTTL(time.Minute))
	le := lock(t, l.Mutex("costs"))
	tx := txOf(t, le)
	_, err := tx.Exec(t.Context(), note, "costs")
	must(t, err)
	const count = 100
	xid := func() int64 {
		return one[int64](t, p, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	}
	was, requests := xid(), proxy.Counts().Requests
	for range count {
		_, err := tx.Exec(t.Context(), note, "costs")
		must(t, err)
	}
	if n := proxy.Counts().Requests - requests; n != count {
		t.Errorf("requests of %d statements: got %d, want one each", count, n)
	}
	if n := xid() - was; n > 3 {
		t.Errorf("transaction ids of %d inserts: got %d, want that of one subtransaction", count, n)
	}
	unlock(t, le)
	if n := notes(t, p, "costs"); n != count+1 {
		t.Errorf("got %d notes, want %d", n, count+1)
	}
}

// What fails on the program's side undoes nothing.
func txOwnErrors(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	le := lock(t, l.Mutex("own errors"))
	tx := txOf(t, le)
	_, err := tx.Exec(t.Context(), note, "own errors")
	must(t, err)
	var text string
	for what, fails := range map[string]func() error{
		"a NULL into a string": func() error { return tx.QueryRow(t.Context(), "SELECT NULL::text").Scan(&text) },
		"too few destinations": func() error { return tx.QueryRow(t.Context(), "SELECT 1, 2").Scan(&text) },
		"an argument that cannot be encoded": func() error {
			_, err := tx.Exec(t.Context(), "SELECT $1::int", struct{}{})
			return err
		},
		"a ctx that is done": func() error {
			done, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := tx.Exec(done, note, "own errors")
			return err
		},
		"a callback of a batch": func() error {
			b := &pgx.Batch{}
			b.Queue("SELECT NULL::text").QueryRow(func(row pgx.Row) error { return row.Scan(&text) })
			return tx.SendBatch(t.Context(), b).Close()
		},
		"a part whose ctx is done": func() error {
			ctx, cancel := context.WithCancel(t.Context())
			return pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
				_, err := part.Exec(ctx, note, "own errors")
				must(t, err)
				cancel()
				return errors.New("the part fails")
			})
		},
	} {
		if err := fails(); err == nil {
			t.Errorf("%s: got nil, want an error", what)
		}
	}
	must(t, le.Err())
	unlock(t, le)
	if n := notes(t, p, "own errors"); n != 1 {
		t.Errorf("got %d notes, want the first one only", n)
	}
}

// A part that was left open counts as it stands: with its failure.
func txPartLeftOpen(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	for _, commit := range []bool{false, true} {
		le := lock(t, l.Mutex("part left"))
		tx := txOf(t, le)
		part, err := tx.Begin(t.Context())
		must(t, err)
		inner, err := part.Begin(t.Context())
		must(t, err)
		_, err = inner.Exec(t.Context(), note, "part left")
		must(t, err)
		if _, err = inner.Exec(t.Context(), "SELECT 1/0"); err == nil {
			t.Error("the division: got nil, want an error")
		}
		_, err = part.Exec(t.Context(), note, "part left") // behind the savepoint of the inner one
		must(t, err)
		if commit {
			must(t, part.Commit(t.Context())) // and the inner one with it
			want(t, "Commit of what has ended with the outer part", inner.Commit(t.Context()), pgx.ErrTxClosed)
		}
		var undone *fencelock.UndoneError
		if err := le.Unlock(t.Context()); !errors.As(err, &undone) {
			t.Errorf("Unlock: got %v, want an UndoneError", err)
		}
	}
	if n := notes(t, p, "part left"); n != 0 {
		t.Errorf("got %d notes, want none", n)
	}
}

// The server keeps no lease of more than 24 days.
func rowLongTTL(t *testing.T, s *servers.PostgresServer) {
	l := open(t, at(s.Addr(), postgres.Row))
	for _, ttl := range []time.Duration{24 * 24 * time.Hour, 25 * 24 * time.Hour, 3000 * 24 * time.Hour} {
		le, err := l.Mutex("long", fencelock.WithTTL(ttl)).TryLock(t.Context())
		if ttl < 25*24*time.Hour {
			must(t, err)
			unlock(t, le)
			continue
		}
		want(t, fmt.Sprint("a TTL of ", ttl), err, fencelock.ErrInvalid)
		_, err = l.Mutex("long", fencelock.WithTTL(ttl)).Lock(within(t, 5*time.Second))
		want(t, fmt.Sprint("a TTL of ", ttl), err, fencelock.ErrInvalid)
	}
}

// A waiter that has fallen silent when its turn comes does not keep the lock for its TTL.
func rowSilentWaiter(t *testing.T, s *servers.PostgresServer) {
	t.Parallel()
	proxy := proxied(t, s)
	a, c := open(t, at(s.Addr(), postgres.Row)), open(t, at(s.Addr(), postgres.Row))
	b := open(t, at(proxy.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	le := lock(t, a.Mutex("silent waiter"))
	queue(t, b, "silent waiter", 1)
	next := queue(t, c, "silent waiter", 2)
	proxy.Set(faultproxy.BlackHole)
	began := time.Now()
	unlock(t, le)
	le = next.Granted(t, 30*time.Second)
	if took, most := next.At.Sub(began), a.Traits().DeadWaiter+time.Second; took > most {
		t.Errorf("granted after %v, want %v at most", took, most)
	}
	unlock(t, le)
	proxy.Cut()
	proxy.Set(faultproxy.Mode{})
}

// Whoever wins the door of a row that has vanished, and is never heard of again, does not keep it.
func rowDoorOfTheSilent(t *testing.T, s *servers.PostgresServer) {
	p, key := pool(t, s, ""), []byte(backend.DefaultPrefix+"vanishes")
	run(t, p, "INSERT INTO fencelock_row(name) VALUES ($1)", key)
	tidy, err := p.Begin(t.Context())
	must(t, err)
	defer func() { _ = tidy.Rollback(context.Background()) }()
	silent, err := p.Begin(t.Context())
	must(t, err)
	defer func() { _ = silent.Rollback(context.Background()) }()
	_, err = tidy.Exec(t.Context(), "DELETE FROM fencelock_row WHERE name = $1", key)
	must(t, err)
	var state string
	told := make(chan error, 1)
	go func() {
		told <- silent.QueryRow(t.Context(), "SELECT fencelock_take($1, 0, true, $2, NULL, "+
			"fencelock_gates_now(), '300', ' tag 8c silent')", key, len(backend.DefaultPrefix)).Scan(&state)
	}()
	held := func() bool {
		return one[bool](t, p, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted "+
			"AND objsubid = 1 AND classid::bigint << 32 | objid::bigint = fencelock_door($1))", key)
	}
	await(t, 10*time.Second, "the door", held)
	must(t, tidy.Commit(t.Context()))
	must(t, <-told)
	if state != "missing 0" {
		t.Errorf("got %q, want missing 0", state)
	}
	await(t, 10*time.Second, "the end of the silent one", func() bool { return !held() })
}

// signalTo sends a signal to a process of the server.
func signalTo(t *testing.T, pid int, signal string) {
	t.Helper()
	must(t, exec.CommandContext(t.Context(), "kill", "-"+signal, strconv.Itoa(pid)).Run())
}

// A database whose bytea_output is escape shows the same.
func TestByteaAsEscapes(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	run(t, p, "ALTER DATABASE postgres SET bytea_output = 'escape'")
	const name = "a\\é"
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			url := at(s.Addr(), mode, "prefix", string(mode)+":")
			a, d := open(t, url), driver(t, url)
			b := a
			if mode == postgres.Lease { // it hears of its turn by its sign of life alone
				b = open(t, url+"&listen_url=postgres%3A%2F%2Fpostgres%40127.0.0.1%3A1%2Fpostgres")
			}
			le := lock(t, a.Mutex(name))
			for info, err := range a.List(t.Context(), "") {
				if err != nil || info.Name != name || info.Owner != le.Owner() {
					t.Errorf("List: got %+v, %v, want %q of %s", info, err, name, le.Owner())
				}
			}
			if b != a {
				wait := queue(t, b, name, 1)
				unlock(t, le)
				le = wait.Granted(t, 4*time.Second)
			}
			g := gateOf("m", backend.GateBoth, backend.Pattern{Match: "*"})
			must(t, d.SetGate(t.Context(), g, 0))
			if gates, err := d.Gates(t.Context()); err != nil || len(gates) != 1 || gates[0].Move != "m" {
				t.Errorf("Gates: got %+v, %v", gates, err)
			}
			must(t, d.Report(t.Context(), backend.Client{Move: "m", ID: "c"}, time.Minute))
			if all, err := d.Clients(t.Context(), "m"); err != nil || len(all) != 1 || all[0].ID != "c" {
				t.Errorf("Clients: got %+v, %v", all, err)
			}
			all, err := d.Undrained(t.Context(), g)
			if err != nil || len(all) != 1 || all[0].Name != name {
				t.Errorf("Undrained: got %+v, %v, want %q", all, err, name)
			}
			unlock(t, le)
			run(t, p, "DELETE FROM fencelock_gate")
		})
	}
}
