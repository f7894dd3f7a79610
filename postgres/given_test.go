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
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// takeAll takes every connection of a pool, and returns what gives them back.
func takeAll(t *testing.T, p *pgxpool.Pool) (giveBack func()) {
	t.Helper()
	var conns []*pgxpool.Conn
	for range int(p.Config().MaxConns - p.Stat().AcquiredConns()) {
		c, err := p.Acquire(within(t, 10*time.Second))
		must(t, err)
		conns = append(conns, c)
	}
	giveBack = func() {
		for _, c := range conns {
			c.Release()
		}
		conns = nil
	}
	t.Cleanup(giveBack)
	return giveBack
}

// A program that has used up its pool, of which the server knows nothing, keeps what it holds and
// what it waits for, and can unlock.
func TestProgramUsesUpItsPool(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			p := pool(t, s, "&pool_max_conns=6")
			l := over(t, p, &postgres.Options{Mode: mode, Prefix: string(mode)}, fencelock.WithTTL(3*time.Second))
			other := open(t, at(s.Addr(), mode, "prefix", string(mode)))
			theirs := lock(t, other.Mutex("theirs"))
			le := lock(t, l.Mutex("ours"))
			wait := queue(t, l, "theirs", 1)
			giveBack := takeAll(t, p)
			select {
			case <-le.Done():
				t.Errorf("the lease: %v", le.Err())
			case <-wait.Done:
				t.Errorf("the wait has ended: %v", wait.Err)
			case <-time.After(9 * time.Second):
			}
			_, err := l.Inspect(within(t, 2*time.Second), "ours")
			must(t, err)
			if mode != postgres.Lease {
				_, err := l.Mutex("more").TryLock(t.Context())
				want(t, "TryLock, which needs a connection", err, fencelock.ErrUnavailable)
				if !strings.Contains(fmt.Sprint(err), "pool_max_conns") {
					t.Errorf("TryLock: got %v, want one that names pool_max_conns", err)
				}
			} else {
				unlock(t, lock(t, l.Mutex("more")))
			}
			unlock(t, theirs)
			unlock(t, wait.Granted(t, 5*time.Second))
			unlock(t, le)
			giveBack()
			unlock(t, lock(t, l.Mutex("ours")))
		})
	}
}

// The driver's own connections are made as the program's pool makes them, and end with the driver.
func TestOwnConnectionsAreAsThePool(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	admin := pool(t, s, "")
	run(t, admin, "CREATE SCHEMA mine")
	for _, mode := range modes {
		config := pool(t, s, "&pool_max_conns=4&application_name=theirs_"+string(mode)).Config()
		config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, "SET search_path = mine")
			return err
		}
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		must(t, err)
		t.Cleanup(p.Close)
		l := over(t, p, &postgres.Options{Mode: mode}, fencelock.WithTTL(3*time.Second))
		le := lock(t, l.Mutex("x"))
		must(t, le.Renew(t.Context()))
		unlock(t, le)
		if n := one[int](t, admin, "SELECT count(*) FROM pg_tables WHERE schemaname = 'mine'"); n == 0 {
			t.Error("the tables are not where the pool's connections look")
		}
		must(t, l.Close())
		p.Close()
		await(t, 5*time.Second, "no connection is left", func() bool {
			return one[int](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE application_name = "+
				"$1", "theirs_"+string(mode)) == 0
		})
	}
}

// A role that may make no more connections keeps its locks by those of its pool.
func TestOwnConnectionsAreRefused(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	admin := pool(t, s, "")
	run(t, admin, "CREATE ROLE few LOGIN; CREATE SCHEMA few AUTHORIZATION few")
	p, err := pgxpool.New(t.Context(), strings.Replace(s.URL(), "postgres@", "few@", 1)+"&pool_max_conns=3")
	must(t, err)
	t.Cleanup(p.Close)
	l := over(t, p, &postgres.Options{Mode: postgres.Lease}, fencelock.WithTTL(3*time.Second))
	le := lock(t, l.Mutex("x"))
	must(t, le.Renew(t.Context()))
	conn, err := p.Acquire(t.Context())
	must(t, err)
	run(t, admin, "ALTER ROLE few CONNECTION LIMIT 1")
	run(t, admin, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = "+
		"'few' AND pid <> $1", conn.Conn().PgConn().PID())
	conn.Release()
	for range 3 {
		must(t, le.Renew(t.Context()))
	}
	unlock(t, le)
}

// A server that ends all its sessions, as an administrator does, costs no call more than a moment,
// however many idle connections have died with them.
func TestEverySessionIsEnded(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	admin := pool(t, s, "")
	for _, mode := range modes {
		name := "theirs_" + string(mode)
		p := pool(t, s, "&pool_max_conns=12&application_name="+name)
		l := over(t, p, &postgres.Options{Mode: mode}, fencelock.WithTTL(3*time.Second))
		unlock(t, lock(t, l.Mutex(name)))
		ended := func() {
			takeAll(t, p)()
			run(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
				name)
		}
		ended()
		le, err := l.Mutex(name).TryLock(t.Context())
		must(t, err)
		ended()
		_, err = l.Inspect(within(t, 3*time.Second), name)
		must(t, err)
		if mode == postgres.Lease { // the other's lock is its session
			must(t, le.Renew(t.Context()))
			ended()
			unlock(t, le)
		}
	}
}

// Without pushes a waiter queues at once, and is found by its sign of life.
func TestWaitersWithoutPushesQueueAtOnce(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	a := open(t, at(s.Addr(), postgres.Lease))
	b := open(t, at(s.Addr(), postgres.Lease, "listen_url", "postgres://postgres@127.0.0.1:1/postgres"))
	var took []time.Duration
	for range 5 {
		le := lock(t, a.Mutex("x"))
		began := time.Now()
		wait := queue(t, b, "x", 1)
		took = append(took, time.Since(began))
		unlock(t, le)
		unlock(t, wait.Granted(t, 3*time.Second))
	}
	if slices.Sort(took); took[2] > 400*time.Millisecond {
		t.Errorf("waiters were in the queue after %v, want them there at once", took)
	}
}

// Where the server's queue of pushes is full, a release does without: its waiter finds out by
// itself.
func TestReleaseWithoutRoomForItsPush(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	a, b := open(t, at(s.Addr(), postgres.Lease)), open(t, at(s.Addr(), postgres.Lease))
	le := lock(t, a.Mutex("x"))
	wait := queue(t, b, "x", 1)
	// What the server does: the commit of a transaction that pushes fails. Its queue has 8 GB, so a
	// trigger stands in for it.
	run(t, p, `CREATE FUNCTION full_queue() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF current_setting('fencelock.mute', true) IS DISTINCT FROM 'on' THEN
			RAISE 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
		END IF;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER full_queue AFTER INSERT OR UPDATE OR DELETE ON fencelock_lease
		DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION full_queue()`)
	unlock(t, le)
	unlock(t, wait.Granted(t, 5*time.Second))
}

// A floor that is refused spends nothing, in neither mode and in no prefix; nor does a mark of a
// guard.
func TestFarFloorsSpendNothing(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	const far = 1<<53 - 3
	for _, mode := range modes {
		l := open(t, at(s.Addr(), mode))
		_, err := l.Mutex("x", fencelock.WithFloor(far)).TryLock(t.Context())
		want(t, "a floor near the end of the numbers", err, fencelock.ErrInvalid)
		le := lock(t, l.Mutex("x"))
		if ahead := le.Token() - time.Now().UnixMicro(); ahead > 60e6 {
			t.Errorf("mode %s: the next token is %d ahead of the clock", mode, ahead)
		}
		// Another's floor is no business of the release.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		refused := make(chan error, 1)
		go func() { _, err := l.Mutex("x", fencelock.WithFloor(far)).Lock(ctx); refused <- err }()
		if mode != postgres.Lease {
			waiters(t, l, "x", 1)
		}
		unlock(t, le)
		want(t, "Lock with such a floor", <-refused, fencelock.ErrInvalid)
	}
	if n := one[int](t, p, "SELECT count(*) FROM fencelock_lead"); n != 0 {
		t.Errorf("%d slots are ahead of the clock", n)
	}
	check := func(token fencelock.Token) error {
		tx, err := p.Begin(t.Context())
		must(t, err)
		err = postgres.CheckToken(t.Context(), tx, "r", token)
		return errors.Join(err, tx.Commit(t.Context())) // also after an error, which nobody should
	}
	want(t, "a mark near the end of the numbers", check(far), fencelock.ErrInvalid)
	must(t, check(time.Now().UnixMicro()))
}

// A pool whose notifications the program hears keeps none of the driver's pushes from it.
func TestPoolHearsItsNotifications(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	admin := pool(t, s, "")
	config := pool(t, s, "").Config()
	config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	p := poolOf(t, config)
	a := open(t, at(s.Addr(), postgres.Lease))
	for what, listen := range map[string]*pgx.ConnConfig{
		"as the pool": nil, "as Options say": config.ConnConfig,
	} {
		t.Run(what, func(t *testing.T) {
			b := over(t, p, &postgres.Options{Mode: postgres.Lease, Listen: listen})
			le := lock(t, a.Mutex(what))
			wait := queue(t, b, what, 1)
			await(t, 10*time.Second, "the driver listens", func() bool {
				return one[int](t, admin, "SELECT count(*) FROM pg_stat_activity "+
					"WHERE state = 'idle' AND query LIKE 'LISTEN fl_%'") > 0
			})
			unlock(t, le)
			unlock(t, wait.Granted(t, 5*time.Second))
			must(t, b.Close())
		})
	}
}

// poolOf returns a pool of a configuration.
func poolOf(t *testing.T, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(p.Close)
	return p
}

// detour is a way to dial that leads to one address after another, whatever is asked for. "" is a
// network that drops what would begin a connection. What pgx dials to cancel goes where the connection went.
type detour struct {
	to    atomic.Value
	first string
}

func (d *detour) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	to := d.to.Load().(string)
	if addr == d.first && to != "" {
		to = addr
	}
	if to == "" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return (&net.Dialer{}).DialContext(ctx, network, to)
}

// leading returns a pool whose new connections lead to s, until the way says otherwise.
func leading(t *testing.T, s *servers.PostgresServer, params string) (*pgxpool.Pool, *detour) {
	t.Helper()
	way := &detour{}
	way.to.Store(s.Addr())
	config := pool(t, s, params).Config()
	config.ConnConfig.DialFunc = way.dial
	return poolOf(t, config), way
}

// detoured returns a pool that dials so, and which leads to a proxy that freezes what it has.
func detoured(t *testing.T, s *servers.PostgresServer) (*pgxpool.Pool, *detour, *faultproxy.Proxy) {
	t.Helper()
	first := proxied(t, s)
	way := &detour{first: first.Addr()}
	way.to.Store(first.Addr())
	config := pool(t, s, "&pool_max_conns=4").Config()
	config.ConnConfig.DialFunc = way.dial
	return poolOf(t, config), way, first
}

// Connections that carry nothing any more, in a network that makes new ones, cost no lease.
func TestFrozenConnections(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p, way, first := detoured(t, s)
	l := over(t, p, &postgres.Options{Mode: postgres.Lease}, fencelock.WithTTL(10*time.Second))
	le := lock(t, l.Mutex("x"))
	giveBack := takeAll(t, p) // so that the driver makes all four connections of its own
	first.Set(faultproxy.BlackHole)
	var asking sync.WaitGroup
	for range 6 {
		asking.Go(func() {
			if _, err := l.Inspect(t.Context(), "x"); err != nil {
				t.Error(err)
			}
		})
	}
	must(t, first.Await(within(t, 10*time.Second), func(c faultproxy.Counts) bool { return c.Open >= 8 }))
	first.Set(faultproxy.Mode{})
	asking.Wait()
	way.to.Store(s.Addr())
	first.Set(faultproxy.BlackHole)
	t.Cleanup(first.Cut)
	lasts(t, le, 20*time.Second)
	first.Cut()
	giveBack()
}

// Close does not wait for a network that makes no connection.
func TestCloseWhereNothingConnects(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p, way, first := detoured(t, s)
	driver, err := postgres.New(p, &postgres.Options{Mode: postgres.Lease})
	must(t, err)
	d := call(driver)
	r := request("x", "")
	g, err := d.Acquire(t.Context(), r)
	must(t, err)
	held := []*core.Hold{{Request: r, Grant: g}}
	must(t, d.Renew(t.Context(), held)[0])
	way.to.Store("")
	first.Set(faultproxy.BlackHole)
	t.Cleanup(first.Cut)
	if err := d.Renew(within(t, 300*time.Millisecond), held)[0]; err == nil {
		t.Error("Renew: got nil, though nothing is answered")
	}
	began := time.Now()
	must(t, d.Close())
	if took := time.Since(began); took > 7*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// A Close whose server hangs does not wait for the rows that it would delete.
func TestCloseLeavesRowsOfAServerThatHangs(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	for _, mode := range modes[:2] {
		proxy := proxied(t, s)
		l := open(t, at(proxy.Addr(), mode))
		for range 2 {
			unlock(t, lock(t, l.Mutex("x")))
		}
		proxy.Set(faultproxy.Mode{HoldRequests: true})
		began := time.Now()
		_ = l.Close() // that the server is silent is no error of it
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s: Close took %v", mode, took)
		}
	}
}
