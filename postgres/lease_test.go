package postgres_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// calling matches requests that call a function of ours about a lock.
func calling(function string) func([]byte) bool {
	return func(request []byte) bool { return bytes.Contains(request, []byte(function+"(")) }
}

func TestFailedTryWritesNothing(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"wal_level=minimal", "max_wal_senders=0", "autovacuum=off"}})
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Lease), fencelock.WithManualRenew(), fencelock.WithTTL(time.Minute))
	le := lock(t, l.Mutex("x"))
	b := open(t, at(s.Addr(), postgres.Lease))
	state := func() string {
		return one[string](t, p, "SELECT pg_current_wal_insert_lsn() || ' ' || xmin || ' ' || xmax || ' ' || ctid FROM fencelock_lease WHERE name = 'fencelock:x'")
	}
	before := state()
	for range 100 {
		_, err := b.Mutex("x").TryLock(t.Context())
		want(t, "TryLock", err, fencelock.ErrLocked)
	}
	if after := state(); after != before {
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
		await(t, 30*time.Second, "a lease is renewed", func() bool { must(t, le.Err()); return le.Deadline().After(until[i]) })
	}
	// One waits too, which takes the connection that listens.
	other := open(t, at(s.Addr(), postgres.Lease))
	held := lock(t, other.Mutex("theirs"))
	wait := queue(t, l, "theirs", 1)
	if got := one[int](t, p, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'one'"); got > 2 {
		t.Errorf("%d leases and a waiter take %d connections, want the pool's one and the one that listens", n, got)
	}
	unlock(t, held)
	unlock(t, wait.granted(t, 5*time.Second))
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
		if drawn := one[int64](t, p, "SELECT max(last_value) FROM pg_sequences WHERE sequencename LIKE 'fencelock_token%'"); drawn != le.Token() {
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
		l := open(t, at(s.Addr(), postgres.Lease, "listen_url", "postgres://postgres@"+proxy.Addr()+"/postgres?sslmode=disable"))
		line = append(line, queue(t, l, "x", i+1))
		proxies[i] = func() int64 { return proxy.Counts().Replies }
	}
	<-time.After(time.Second) // each has heard its own greeting
	before := proxies[2]()
	unlock(t, le)
	began := time.Now()
	first := line[0].granted(t, 2*time.Second)
	t.Logf("handed over after %v", line[0].at.Sub(began).Round(10*time.Microsecond))
	if got := proxies[2]() - before; got != 0 {
		t.Errorf("the last of three waiters heard %d messages, want none", got)
	}
	unlock(t, first)
	unlock(t, line[1].granted(t, 2*time.Second))
	unlock(t, line[2].granted(t, 2*time.Second))
}

// Without pushes the floor timer serves.
func listenerIsOutOfReach(t *testing.T, s *servers.PostgresServer) {
	l := open(t, at(s.Addr(), postgres.Lease, "listen_url", "postgres://postgres@127.0.0.1:1/postgres"))
	le := lock(t, open(t, at(s.Addr(), postgres.Lease)).Mutex("x"))
	wait := queue(t, l, "x", 1)
	unlock(t, le)
	unlock(t, wait.granted(t, 3*time.Second))
}

// Queries of the program on its own pool go on beside ours, in whatever mode it prepares them.
func givenPoolOfAnyExecMode(t *testing.T, s *servers.PostgresServer) {
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		for _, m := range both {
			p := pool(t, s, "&pool_max_conns=4&default_query_exec_mode="+mode)
			l := over(t, p, &postgres.Options{Mode: m, Prefix: mode})
			le := lock(t, l.Mutex("x"))
			if _, ok := postgres.Tx(le); ok != (m == postgres.Row) {
				t.Errorf("mode %s: Tx is %v", m, ok)
			}
			if got := one[int](t, p, "SELECT $1::int", 7); got != 7 {
				t.Errorf("got %d", got)
			}
			must(t, le.Renew(t.Context()))
			err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error { return postgres.CheckToken(t.Context(), tx, mode, le.Token()) })
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
	l, r := driver(t, at(s.Addr(), postgres.Lease, "prefix", "h:")), driver(t, at(s.Addr(), postgres.Row, "prefix", "h:"))
	for _, end := range []string{"infinity", "-infinity"} {
		run(t, p, "DELETE FROM fencelock_lease; INSERT INTO fencelock_lease VALUES ('h:x', 'n', 'o', 1, '"+end+"')")
		_, err := l.Acquire(t.Context(), request("x", ""))
		want(t, "a lease until "+end, err, fencelock.ErrInvalid)
	}
	run(t, p, "INSERT INTO fencelock_lead SELECT n, -5 FROM generate_series(-1, 1023) n")
	_, err := r.Acquire(t.Context(), request("y", ""))
	want(t, "a lead below 0", err, fencelock.ErrInvalid)
}
