package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// closed returns the address of a host that accepts connections and closes them, as a proxy without a server does.
func closed(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// What pgx cancels at the first host has nothing to do with the connection to the second one, which lasts.
func secondHost(t *testing.T, s *servers.PostgresServer) {
	link := proxied(t, s)
	link.Set(faultproxy.Mode{Delay: 5 * time.Millisecond})
	url := at(closed(t)+","+link.Addr(), postgres.Row, "sslmode", "prefer")
	le := lock(t, open(t, url, fencelock.WithTTL(3*time.Second)).Mutex("second host"))
	lasts(t, le, 2500*time.Millisecond) // longer than a cancel may take, and a renewal
}

// A name that is not known says so, however many ask.
func unknownHost(t *testing.T, s *servers.PostgresServer) {
	config := pool(t, s, "").Config()
	config.ConnConfig.Host = "nowhere"
	config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "nowhere", IsNotFound: true}
	}
	l := over(t, poolOf(t, config), &postgres.Options{Mode: postgres.Lease})
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			_, err := l.Mutex("unknown host").TryLock(t.Context())
			want(t, "TryLock", err, fencelock.ErrUnavailable)
			if err != nil && !strings.Contains(err.Error(), "no such host") {
				t.Errorf("got %q, want what the resolver says", err)
			}
		})
	}
	asking.Wait()
}

// How a program's BeforeConnect dials is how the driver's own connections are made.
func dialOfBeforeConnect(t *testing.T, s *servers.PostgresServer) {
	config := pool(t, s, "&pool_max_conns=2").Config()
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		t.Error("dialed past BeforeConnect")
		return nil, net.ErrClosed
	}
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.DialFunc = (&net.Dialer{}).DialContext
		return nil
	}
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	defer p.Close()
	l := over(t, p, &postgres.Options{Mode: postgres.Lease})
	defer takeAll(t, p)()
	unlock(t, lock(t, l.Mutex("dial of BeforeConnect")))
	must(t, l.Close())
}

// Connections of the driver's own that a network does not make end, although the program's pool knows no limit, and
// those after them cost no lease.
func TestOwnConnectionsHaveALimit(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	s := servers.Postgres(t, servers.PostgresOptions{})
	p, way, first := detoured(t, s)
	l := over(t, p, &postgres.Options{Mode: postgres.Lease}, fencelock.WithTTL(15*time.Second))
	le := lock(t, l.Mutex("x"))
	giveBack := takeAll(t, p)
	way.to.Store("")
	first.Set(faultproxy.BlackHole)
	t.Cleanup(first.Cut)
	var asking sync.WaitGroup
	defer asking.Wait()
	for range 6 { // so that the driver begins all four of its own
		asking.Go(func() {
			for range 3 {
				_, _ = l.Inspect(within(t, time.Second), "x")
			}
		})
	}
	time.AfterFunc(4*time.Second, func() { way.to.Store(s.Addr()) })
	lasts(t, le, 20*time.Second)
	first.Cut()
	giveBack()
}

// lostDials is a way to dial through a network that drops what begins a connection, for a while.
type lostDials struct {
	addr    string
	mu      sync.Mutex
	gone    bool        // the network drops them
	began   []time.Time // those that it dropped
	waiting int         // for an answer to what was dropped
	through []time.Time // when others connected after that
}

func (d *lostDials) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	d.mu.Lock()
	gone := d.gone
	if gone {
		d.began = append(d.began, time.Now())
		d.waiting++
	}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if gone {
			d.waiting--
		} else if ctx.Err() == nil {
			d.through = append(d.through, time.Now())
		}
	}()
	took := time.After(400 * time.Millisecond) // a way is slow when it is back
	if gone {
		took = nil
	}
	select {
	case <-took:
		return (&net.Dialer{}).DialContext(ctx, network, d.addr)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *lostDials) set(gone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone, d.through = gone, nil
}

// count returns how many dials the network has dropped, how many of those wait yet, and how many others have got
// through since it was set.
func (d *lostDials) count() (dropped, waiting, through int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.began), d.waiting, len(d.through)
}

// The pace of connections (TestPace) is that of a pool, and of a sql.DB, which dials for each of its callers: few are
// begun at once while a network drops them, and several at once when it is back.
func TestDialsAreSpread(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	for _, tt := range []struct {
		way   string
		least int           // how many are made when the network is back, all that the driver has or some
		every time.Duration // between two, if they are made one after the other
	}{{"pool", 4, time.Second}, {"sql.DB", 10, 250 * time.Millisecond}} {
		t.Run(tt.way, func(t *testing.T) {
			t.Parallel()
			s := servers.Postgres(t, servers.PostgresOptions{})
			dials := &lostDials{addr: s.Addr()}
			var l *fencelock.Locker
			if tt.way == "pool" {
				config := pool(t, s, "&pool_max_conns=4&connect_timeout=4").Config()
				config.ConnConfig.DialFunc = dials.dial
				p := poolOf(t, config)
				l = over(t, p, &postgres.Options{Mode: postgres.Lease})
				unlock(t, lock(t, l.Mutex("before")))
				t.Cleanup(takeAll(t, p)) // so that the driver makes its own
			} else {
				config, err := pgx.ParseConfig(s.URL())
				must(t, err)
				config.DialFunc = dials.dial
				db := stdlib.OpenDB(*config)
				t.Cleanup(func() { _ = db.Close() })
				l = overSQL(t, db, nil)
				unlock(t, lock(t, l.Mutex("before")))
				db.SetMaxIdleConns(-1)
			}
			dials.set(true)
			ctx, stop := context.WithCancel(t.Context())
			var asking sync.WaitGroup
			defer asking.Wait()
			defer stop()
			for i := range 60 {
				asking.Go(func() {
					for ctx.Err() == nil {
						c, cancel := context.WithTimeout(ctx, time.Duration(2+i%2*10)*time.Second)
						_, _ = l.Inspect(c, "x")
						cancel()
					}
				})
			}
			await(t, 30*time.Second, "more are begun when the first have had their time", func() bool {
				dropped, _, _ := dials.count()
				return dropped > tt.least
			})
			dials.set(false)
			await(t, 30*time.Second, "the network is back", func() bool {
				_, waiting, through := dials.count()
				return waiting == 0 && through > 0
			})
			dials.set(false)
			run(t, pool(t, s, ""), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "+
				"WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
			await(t, 30*time.Second, "others are made", func() bool {
				_, _, through := dials.count()
				return through >= tt.least
			})
			dials.mu.Lock()
			defer dials.mu.Unlock()
			soon := 0
			for _, at := range dials.began {
				if at.Before(dials.began[0].Add(time.Second)) {
					soon++
				}
			}
			if soon > 8 {
				t.Errorf("%d were dialed at once, want 8 at the most", soon)
			}
			spread, most := dials.through[tt.least-1].Sub(dials.through[0]), time.Duration(tt.least-1)*tt.every
			if spread >= most {
				t.Errorf("%d connections were made within %v, want them at once", tt.least, spread)
			}
		})
	}
}

// asks asks a driver for a claim, which has so long. The test's end gives it up.
func asks(t *testing.T, d backend.Driver, name string, most time.Duration) error {
	c := &backend.Claim{Request: request(name, "")}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		d.Leave(ctx, []*backend.Claim{c})
		must(t, c.Err)
	})
	d.Ask(within(t, most), []*backend.Claim{c})
	return c.Err
}

// A connection of a sql.DB that is made too late for its caller serves the next send, also where the driver has some of
// its own. A request for which there was none in time was not sent, is not sent later, and says so: nobody doubts then
// what became of it.
func slowDialOfADB(t *testing.T, s *servers.PostgresServer) {
	config, err := pgx.ParseConfig(s.URL())
	must(t, err)
	var slow atomic.Bool
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.Load() {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	own, err := pgx.ParseConfig(s.URL())
	must(t, err)
	p := pool(t, s, "")
	for _, o := range []*postgres.Options{nil, {Listen: own}} {
		db := stdlib.OpenDB(*config)
		t.Cleanup(func() { must(t, db.Close()) })
		slow.Store(false)
		d, err := postgres.NewSQL(db, o)
		must(t, err)
		l, err := fencelock.New(d)
		must(t, err)
		t.Cleanup(func() { must(t, l.Close()) })
		unlock(t, lock(t, l.Mutex("slow dial")))
		conn, err := db.Conn(t.Context()) // what is there
		must(t, err)
		slow.Store(true)
		le, err := l.Mutex("slow dial").TryLock(within(t, 5*time.Second))
		must(t, err)
		unlock(t, le)
		// Another was dialed where the one that served was slow.
		await(t, 10*time.Second, "all connections", func() bool { return db.Stats().InUse == 1 })
		for db.Stats().Idle > 1 {
			other, err := db.Conn(t.Context())
			must(t, err)
			defer other.Close()
		}
		var pid int32
		must(t, db.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
		run(t, p, "SELECT pg_terminate_backend($1, 2000)", pid)
		if err := asks(t, d, "sent once", 1200*time.Millisecond); err == nil || backend.Refused(err) {
			t.Errorf("got %v, want doubt: it was sent, and then there was no connection in time", err)
		}
		for db.Stats().Idle > 0 {
			other, err := db.Conn(t.Context())
			must(t, err)
			defer other.Close()
		}
		if err := asks(t, d, "gone", 300*time.Millisecond); !backend.Refused(err) {
			t.Errorf("got %v, want one that says that nothing was sent", err)
		}
		await(t, 5*time.Second, "the connection comes, and is given back", func() bool { return db.Stats().Idle > 0 })
		slow.Store(false)
		if info, err := l.Inspect(t.Context(), "gone"); err != nil || info.Held {
			t.Errorf("got %+v, %v, want a name that is free: nothing is sent for one who has gone", info, err)
		}
		must(t, conn.Close())
	}
}

// A request that has its connection so late that no answer could come is not sent by it, and says so: it would end the
// connection.
func lateForAnAnswer(t *testing.T, s *servers.PostgresServer) {
	link := proxied(t, s)
	d, err := backend.Open(t.Context(), at(link.Addr(), postgres.Lease, "pool_max_conns", "1"), nil)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	must(t, asks(t, d, "late", 10*time.Second))
	opened := link.Counts().Opened
	link.Set(faultproxy.Mode{Delay: 500 * time.Millisecond})
	var asking sync.WaitGroup
	asking.Go(func() {
		if err := asks(t, d, "late", 10*time.Second); !errors.Is(err, backend.ErrLocked) {
			t.Errorf("the first: %v", err)
		}
	})
	must(t, link.Await(within(t, 5*time.Second), func(c faultproxy.Counts) bool { return c.HeldRequests > 0 }))
	if err := asks(t, d, "late", 1200*time.Millisecond); !backend.Refused(err) {
		t.Errorf("the second: got %v, want one that says that nothing was sent", err)
	}
	asking.Wait()
	link.Set(faultproxy.Mode{})
	if got := link.Counts().Opened; got != opened {
		t.Errorf("%d connections were made, want %d", got, opened)
	}
}

// Where every answer is late, as of a server that many processes ask at once, each would cost a connection, another one
// to cancel it, and a third in its place: nobody would have an answer in time. Nor do pings cost one.
func lateAnswersKeepConnections(t *testing.T, s *servers.PostgresServer) {
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	t.Parallel()
	const locks = 16
	link := proxied(t, s)
	l := open(t, at(link.Addr(), postgres.Lease, "connect_timeout", "5"))
	unlock(t, lock(t, l.Mutex("before")))
	link.Set(faultproxy.Mode{Delay: 375 * time.Millisecond})
	defer link.Set(faultproxy.Mode{})
	for _, made := range []bool{false, true} { // whether the connections are there
		if made {
			time.Sleep(1200 * time.Millisecond) // idle for so long they would be pinged
		}
		opened := link.Counts().Opened
		var asking sync.WaitGroup
		for i := range locks {
			asking.Go(func() {
				_, err := l.Mutex(fmt.Sprint("late answers", made, i)).Lock(t.Context())
				if made && err != nil {
					t.Error(err)
				}
			})
		}
		asking.Wait()
		if n := link.Counts().Opened - opened; made && n > locks/2 {
			t.Errorf("%d more connections were made, want %d at most", n, locks/2)
		}
	}
}

// A try waits for its connection for as long as it has: one that takes longer than the pool may say that it is used up
// is no failure.
func lateConnection(t *testing.T, s *servers.PostgresServer) {
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	t.Parallel()
	for _, mode := range []postgres.Mode{postgres.Row, postgres.Advisory} {
		config, err := pgxpool.ParseConfig(s.URL())
		must(t, err)
		var late atomic.Bool
		config.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
			if late.Load() {
				<-time.After(2800 * time.Millisecond)
			}
			return ctx.Err()
		}
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		must(t, err)
		defer p.Close()
		m := over(t, p, &postgres.Options{Mode: mode, Prefix: "late"}).Mutex("x")
		unlock(t, lock(t, m))
		p.Reset()
		late.Store(true)
		le, err := m.TryLock(t.Context())
		must(t, err)
		must(t, le.Unlock(t.Context()))
	}
}

// A server that does not answer the hello of a listener is slow, and no pooler that drops pushes: once it answers,
// pushes arrive again.
func slowHello(t *testing.T, s *servers.PostgresServer) {
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	t.Parallel()
	p := pool(t, s, "")
	run(t, p, "CREATE SCHEMA hello")
	run(t, p, "CREATE FUNCTION hello.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(20)'")
	l := open(t, at(s.Addr(), postgres.Lease,
		"search_path", "hello, pg_catalog", "schema", "public", "application_name", "hello"))
	held := lock(t, open(t, at(s.Addr(), postgres.Lease)).Mutex("slow hello"))
	wait := queue(t, l, "slow hello", 1)
	<-time.After(4 * time.Second) // longer than a hello has
	run(t, p, "DROP FUNCTION hello.pg_notify")
	await(t, 15*time.Second, "the process listens again", func() bool {
		return one[int](t, p, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hello' "+
			"AND query LIKE 'LISTEN%' AND state_change < now() - interval '4 s'") > 0
	})
	unlock(t, held)
	unlock(t, wait.Granted(t, 5*time.Second))
}

// While another has a name's line for longer than a statement may take, who wants the name stands there twice at most:
// every other time what it asks again is what it has asked.
func asksOnce(t *testing.T, s *servers.PostgresServer) {
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	t.Parallel()
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Lease, "prefix", "p"))
	me := []byte("p" + "asks once")
	unlock(t, lock(t, l.Mutex("before")))
	const standing = "SELECT coalesce(array_agg(l.pid ORDER BY a.query_start), '{}') FROM pg_locks l " +
		"JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND l.classid = 7307 " +
		"AND l.objid = (fencelock_hash($1)::bigint & 4294967295)::oid"
	line, err := p.Begin(t.Context())
	must(t, err)
	defer func() { _ = line.Rollback(context.Background()) }() // over by then
	block := func() {
		_, err := line.Exec(t.Context(), "SELECT pg_advisory_xact_lock(7307, fencelock_hash($1))", me)
		must(t, err)
	}
	stands := func(what string) {
		t.Helper()
		var first int32 // is cut off, and stands there until the server has read that
		for began := time.Now(); time.Since(began) < 3*time.Second; <-time.After(50 * time.Millisecond) {
			pids := one[[]int32](t, p, standing, me)
			if first == 0 && len(pids) > 0 {
				first = pids[0]
			}
			if n := len(slices.DeleteFunc(pids, func(pid int32) bool { return pid == first })); n > 2 {
				t.Errorf("%s: %d statements stand in the line behind the first, want 2 at most", what, n)
			}
		}
		must(t, line.Commit(t.Context()))
	}
	block()
	granted := make(chan *fencelock.Lease, 1)
	go func() {
		le, err := l.Mutex("asks once").TryLock(t.Context())
		if err != nil {
			t.Error(err)
		}
		granted <- le
	}()
	stands("TryLock")
	if le := <-granted; le != nil {
		line, err = p.Begin(t.Context())
		must(t, err)
		block()
		freed := make(chan error, 1)
		go func() { freed <- le.Unlock(t.Context()) }()
		stands("Unlock")
		must(t, <-freed)
	}
}

// A lock outlives that all connections of the pool are frozen.
func frozenPool(t *testing.T, s *servers.PostgresServer) {
	if testing.Short() {
		t.Skip("seconds of waiting")
	}
	t.Parallel()
	const conns = 12
	first := proxied(t, s)
	hosts := first.Addr() + "," + s.Addr()
	l := open(t, at(hosts, postgres.Lease, "connect_timeout", "1"), fencelock.WithTTL(10*time.Second))
	le := lock(t, l.Mutex("frozen pool"))
	first.Set(faultproxy.BlackHole)
	var asking sync.WaitGroup
	for range conns {
		asking.Go(func() {
			if _, err := l.Inspect(t.Context(), "frozen pool"); err != nil {
				t.Error(err)
			}
		})
	}
	must(t, first.Await(within(t, 10*time.Second), func(c faultproxy.Counts) bool { return c.Open >= 8 }))
	first.Set(faultproxy.Mode{})
	asking.Wait()
	first.Set(faultproxy.BlackHole)
	defer first.Set(faultproxy.Mode{})
	lasts(t, le, 20*time.Second)
}
