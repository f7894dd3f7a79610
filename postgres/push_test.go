package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
	"github.com/fencelock/fencelock/postgres"
)

// pushedTo returns a Locker of mode lease behind a proxy that has heard its greeting, and the proxy.
func pushedTo(t *testing.T, s *servers.PostgresServer, prefix string) (*faultproxy.Proxy, *fencelock.Locker) {
	t.Helper()
	p := proxied(t, s)
	l := open(t, at(p.Addr(), postgres.Lease, "prefix", prefix))
	held := lock(t, open(t, s.URL()+"&mode=lease&prefix="+prefix).Mutex("greeting"))
	wait := queue(t, l, "greeting", 1)
	unlock(t, held)
	unlock(t, wait.Granted(t, 5*time.Second))
	return p, l
}

// pushGrants: a push grants by itself, so the holder asks for nothing before it has the lock. What it trusts until its
// first renewal is over before the row expires, also where that renewal never comes.
func pushGrants(t *testing.T, s *servers.PostgresServer) {
	admin, other := pool(t, s, ""), open(t, s.URL()+"&mode=lease&prefix=push:")
	for _, gone := range []bool{false, true} {
		p, l := pushedTo(t, s, "push:")
		le := lock(t, other.Mutex("x"))
		wait := queue(t, l, "x", 1)
		p.Set(faultproxy.BlackHole) // the push comes late
		unlock(t, le)
		<-time.After(150 * time.Millisecond)
		p.Set(faultproxy.Mode{HoldRequests: true})
		got := wait.Granted(t, time.Second)
		left := one[float64](t, admin, "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 "+
			"FROM fencelock_lease WHERE name = 'push:x' AND NOT claimed")
		trusted := time.Until(got.Deadline())
		if left <= 0 || left > 2 || trusted.Seconds() >= left {
			t.Errorf("the row expires in %g s, the deadline is in %v", left, trusted)
		}
		if gone {
			lost(t, got, 3*time.Second, fencelock.Expired)
			p.Set(faultproxy.Mode{})
			continue
		}
		p.Set(faultproxy.Mode{})
		await(t, 2*time.Second, "a renewal", func() bool { return time.Until(got.Deadline()) > 20*time.Second })
		unlock(t, got)
	}
}

// pushIsOld: a push grants only by the last request of a waiter, and only if that was sent not long ago. Any other push
// is worth a look, and no more.
func pushIsOld(t *testing.T, s *servers.PostgresServer) {
	admin, other := pool(t, s, ""), open(t, s.URL()+"&mode=lease&prefix=old:")
	p, l := pushedTo(t, s, "old:")
	le := lock(t, other.Mutex("x"))
	wait := queue(t, l, "x", 1)
	const says = "SELECT pg_notify('fl_' || process, replace($1, 'ask', 'h' || ask) || ' ' || encode(nonce, 'hex')) " +
		"FROM fencelock_queue WHERE name = 'old:x'"
	for _, push := range []string{
		"ask1:5:2000", "ask:x:2000", "ask:-5:2000", "ask:0:2000", "ask:5", "ask:5:2001", "ask:5:-1", "ask", "h",
	} {
		run(t, admin, says, push)
	}
	<-time.After(1100 * time.Millisecond)
	if wait.Over() {
		t.Fatalf("granted beside its holder: %v", wait.Err)
	}
	p.Set(faultproxy.Mode{HoldRequests: true})
	unlock(t, le)
	<-time.After(200 * time.Millisecond)
	if wait.Over() {
		t.Errorf("granted by a request of more than a second ago: %v", wait.Err)
	}
	p.Set(faultproxy.Mode{})
	unlock(t, wait.Granted(t, 2*time.Second))
	le = lock(t, other.Mutex("x"))
	wait = queue(t, l, "x", 1)
	p.Set(faultproxy.BlackHole)
	unlock(t, le)
	<-time.After(800 * time.Millisecond)
	p.Set(faultproxy.Mode{HoldRequests: true})
	<-time.After(200 * time.Millisecond)
	if wait.Over() {
		t.Errorf("granted by a push that took long: %v", wait.Err)
	}
	p.Set(faultproxy.Mode{})
	unlock(t, wait.Granted(t, 2*time.Second))
}

// pushesAskedFor: a request has a number, by which a push may grant, only where the push can say all that the holder is
// to have.
func pushesAskedFor(t *testing.T, s *servers.PostgresServer) {
	admin, other := pool(t, s, ""), open(t, s.URL()+"&mode=lease&prefix=asked:")
	_, l := pushedTo(t, s, "asked:")
	for _, tt := range []struct {
		name   string
		opts   []fencelock.Option
		number bool
	}{
		{"plain", nil, true},
		{"floor", []fencelock.Option{fencelock.WithFloor(1)}, false},
		{"by hand", []fencelock.Option{fencelock.WithManualRenew()}, false},
	} {
		le := lock(t, other.Mutex(tt.name))
		wait := testkit.Start(t, l.Mutex(tt.name, tt.opts...))
		waiters(t, l, tt.name, 1)
		ask := one[int64](t, admin, "SELECT ask FROM fencelock_queue WHERE name = $1", []byte("asked:"+tt.name))
		if (ask > 0) != tt.number {
			t.Errorf("%s: the number of the request is %d", tt.name, ask)
		}
		unlock(t, le)
		unlock(t, wait.Granted(t, 5*time.Second))
	}
}

// chain is a name with waiters that a test makes by hand.
type chain struct {
	p       *pgxpool.Pool
	name    []byte
	release string // the statement
}

// chains are one whose leases are released alone, and one whose leases are released as of a batch.
func chains(p *pgxpool.Pool, name string) []chain {
	return []chain{
		{p, []byte(name + "1"), "SELECT fencelock_release($1::bytea, $2::bytea, 0, true, 2000)"},
		{p, []byte(name + "2"), releaseByHand},
	}
}

// nonce is that of a client, by one letter.
func (c chain) nonce(letter string) []byte { return fmt.Appendf(nil, "%-15s%s", c.name, letter) }

// held makes a lease of a, and a process that lives. The test's end deletes what is left.
func (c chain) held(t *testing.T) {
	t.Helper()
	c.holds(t)
	t.Cleanup(func() {
		for _, rows := range []string{"lease WHERE name", "queue WHERE name", "process WHERE process"} {
			_, err := c.p.Exec(context.Background(), "DELETE FROM fencelock_"+rows+" IN ($1, 'alive')", c.name)
			must(t, err)
		}
	})
}

// holds makes a lease of a for a minute, and a process that lives.
func (c chain) holds(t *testing.T) {
	t.Helper()
	run(t, c.p, "INSERT INTO fencelock_process VALUES ('alive', clock_timestamp() + interval '1 min') "+
		"ON CONFLICT DO NOTHING")
	run(t, c.p, "INSERT INTO fencelock_lease VALUES ($1, $2, 'o', 1, clock_timestamp() + interval '1 min', "+
		"NULL, false, false)", c.name, c.nonce("a"))
}

// waits makes a waiter that lives, with the number of its request and the gates that it knows.
func (c chain) waits(t *testing.T, nonce string, ask, seen int) {
	t.Helper()
	run(t, c.p, "INSERT INTO fencelock_queue VALUES ($1, nextval('fencelock_ticket'), $2, 'o', 'alive', 'x', 1, $3, "+
		"fencelock_gates_now() + $4)", c.name, c.nonce(nonce), ask, seen)
}

// releases releases the lease.
func (c chain) releases(t *testing.T, nonce string) {
	t.Helper()
	if told := one[string](t, c.p, c.release, c.name, c.nonce(nonce)); told != "t" {
		t.Errorf("the release of %s: %s", nonce, told)
	}
}

// isOf wants the lease to be that of the nonce, as a claim or not.
func (c chain) isOf(t *testing.T, nonce string, claim bool) {
	t.Helper()
	var who string
	var claimed bool
	must(t, c.p.QueryRow(t.Context(), "SELECT right(encode(nonce, 'escape'), 1), claimed "+
		"FROM fencelock_lease WHERE name = $1", c.name).Scan(&who, &claimed))
	if who != nonce || claimed != claim {
		t.Errorf("it is %s's, a claim: %t; want %s's, a claim: %t", who, claimed, nonce, claim)
	}
}

// passes releases the lease, and wants that of the next one, as a claim or not.
func (c chain) passes(t *testing.T, nonce, next string, claim bool) {
	t.Helper()
	c.releases(t, nonce)
	c.isOf(t, next, claim)
}

// pushedByGates: a push grants only to a waiter that was judged by the gates of now, and has said by which request, not
// long ago.
func pushedByGates(t *testing.T, s *servers.PostgresServer) {
	for _, c := range chains(pool(t, s, ""), "gates") {
		c.held(t)
		c.waits(t, "b", 1, 1)
		c.waits(t, "c", 0, 0)
		c.waits(t, "d", 1, 0)
		run(t, c.p, "UPDATE fencelock_queue SET asked = asked - interval '0.7 s' WHERE nonce = $1", c.nonce("d"))
		c.waits(t, "e", 1, 0)
		c.passes(t, "a", "b", true)
		c.passes(t, "b", "c", true)
		c.passes(t, "c", "d", true)
		c.passes(t, "d", "e", false)
	}
}

// Where there is a synchronous standby, every grant waits for it: the lease before may not be there.
func TestPushesWaitForTheStandby(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	_, err := open(t, s.URL()+"&mode=lease").Inspect(t.Context(), "makes the tables")
	must(t, err)
	standby(t, pool(t, s, "&pool_max_conns=1"), "absent")
	p := pool(t, s, "&synchronous_commit=local")
	for _, c := range chains(p, "standby") {
		c.held(t)
		c.waits(t, "b", 1, 0)
		c.passes(t, "a", "b", true)
	}
}

// A crash takes no grant that a push made, so a copy of the release before it frees nothing, and another client gets
// the lock when the holder has been told.
func TestPushedGrantOutlivesACrash(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"wal_writer_delay=10s"}})
	before := proxied(t, s)
	first := open(t, at(before.Addr(), postgres.Lease))
	p, l := pushedTo(t, s, "fencelock:")
	le := lock(t, first.Mutex("x"))
	wait := queue(t, l, "x", 1)
	p.Set(faultproxy.Mode{HoldRequests: true})
	before.Set(faultproxy.Mode{HoldReplies: true})
	freed := make(chan error, 1)
	go func() { freed <- le.Unlock(t.Context()) }()
	got := wait.Granted(t, time.Second)
	must(t, s.Kill())
	must(t, s.Start())
	before.Set(faultproxy.Mode{})
	must(t, <-freed)
	next := lock(t, open(t, s.URL()+"&mode=lease").Mutex("x"))
	if early := time.Until(got.Deadline()); early > 0 || got.Err() == nil {
		t.Errorf("granted to another %v before the deadline; the holder was told: %v", early, got.Err())
	}
	if next.Token() <= got.Token() {
		t.Errorf("token %d after %d", next.Token(), got.Token())
	}
	unlock(t, next)
	for _, c := range chains(nil, "crash") {
		c.p = pool(t, s, "")
		c.holds(t)
		c.waits(t, "b", 1, 0)
		c.releases(t, "a")
		must(t, s.Kill())
		must(t, s.Start())
		c.p = pool(t, s, "")
		c.isOf(t, "b", false)
	}
}
