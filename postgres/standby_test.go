package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/postgres"
)

// standby makes every COMMIT wait for a standby of that name, which is not there, or for none. The pool has one
// connection, whose own do not wait.
func standby(t *testing.T, p *pgxpool.Pool, name string) {
	t.Helper()
	for _, sql := range []string{
		"SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = '" + name + "'",
		"SELECT pg_reload_conf()",
	} {
		_, err := p.Exec(context.WithoutCancel(t.Context()), sql)
		must(t, err)
	}
	await(t, 10*time.Second, "the server goes by it", func() bool { // as new sessions do, so do all
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		conn, err := pgx.ConnectConfig(ctx, p.Config().ConnConfig)
		must(t, err)
		defer func() { _ = conn.Close(ctx) }()
		var now string
		must(t, conn.QueryRow(ctx, "SHOW synchronous_standby_names").Scan(&now))
		return now == name
	})
}

// A COMMIT that waits for its synchronous standby is not done for Unlock, whatever ends the wait: the standby may be
// promoted without what was written. Nothing of the driver's ends it while the connection is there.
func TestCommitWaitsForItsStandby(t *testing.T) {
	t.Parallel()
	for _, mode := range modes[:2] {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cut %v", mode, cut), func(t *testing.T) {
				t.Parallel()
				s := servers.Postgres(t, servers.PostgresOptions{})
				p := pool(t, s, "&pool_max_conns=1")
				makeNotes(t, p)
				proxy := proxied(t, s)
				seen := cleaned{make(chan struct{}, 100)}
				l := open(t, at(proxy.Addr(), mode), fencelock.WithTTL(3*time.Second), fencelock.WithObserver(seen))
				name := fmt.Sprint(mode, cut)
				le, _ := noted(t, l, name)
				standby(t, p, "nobody")
				t.Cleanup(func() { standby(t, p, "") }) // or nothing ends
				await(t, 20*time.Second, "a COMMIT waits", func() bool {
					_, err := pool(t, s, "").Exec(within(t, 300*time.Millisecond), "CREATE TEMP TABLE x (n int)")
					return err != nil
				})
				done := make(chan error, 1)
				go func() { done <- le.Unlock(within(t, 2*time.Second)) }()
				await(t, 10*time.Second, "the COMMIT waits", func() bool {
					return one[int](t, p, "SELECT count(*) FROM pg_stat_activity "+
						"WHERE wait_event = 'SyncRep' AND application_name LIKE 'fl %'") == 1
				})
				if cut {
					proxy.Cut() // pgx cancels what was under way
				}
				want(t, "Unlock", <-done, fencelock.ErrUnavailable)
				lost(t, le, 20*time.Second)
				if !cut {
					// Tries to clean up are under way, and none ends the wait.
					for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
						if n := notes(t, p, name); n != 0 {
							t.Fatal("what the standby does not have is shown")
						}
					}
				}
				for range 3 {
					want(t, "Unlock", le.Unlock(within(t, time.Second)), fencelock.ErrUnavailable)
				}
				standby(t, p, "")
				err := le.Unlock(within(t, 20*time.Second))
				for errors.Is(err, fencelock.ErrUnavailable) && t.Context().Err() == nil {
					err = le.Unlock(within(t, 20*time.Second))
				}
				must(t, err)
				wantNotes(t, p, name, 1)
			})
		}
	}
}

// A primary that lives on after its synchronous standby was promoted grants nothing any more, and its holders hear that
// before their TTL is over: the new one knows nothing of them.
func TestPrimaryLivesOnAfterAPromotion(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two servers and a copy")
	}
	const ttl = 3 * time.Second
	for _, mode := range modes[:2] {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			primary := servers.Postgres(t, servers.PostgresOptions{})
			replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{Synchronous: true})
			a := open(t, at(primary.Addr(), mode), fencelock.WithTTL(ttl))
			b := open(t, at(primary.Addr(), mode), fencelock.WithTTL(ttl))
			le, waited := lock(t, a.Mutex("x")), lock(t, a.Mutex("y"))
			wait := queue(t, b, "y", 1)
			select {
			case <-le.Done():
				t.Fatalf("lost beside a standby that confirms: %v", le.Err())
			case <-time.After(ttl + ttl/2):
			}
			must(t, replica.AwaitCaughtUp(within(t, 30*time.Second), primary))
			must(t, replica.Promote(within(t, 30*time.Second)))
			told, promoted := make(chan time.Duration, 1), time.Now()
			go func() {
				<-le.Done()
				told <- time.Since(promoted)
			}()
			time.Sleep(ttl / 2) // no proof will do any more
			unlock(t, waited)
			for _, name := range []string{"x", "free"} {
				if _, err := b.Mutex(name).TryLock(within(t, 2*time.Second)); err == nil {
					t.Errorf("%s was granted by a primary whose standby was promoted", name)
				}
			}
			lost(t, le, ttl)
			if after := <-told; after > ttl {
				t.Errorf("the holder heard it %v after the promotion, with a TTL of %v", after, ttl)
			}
			select {
			case <-wait.Done:
				if wait.Err == nil {
					t.Error("a waiter was granted the lock by a primary whose standby was promoted")
				}
			default:
			}
			wait.Cancel()
			<-wait.Done
			unlock(t, lock(t, open(t, at(replica.Addr(), mode)).Mutex("x")))
		})
	}
}

// A wait for a standby that somebody ends, as by pg_cancel_backend, is no proof: the server says that it has committed,
// and warns that the standby may not have.
func TestEndedWaitForAStandby(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "&pool_max_conns=1")
	makeNotes(t, p)
	const ttl = 4 * time.Second
	lockers, leases := map[string]*fencelock.Locker{}, map[string]*fencelock.Lease{}
	for _, mode := range modes {
		lockers[string(mode)] = open(t, at(s.Addr(), mode, "prefix", string(mode)), fencelock.WithTTL(ttl))
	}
	given := &postgres.Options{Prefix: "given"}
	lockers["given"] = over(t, pool(t, s, "&pool_max_conns=5"), given, fencelock.WithTTL(ttl))
	written := map[string]*fencelock.Lease{}
	for what, l := range lockers {
		leases[what] = lock(t, l.Mutex("held"))
		if what != string(postgres.Lease) {
			written[what], _ = noted(t, l, what, fencelock.WithTTL(time.Minute))
		}
	}
	mover, err := postgres.New(pool(t, s, ""), &postgres.Options{Mode: postgres.Lease, Prefix: "gates:"})
	must(t, err)
	t.Cleanup(func() { _ = mover.Close() })
	standby(t, p, "nobody")
	t.Cleanup(func() { standby(t, p, "") })
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	admin := pool(t, s, "")
	var ended atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			tag, _ := admin.Exec(ctx, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "+
				"WHERE wait_event = 'SyncRep'")
			ended.Add(tag.RowsAffected())
			time.Sleep(10 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	await(t, 10*time.Second, "a COMMIT waits, and somebody ends that", func() bool {
		run(t, admin, note, "probe")
		return ended.Load() > 0
	})
	for what, le := range written {
		if err := le.Renew(within(t, time.Second)); err == nil {
			t.Errorf("%s: a renewal that the standby has not confirmed", what)
		}
		want(t, what+": Unlock", le.Unlock(within(t, time.Second)), fencelock.ErrUnavailable)
	}
	for what, l := range lockers {
		if _, err := l.Mutex("free").TryLock(within(t, time.Second)); err == nil {
			t.Errorf("%s: a grant that the standby does not have", what)
		}
		lost(t, leases[what], 2*ttl)
	}
	gate := backend.Record{
		Key: backend.GateKey + "m", Data: []byte(`{"move":"m","scope":[{"match":"*"}],"state":"open","epoch":1}`),
	}
	if err := mover.Swap(within(t, time.Second), []backend.Record{gate}, 0); err == nil {
		t.Error("a gate that the standby does not have")
	}
	for rec, err := range mover.Load(within(t, time.Second), backend.GateKey) {
		if err == nil {
			t.Errorf("%q is read, which the standby does not have", rec.Key)
		}
	}
	if err := mover.Raise(within(t, time.Second), 1, nil); err == nil {
		t.Error("a raise that the standby does not have")
	}
	standby(t, p, "")
	for what, le := range written {
		must(t, le.Unlock(within(t, 20*time.Second)))
		wantNotes(t, p, what, 1)
	}
}

// A program's trace of its connections goes on behind the COMMIT of a lease that may wait for a standby.
func TestTraceGoesOn(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "&pool_max_conns=1")
	makeNotes(t, p)
	unlock(t, lock(t, over(t, pool(t, s, ""), nil).Mutex("x"))) // the tables are there
	standby(t, p, "nobody")
	t.Cleanup(func() { standby(t, p, "") })
	var traced marked
	config := pool(t, s, "&pool_max_conns=3&synchronous_commit=local").Config()
	config.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
		c.PgConn().Frontend().Trace(&traced, pgproto3.TracerOptions{})
		return nil
	}
	theirs := poolOf(t, config)
	l := over(t, theirs, nil)
	for range 3 {
		le, _ := noted(t, l, "x")
		unlock(t, le)
	}
	onEach(t, theirs, 3, "SELECT 'a mark'")
	if n := traced.Load(); n != 3 {
		t.Errorf("%d of 3 statements were traced", n)
	}
}

// marked counts traced statements with a mark.
type marked struct{ atomic.Int64 }

func (m *marked) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("SELECT 'a mark'")) {
		m.Add(1)
	}
	return len(line), nil
}

// Where what is idle in a program's pool leads to a server that was the primary before, all of that is given up at
// once.
func TestIdleConnectionsLeadToAnOldPrimary(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two servers and a copy")
	}
	primary := servers.Postgres(t, servers.PostgresOptions{})
	replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{})
	p, way := leading(t, primary, "&pool_max_conns=12")
	unlock(t, lock(t, over(t, p, nil).Mutex("warm"))) // the tables are there
	takeAll(t, p)()
	must(t, replica.AwaitCaughtUp(within(t, 30*time.Second), primary))
	must(t, replica.Promote(within(t, 30*time.Second)))
	way.to.Store(replica.Addr())
	le, err := over(t, p, &postgres.Options{Mode: postgres.Advisory}).Mutex("x").TryLock(within(t, 10*time.Second))
	must(t, err)
	holder(t, pool(t, replica, ""), "x")
	unlock(t, le)
}

// Where a commit of the driver's own connections has no answer, as that of a primary whose standby was promoted, none
// of them is asked again.
func TestOwnConnectionsLeadToAnOldPrimary(t *testing.T) {
	t.Parallel()
	for _, mode := range modes[:2] {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := servers.Postgres(t, servers.PostgresOptions{})
			admin := pool(t, s, "&pool_max_conns=1")
			config := pool(t, s, "&pool_max_conns=6&application_name=theirs").Config()
			var waits atomic.Bool // whether a commit of a new connection waits for a standby
			waits.Store(true)
			config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
				if waits.Load() {
					return nil
				}
				_, err := c.Exec(ctx, "SET synchronous_commit = local")
				return err
			}
			p := poolOf(t, config)
			l := over(t, p, &postgres.Options{Mode: mode})
			ahead := fencelock.WithFloor(fencelock.Token(time.Now().Add(time.Minute).UnixMicro()))
			unlock(t, lock(t, l.Mutex("warm", ahead)))
			leads, err := pool(t, s, "").Begin(t.Context())
			must(t, err)
			t.Cleanup(func() { _ = leads.Rollback(context.WithoutCancel(t.Context())) })
			_, err = leads.Exec(t.Context(), "LOCK TABLE fencelock_lead IN EXCLUSIVE MODE")
			must(t, err)
			var drawn []*pending
			for i := range 4 {
				drawn = append(drawn, testkit.Start(t, l.Mutex(fmt.Sprint(i), ahead)))
			}
			await(t, 10*time.Second, "each has a connection of the driver's", func() bool {
				return one[int](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%fencelock_above%' "+
					"AND wait_event_type = 'Lock'") == 4
			})
			must(t, leads.Rollback(t.Context()))
			for _, one := range drawn {
				unlock(t, one.Granted(t, 10*time.Second))
			}
			p.Reset()
			const theirs = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'theirs'"
			await(t, 10*time.Second, "only the driver's own are left", func() bool {
				return one[int](t, admin, theirs) == 4
			})
			const pids = "SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name = 'theirs'"
			old := one[[]int32](t, admin, pids)
			waits.Store(false)
			standby(t, admin, "nobody")
			t.Cleanup(func() { standby(t, admin, "") })
			m := l.Mutex("x", fencelock.WithManualRenew()) // for whom no older proof will do
			// It has time for two requests, which ask half of the old ones at the most.
			if le, err := m.TryLock(within(t, 2400*time.Millisecond)); err == nil {
				unlock(t, le)
			}
			await(t, 10*time.Second, "the old ones are gone, but for what waits for the standby", func() bool {
				return one[int](t, admin, theirs+" AND pid = ANY ($1) AND wait_event IS DISTINCT FROM 'SyncRep'",
					old) == 0
			})
			unlock(t, lock(t, m))
		})
	}
}
