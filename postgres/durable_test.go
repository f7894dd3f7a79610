package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// rising takes a token for each name, again and again, and fails the test if one does not rise.
type rising struct {
	mu   sync.Mutex
	last map[string]fencelock.Token
}

func (r *rising) saw(t *testing.T, when, name string, token fencelock.Token) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if token <= r.last[name] {
		t.Errorf("%s: token of %q: got %d after %d", when, name, token, r.last[name])
	}
	if r.last == nil {
		r.last = map[string]fencelock.Token{}
	}
	r.last[name] = token
}

// The server dies while leases are held, their transactions open, in which a sequence alone would
// forget what it gave; also where floors have raised the tokens above the clock.
func TestTokensRiseOverKills(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := servers.Postgres(t, servers.PostgresOptions{
				Config: []string{"wal_writer_delay=10s", "bgwriter_delay=10s"},
			})
			var r rising
			rounds := 4
			if testing.Short() {
				rounds = 2
			}
			ttl := time.Minute
			if mode == postgres.Lease {
				ttl = 5 * time.Second // a release that the kill undoes costs that much
			}
			for round := range rounds {
				l := open(t, at(s.Addr(), mode), fencelock.WithTTL(ttl), fencelock.WithManualRenew())
				for i := range 4 {
					name := fmt.Sprint("x", i)
					floor := fencelock.Token(0)
					if i%2 == 1 && round < 1 {
						floor = time.Now().UnixMicro() + 3e9 // 50 minutes ahead
					}
					for range 3 { // held when the server dies: the last one
						le := lock(t, l.Mutex(name, fencelock.WithFloor(floor)))
						if le.Token() <= floor {
							t.Errorf("token %d, want more than the floor %d", le.Token(), floor)
						}
						r.saw(t, fmt.Sprint("round ", round), name, le.Token())
						if mode == postgres.Lease {
							unlock(t, le)
						} else {
							defer func() { _ = le.Unlock(t.Context()) }()
							must(t, l.Break(t.Context(), name))
						}
					}
				}
				if mode != postgres.Lease {
					for i := range 4 {
						r.saw(t, "held at the kill", fmt.Sprint("x", i), lock(t, l.Mutex(fmt.Sprint("x", i))).Token())
					}
				}
				must(t, s.Kill())
				must(t, s.Start())
			}
		})
	}
}

// The lease of mode lease is there after a crash.
func TestLeaseSurvivesKill(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	l := open(t, at(s.Addr(), postgres.Lease), fencelock.WithTTL(time.Minute))
	le := lock(t, l.Mutex("x"))
	wait := queue(t, open(t, at(s.Addr(), postgres.Lease)), "x", 1)
	must(t, s.Kill())
	must(t, s.Start())
	must(t, le.Renew(t.Context()))
	_, err := open(t, at(s.Addr(), postgres.Lease)).Mutex("x").TryLock(t.Context())
	want(t, "TryLock by another", err, fencelock.ErrLocked)
	unlock(t, le)
	unlock(t, wait.Granted(t, 10*time.Second)) // its place was lost with the crash; it has put it back
}

// A release whose reply a crash took is known for one when it is sent again.
func TestReleaseIsRememberedThroughACrash(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := proxied(t, s)
	l := open(t, at(p.Addr(), postgres.Lease), fencelock.WithTTL(time.Minute))
	le := lock(t, l.Mutex("x"))
	p.Set(faultproxy.Mode{HoldReplies: true})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	want(t, "Unlock without an answer", le.Unlock(ctx), fencelock.ErrUnavailable)
	// Another lock's commit takes what was committed before it to the disk.
	other := open(t, at(s.Addr(), postgres.Lease))
	lock(t, other.Mutex("y"))
	must(t, s.Kill())
	p.Cut()
	p.Set(faultproxy.Mode{})
	must(t, s.Start())
	must(t, le.Unlock(t.Context()))
	unlock(t, lock(t, other.Mutex("x")))
}

func TestTokensRiseOverPromotion(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two servers and a copy")
	}
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			primary := servers.Postgres(t, servers.PostgresOptions{})
			replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{})
			var r rising
			l := open(t, at(primary.Addr(), mode), fencelock.WithTTL(time.Minute), fencelock.WithManualRenew())
			floor := time.Now().UnixMicro() + 3e9
			for i := range 8 {
				name := fmt.Sprint("x", i)
				m := l.Mutex(name)
				if i == 0 {
					m = l.Mutex(name, fencelock.WithFloor(floor))
				}
				r.saw(t, "before", name, lock(t, m).Token())
			}
			_, err := fencelock.Open(t.Context(), at(replica.Addr(), mode))
			want(t, "Open of a replica", err, fencelock.ErrUnavailable)
			must(t, replica.AwaitCaughtUp(within(t, 30*time.Second), primary))
			must(t, replica.Pause()) // what comes now, the replica never sees
			for i := range 8 {
				if name := fmt.Sprint("x", i); i > 0 {
					must(t, l.Break(t.Context(), name))
					r.saw(t, "unseen by the replica", name, lock(t, l.Mutex(name)).Token())
				}
			}
			must(t, primary.Kill())
			must(t, replica.Resume())
			must(t, replica.Promote(within(t, 30*time.Second)))
			l = open(t, at(replica.Addr(), mode))
			for i := range 8 {
				name := fmt.Sprint("x", i)
				must(t, l.Break(t.Context(), name))
				le := lock(t, l.Mutex(name))
				r.saw(t, "after the promotion", name, le.Token())
				unlock(t, le)
			}
		})
	}
}

// After a promotion the number of a transaction may be another one's: a COMMIT that the new server
// never saw is not taken for done.
func TestLostCommitIsNotJudgedByAnotherHistory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two servers and a copy")
	}
	primary := servers.Postgres(t, servers.PostgresOptions{})
	run(t, pool(t, primary, ""), "CREATE TABLE written (n int)")
	replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{})
	proxy := proxied(t, primary)
	l := open(t, at(proxy.Addr()+","+replica.Addr(), postgres.Row, "target_session_attrs",
		"read-write"), fencelock.WithTTL(5*time.Minute))
	unlock(t, lock(t, l.Mutex("x")))
	must(t, replica.AwaitCaughtUp(within(t, 30*time.Second), primary))
	must(t, replica.Stop()) // what comes now, it never sees
	le := lock(t, l.Mutex("x"))
	_, err := txOf(t, le).Exec(t.Context(), "INSERT INTO written VALUES (1)")
	must(t, err)
	var xid int64
	must(t, txOf(t, le).QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&xid))
	proxy.Set(faultproxy.Mode{HoldReplies: true})
	want(t, "Unlock whose reply is held", le.Unlock(within(t, 300*time.Millisecond)), fencelock.ErrUnavailable)
	must(t, primary.Kill())
	proxy.Cut()
	must(t, replica.Start())
	must(t, replica.Promote(within(t, 30*time.Second)))
	after := pool(t, replica, "")
	for one[int64](t, after, "SELECT pg_current_xact_id()::text::bigint") <= xid {
	}
	if n := one[int](t, after, "SELECT count(*) FROM written"); n != 0 {
		t.Fatalf("the promoted server has %d rows: it was not behind", n)
	}
	if err := le.Unlock(within(t, 20*time.Second)); err == nil {
		t.Error("Unlock: got nil, and what was written is lost")
	} else {
		want(t, "Unlock on a server of another history", err, fencelock.ErrUnavailable)
	}
}

// A question about a COMMIT that goes to the server that was the primary before, which has not given its number yet, is
// no answer; nor does it keep Unlock from finding out by the one that was promoted.
func TestCommitIsNotJudgedByAnOldPrimary(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two servers and a copy")
	}
	primary := servers.Postgres(t, servers.PostgresOptions{})
	old := pool(t, primary, "")
	makeNotes(t, old)
	replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{})
	release(t, driver(t, at(primary.Addr(), postgres.Row)), request("warm", "")) // the tables are there
	must(t, replica.AwaitCaughtUp(within(t, 30*time.Second), primary))
	must(t, replica.Promote(within(t, 30*time.Second)))
	after := pool(t, replica, "")
	for range 50 {
		run(t, after, "SELECT pg_current_xact_id()")
	}
	proxy := proxied(t, replica)
	way := &detour{}
	way.to.Store(proxy.Addr())
	config := after.Config()
	config.ConnConfig.DialFunc = way.dial
	p := poolOf(t, config)
	l := over(t, p, nil, fencelock.WithTTL(time.Minute))
	le, _ := noted(t, l, "x")
	proxy.Set(faultproxy.Mode{HoldReplies: true})
	want(t, "Unlock whose reply is held", le.Unlock(within(t, 300*time.Millisecond)), fencelock.ErrUnavailable)
	await(t, 10*time.Second, "the COMMIT is done", func() bool { return notes(t, after, "x") == 1 })
	way.to.Store(primary.Addr())
	proxy.Cut()
	want(t, "Unlock by the old primary", le.Unlock(within(t, 5*time.Second)), fencelock.ErrUnavailable)
	proxy.Set(faultproxy.Mode{})
	way.to.Store(proxy.Addr())
	p.Reset()
	must(t, le.Unlock(within(t, 20*time.Second)))
	wantNotes(t, old, "x", 0)
}

// An address that leads for a moment to a replica that is behind costs no lease, and leaves no connection to it.
func TestAddressLeadsToAReplicaForAMoment(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two servers and a copy")
	}
	primary := servers.Postgres(t, servers.PostgresOptions{})
	replica := servers.PostgresReplica(t, primary, servers.PostgresReplicaOptions{})
	way := &detour{}
	way.to.Store(primary.Addr())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	proxy := faultproxy.NewOn(listener, primary.Addr(), way.dial)
	t.Cleanup(func() { _ = proxy.Close() })
	byURL := driver(t, at(proxy.Addr(), postgres.Lease, "pool_max_conns", "2"))
	config := pool(t, primary, "&pool_max_conns=2").Config()
	config.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, proxy.Addr())
	}
	given, err := postgres.New(poolOf(t, config), &postgres.Options{Mode: postgres.Lease})
	must(t, err)
	t.Cleanup(func() { _ = given.Close() })
	bySQL, err := postgres.NewSQL(sqlDB(t, proxy.Addr(), 2), nil)
	must(t, err)
	t.Cleanup(func() { _ = bySQL.Close() })
	release(t, byURL, request("warm", "")) // the tables are there
	must(t, replica.AwaitCaughtUp(within(t, 30*time.Second), primary))
	run(t, pool(t, replica, ""), "SELECT pg_wal_replay_pause()")

	clients := map[string]caller{"a URL": byURL, "a pool": call(given), "a sql.DB": call(bySQL)}
	held := map[string]*core.Hold{}
	for what, d := range clients {
		r := request(what, "")
		g, err := d.Acquire(t.Context(), r) // which the replica never sees
		must(t, err)
		held[what] = &core.Hold{Request: r, Grant: g}
		must(t, d.Keep(t.Context(), []*backend.Claim{{Request: r}}, false)[0])
	}
	way.to.Store(replica.Addr())
	proxy.Cut()
	for what, d := range clients {
		for _, extend := range []bool{false, true} {
			err := d.Keep(within(t, 3*time.Second), []*backend.Claim{{Request: held[what].Request}}, extend)[0]
			if err == nil || errors.Is(err, backend.ErrLost) {
				t.Errorf("%s that leads to a replica: renewed: %v: got %v, want an outage", what, extend, err)
			}
		}
	}
	way.to.Store(primary.Addr())
	for what, d := range map[string]caller{"a URL": byURL, "a pool": call(given)} {
		for range 4 {
			must(t, d.Renew(t.Context(), []*core.Hold{held[what]})[0])
			must(t, d.Keep(t.Context(), []*backend.Claim{{Request: held[what].Request}}, false)[0])
		}
		must(t, d.Release(t.Context(), held[what]))
	}
}
