package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// calling matches requests that call a function of ours about a lock.
func calling(function string) func([]byte) bool {
	return func(request []byte) bool { return bytes.Contains(request, []byte(function+"(")) }
}

func TestFailedTryWritesNothing(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{
		"wal_level=minimal",
		"max_wal_senders=0", "autovacuum=off",
	}})
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Lease), fencelock.WithManualRenew(), fencelock.WithTTL(time.Minute))
	le := lock(t, l.Mutex("x"))
	b := open(t, at(s.Addr(), postgres.Lease))
	state := func() string {
		return one[string](t, p, "SELECT pg_current_wal_insert_lsn() || ' ' || xmin || ' ' || xmax || "+
			"' ' || ctid FROM fencelock_lease WHERE name = 'fencelock:x'")
	}
	before, after := "", state()
	for i := 0; i < 5 && before != after; i++ { // the first uses of the functions may prune pages of the catalogue
		before = after
		for range 100 {
			_, err := b.Mutex("x").TryLock(t.Context())
			want(t, "TryLock", err, fencelock.ErrLocked)
		}
		after = state()
	}
	if after != before {
		t.Errorf("100 failed tries: the log and the row were at %s, are at %s", before, after)
	}
	unlock(t, le)
}

func TestThousandLeasesOverOneConnection(t *testing.T) {
	t.Parallel()
	n, ttl := 1000, 20*time.Second
	if testing.Short() {
		n, ttl = 200, 9*time.Second
	}
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Lease, "pool_max_conns", "1", "application_name", "one"), fencelock.WithTTL(ttl))
	var all []*fencelock.Lease
	var until []time.Time
	for i := range n {
		le, err := l.Mutex(fmt.Sprint("lease-", i)).TryLock(t.Context())
		must(t, err)
		all, until = append(all, le), append(until, le.Deadline())
	}
	for i, le := range all {
		await(t, 30*time.Second, "a lease is renewed", func() bool {
			must(t,
				le.Err())
			return le.Deadline().After(until[i])
		})
	}
	// One waits too, which takes the connection that listens.
	other := open(t, at(s.Addr(), postgres.Lease))
	held := lock(t, other.Mutex("theirs"))
	wait := queue(t, l, "theirs", 1)
	if got := one[int](t, p, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'one'"); got > 2 {
		t.Errorf("%d leases and a waiter take %d connections, want the pool's one and the one that listens", n, got)
	}
	unlock(t, held)
	unlock(t, wait.Granted(t, 5*time.Second))
	for _, le := range all {
		unlock(t, le)
	}
	await(t, 3*time.Second, "no row is left", func() bool { return leftovers(t, p) == 0 })
}

func leaseLostReplies(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	proxy := proxied(t, s)
	l := open(t, at(proxy.Addr(), postgres.Lease), fencelock.WithTTL(time.Minute))
	unlock(t, lock(t, l.Mutex("warm")))
	for i, take := range []func(fencelock.Mutex) (*fencelock.Lease, error){
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.TryLock(t.Context()) },
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.Lock(within(t, 5*time.Second)) },
	} {
		before := proxy.Counts().LostReplies
		proxy.LoseReplyTo(1, calling("fencelock_acquire"))
		le, err := take(l.Mutex(fmt.Sprint("x", i)))
		must(t, err)
		if drawn := one[int64](t, p, "SELECT last_value FROM fencelock_token"); drawn != le.Token() {
			t.Errorf("the last token drawn is %d, the lease has %d: want no second token", drawn, le.Token())
		}
		proxy.LoseReplyTo(1, calling("fencelock_renew"))
		must(t, le.Renew(t.Context()))
		proxy.LoseReplyTo(1, calling("fencelock_release"))
		unlock(t, le)
		if n := proxy.Counts().LostReplies - before; n != 3 {
			t.Errorf("%d replies were lost, want 3", n)
		}
	}
	await(t, 3*time.Second, "no row is left", func() bool { return leftovers(t, p) == 0 })
}

// A release wakes one process, and only that.
func pushGoesToOneProcess(t *testing.T, s *servers.PostgresServer) {
	holder := open(t, at(s.Addr(), postgres.Lease))
	le := lock(t, holder.Mutex("x"))
	var line []*pending
	proxies := make([]func() int64, 3)
	for i := range proxies {
		proxy := proxied(t, s)
		l, heard := listening(t, s, proxy.Addr(), "")
		line = append(line, queue(t, l, "x", i+1))
		heard()
		proxies[i] = func() int64 { return proxy.Counts().Replies }
	}
	before := proxies[2]()
	unlock(t, le)
	began := time.Now()
	first := line[0].Granted(t, 2*time.Second)
	t.Logf("handed over after %v", line[0].At.Sub(began).Round(10*time.Microsecond))
	if got := proxies[2]() - before; got != 0 {
		t.Errorf("the last of three waiters heard %d messages, want none", got)
	}
	unlock(t, first)
	unlock(t, line[1].Granted(t, 2*time.Second))
	unlock(t, line[2].Granted(t, 2*time.Second))
}

// Without pushes the floor timer serves.
func listenerIsOutOfReach(t *testing.T, s *servers.PostgresServer) {
	l := open(t, at(s.Addr(), postgres.Lease, "listen_url", "postgres://postgres@127.0.0.1:1/postgres"))
	le := lock(t, open(t, at(s.Addr(), postgres.Lease)).Mutex("x"))
	wait := queue(t, l, "x", 1)
	unlock(t, le)
	unlock(t, wait.Granted(t, 3*time.Second))
}

// Queries of the program on its own pool go on beside ours, in whatever mode it prepares them.
func givenPoolOfAnyExecMode(t *testing.T, s *servers.PostgresServer) {
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		for _, m := range modes {
			p := pool(t, s, "&pool_max_conns=4&default_query_exec_mode="+mode)
			l := over(t, p, &postgres.Options{Mode: m, Prefix: mode})
			le := lock(t, l.Mutex("x"))
			if _, ok := postgres.Tx(le); ok != (m != postgres.Lease) {
				t.Errorf("mode %s: Tx is %v", m, ok)
			}
			if got := one[int](t, p, "SELECT $1::int", 7); got != 7 {
				t.Errorf("got %d", got)
			}
			must(t, le.Renew(t.Context()))
			err := pgx.BeginFunc(t.Context(), p,
				func(tx pgx.Tx) error { return postgres.CheckToken(t.Context(), tx, mode, le.Token()) })
			must(t, err)
			unlock(t, le)
		}
	}
}

// What no driver writes is an error, and never a lock that is free.
func TestHostileRows(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	l := driver(t, at(s.Addr(), postgres.Lease, "prefix", "h:"))
	r := driver(t, at(s.Addr(), postgres.Row, "prefix", "h:"))
	for _, end := range []string{"infinity", "-infinity"} {
		run(t, p, "DELETE FROM fencelock_lease; INSERT INTO fencelock_lease VALUES ('h:x', 'n', 'o', 1, '"+end+
			"', NULL, false, false)")
		_, err := l.Acquire(t.Context(), request("x", ""))
		want(t, "a lease until "+end, err, fencelock.ErrInvalid)
	}
	run(t, p, "INSERT INTO fencelock_lead SELECT n, -5 FROM generate_series(-1, 1023) n")
	_, err := r.Acquire(t.Context(), request("y", ""))
	want(t, "a lead below 0", err, fencelock.ErrInvalid)
}

// A server that does not answer shows as that, and not as a deadline that the caller never set.
func TestOwnLimitIsNoDeadlineOfTheCaller(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	proxy := proxied(t, s)
	d := driver(t, at(proxy.Addr(), postgres.Lease))
	_, err := d.Inspect(t.Context(), "x")
	must(t, err)
	proxy.Set(faultproxy.BlackHole)
	t.Cleanup(func() { proxy.Set(faultproxy.Mode{}); proxy.Cut() })
	const n = 10
	errs := make(chan error, n)
	for i := range n {
		go func() {
			_, err := d.Acquire(t.Context(), request(fmt.Sprint("x", i), ""))
			errs <- err
		}()
	}
	for range n {
		select {
		case err := <-errs:
			if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Errorf("Acquire: got %v, want an error that is no deadline of the caller's", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("an acquisition has no limit")
		}
	}
}

// What a lost push has missed, the sign of life finds, within a second or so.
func lostPushIsFound(t *testing.T, s *servers.PostgresServer) {
	proxy := proxied(t, s)
	a := open(t, at(s.Addr(), postgres.Lease))
	b, heard := listening(t, s, proxy.Addr(), "")
	le := lock(t, a.Mutex("lost push"))
	wait := queue(t, b, "lost push", 1)
	heard() // which makes it look again, so that what is tested is the next time
	unlock(t, le)
	unlock(t, wait.Granted(t, 5*time.Second))
	le = lock(t, a.Mutex("lost push"))
	wait = queue(t, b, "lost push", 1)
	proxy.Set(faultproxy.Mode{HoldReplies: true})
	began := time.Now()
	unlock(t, le)
	next := wait.Granted(t, 5*time.Second)
	if took := wait.At.Sub(began); took > 3*time.Second {
		t.Errorf("handed over after %v, want the next sign of life to find it", took)
	}
	unlock(t, next)
	proxy.Set(faultproxy.Mode{})
}

// However many dead processes are before it in the queue, the first live waiter has the lock at
// once.
func deadAreSkipped(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	a, b := open(t, at(s.Addr(), postgres.Lease, "prefix", "dead:")), open(t, at(s.Addr(),
		postgres.Lease, "prefix", "dead:"))
	le := lock(t, a.Mutex("x"))
	run(t, p, "INSERT INTO fencelock_process VALUES ('dead', clock_timestamp() - interval '1 s')")
	run(t, p, "INSERT INTO fencelock_queue SELECT 'dead:x', nextval('fencelock_ticket'), "+
		"decode(md5(i::text), 'hex'), 'o', 'dead' FROM generate_series(1, 9) i")
	wait := queue(t, b, "x", 1)
	unlock(t, le)
	unlock(t, wait.Granted(t, 4*time.Second)) // two of them would keep it as long
	if n := leftovers(t, p); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// A claim that is given up goes to the next waiter by push, as a release does.
func abandonHandsOn(t *testing.T, s *servers.PostgresServer) {
	url := at(s.Addr(), postgres.Lease, "prefix", "abandon:")
	d := driver(t, url)
	late := driver(t, url+"&listen_url=postgres%3A%2F%2Fpostgres%40127.0.0.1%3A1%2Fpostgres")
	b, heard := listening(t, s, s.Addr(), "abandon:")
	theirs := lock(t, open(t, url).Mutex("warm"))
	warm := queue(t, b, "warm", 1) // its process listens
	heard()
	p := pool(t, s, "")
	for range 5 { // the sign of life finds one now and then in time
		r := request("x", "")
		g, err := d.Acquire(t.Context(), r)
		must(t, err)
		first := request("x", "")
		first.Wait = true
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = late.Acquire(ctx, first) // which hears of no push
		}()
		waiters(t, b, "x", 1)
		wait := queue(t, b, "x", 2)
		must(t, d.Release(t.Context(), &core.Hold{Request: r, Grant: g}))
		cancel()
		<-ended
		must(t, late.Abandon(t.Context(), first))
		if n := one[int](t, p, "SELECT count(*) FROM fencelock_lease WHERE name = 'abandon:x'"); n != 1 {
			t.Error("the claim of whoever gave up was handed to nobody")
		}
		unlock(t, wait.Granted(t, 3*time.Second))
	}
	unlock(t, theirs)
	unlock(t, warm.Granted(t, 3*time.Second))
}

// A waiter whose place the server has lost, in a crash, comes back to it and not to the end of the
// queue.
func placeIsKept(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	url := at(s.Addr(), postgres.Lease, "prefix", "place:")
	le := lock(t, open(t, url).Mutex("x"))
	b, c := open(t, url), open(t, url)
	first := queue(t, b, "x", 1)
	second := queue(t, c, "x", 2)
	run(t, p, "DELETE FROM fencelock_queue WHERE ticket = (SELECT min(ticket) FROM fencelock_queue "+
		"WHERE name = 'place:x')") // what a crash takes from an unlogged table
	waiters(t, c, "x", 2) // it is back
	unlock(t, le)
	unlock(t, first.Granted(t, 5*time.Second))
	unlock(t, second.Granted(t, 5*time.Second))
}

// A lock that a waiter has taken over from a dead holder is free once that waiter unlocks it: its
// place in the queue went with the grant.
func takenOverIsFreed(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	url := at(s.Addr(), postgres.Lease, "prefix", "over:")
	dead := driver(t, url)
	a, b := open(t, url), open(t, url)
	r := request("x", "")
	r.TTL = 2 * time.Second // nobody renews it
	_, err := dead.Acquire(t.Context(), r)
	must(t, err)
	wait := queue(t, a, "x", 1)
	unlock(t, wait.Granted(t, 5*time.Second))
	le, err := b.Mutex("x").TryLock(t.Context())
	must(t, err)
	unlock(t, le)
	if n := one[int](t, p, "SELECT count(*) FROM fencelock_queue WHERE name = 'over:x'"); n != 0 {
		t.Errorf("%d places in the queue are left", n)
	}
}

// A try whose floor is too far ahead leaves the lock free, before it is given up.
func TestFarFloorLeavesTheLockFree(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	d := driver(t, at(s.Addr(), postgres.Lease))
	far := request("n", "")
	far.Floor = 1<<53 - 2
	_, err := d.Acquire(t.Context(), far)
	want(t, "a far floor", err, backend.ErrInvalid)
	_, err = d.Acquire(t.Context(), request("n", ""))
	must(t, err)
}

// A renewal whose transaction is undone after its statement has answered is none, at whatever level
// the role's transactions are.
func TestUndoneRenewalIsNone(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	run(t, p, "CREATE ROLE strict LOGIN SUPERUSER; "+
		"ALTER ROLE strict SET default_transaction_isolation = 'serializable'")
	d := driver(t, strings.Replace(at(s.Addr(), postgres.Lease), "postgres@", "strict@", 1))
	r := request("n", "")
	g, err := d.Acquire(t.Context(), r)
	must(t, err)
	run(t, p, `CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		RAISE 'undone';
	END $$;
	CREATE CONSTRAINT TRIGGER undo AFTER UPDATE ON fencelock_lease DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION undo()`)
	if err := d.Renew(t.Context(), []*core.Hold{{Request: r, Grant: g}})[0]; err == nil {
		t.Error("the renewal was undone, and counts")
	}
}

// A role whose transactions only read, unless they say otherwise, makes the tables, and has its locks.
func TestRoleThatOnlyReads(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	run(t, pool(t, s, ""), "CREATE ROLE reader LOGIN SUPERUSER; "+
		"ALTER ROLE reader SET default_transaction_read_only = on")
	for _, mode := range modes {
		url := strings.Replace(at(s.Addr(), mode), "postgres@", "reader@", 1)
		a, b := open(t, url), open(t, url)
		le := lock(t, a.Mutex("x"))
		wait := queue(t, b, "x", 1)
		must(t, le.Renew(t.Context()))
		unlock(t, le)
		unlock(t, wait.Granted(t, 5*time.Second))
	}
}

// A client that falls silent between a statement and the COMMIT of it, where they are apart, keeps a name from others
// for some seconds only.
func TestSilentBeforeItsCommit(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	run(t, p, "ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'")
	proxy := proxied(t, s)
	bySQL, err := postgres.NewSQL(sqlDB(t, proxy.Addr(), 0), nil)
	must(t, err)
	t.Cleanup(func() { _ = bySQL.Close() })
	for name, d := range map[string]caller{
		"a pool": driver(t, at(proxy.Addr(), postgres.Lease)), "a sql.DB": call(bySQL),
	} {
		release(t, d, request("warm", "")) // which finds out about the level
		tx, err := p.Begin(t.Context())
		must(t, err)
		key := []byte("fencelock:" + name)
		_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(7307, fencelock_hash($1))", key)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = d.Acquire(ctx, request(name, ""))
		}()
		stop := func() { proxy.Set(faultproxy.Mode{}); proxy.Cut(); cancel(); <-ended }
		t.Cleanup(stop)
		await(t, 10*time.Second, "the request waits in the server", func() bool { return advisory(t, p, 7307) == 1 })
		proxy.Set(faultproxy.BlackHole)
		must(t, tx.Rollback(t.Context()))
		unlock(t, lock(t, open(t, at(s.Addr(), postgres.Lease)).Mutex(name)))
		stop()
	}
}

// What never ends, which no driver writes, shows as leaked, and hides no other.
func TestEndlessRowsAreShown(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	d := driver(t, at(s.Addr(), postgres.Lease, "prefix", "h:"))
	_, err := d.Acquire(t.Context(), request("healthy", ""))
	must(t, err)
	shared := request("shared", "")
	shared.Mode = backend.Reader
	_, err = d.Acquire(t.Context(), shared)
	must(t, err)
	run(t, p, "INSERT INTO fencelock_lease VALUES ('h:alone', 'n', 'o', 1, 'infinity', NULL, false, false), "+
		"('h:', 'n', 'o', 1, 'infinity', NULL, false, false)") // the second is no lock's name
	run(t, p, "UPDATE fencelock_hold SET expires_at = 'infinity'")
	shown := func(i backend.Info) string { return fmt.Sprintln(i.Name, i.Held, i.Leaked, i.ExpiresIn > 0) }
	wanted := map[string]string{}
	for _, i := range []backend.Info{
		{Name: "healthy", Held: true, ExpiresIn: 1},
		{Name: "alone", Held: true, Leaked: true},
		{Name: "shared", Held: true, Leaked: true},
	} {
		wanted[i.Name] = shown(i)
		info, err := d.Inspect(t.Context(), i.Name)
		if err != nil || shown(info) != wanted[i.Name] {
			t.Errorf("Inspect: got %+v, %v, want %s", info, err, wanted[i.Name])
		}
	}
	for info, err := range d.List(t.Context(), "") {
		if err != nil || shown(info) != wanted[info.Name] {
			t.Errorf("List: got %+v, %v, want %s", info, err, wanted[info.Name])
		}
		delete(wanted, info.Name)
	}
	if len(wanted) > 0 {
		t.Errorf("List does not show %v", wanted)
	}
}
