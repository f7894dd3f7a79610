package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

func rowRoundTrips(t *testing.T, s *servers.PostgresServer) {
	proxy := proxied(t, s)
	for mode, most := range map[postgres.Mode]int64{postgres.Row: 1, postgres.Advisory: 3} {
		l := open(t, at(proxy.Addr(), mode))
		unlock(t, lock(t, l.Mutex("warm")))
		before := proxy.Counts().Requests
		le, err := l.Mutex("x").TryLock(t.Context())
		must(t, err)
		taken := proxy.Counts().Requests
		unlock(t, le)
		freed := proxy.Counts().Requests
		if taken-before != most || freed-taken != 1 {
			t.Errorf("%s: requests to take and to free: got %d and %d, want %d and 1",
				mode, taken-before, freed-taken, most)
		}
	}
}

// A session that the server ends is seen by the parked read, whatever the TTL.
func rowSessionEnded(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p := pool(t, s, "")
	proxy := proxied(t, s)
	l := open(t, at(proxy.Addr(), mode), fencelock.WithTTL(time.Minute))
	for _, how := range []struct {
		what   string
		do     func()
		reason fencelock.Reason
	}{
		{"pg_terminate_backend", func() {
			run(t, p, "SELECT pg_terminate_backend($1)", holder(t, p,
				"x"))
		}, fencelock.Revoked},
		{"a cut connection", proxy.Cut, fencelock.SessionLost},
	} {
		for _, wait := range []time.Duration{0, 200 * time.Millisecond} { // before and after the read is parked
			le := lock(t, l.Mutex("x"))
			<-time.After(wait)
			began := time.Now()
			how.do()
			seen := lost(t, le, 5*time.Second, how.reason)
			t.Logf("%s after %v: seen after %v", how.what, wait, seen.Sub(began).Round(time.Millisecond))
			if took := seen.Sub(began); took > time.Second {
				t.Errorf("%s: seen after %v, want a second at most", how.what, took)
			}
			want(t, "Unlock", le.Unlock(t.Context()), fencelock.ErrLost)
		}
	}
	unlock(t, lock(t, l.Mutex("x")))
	await(t, 3*time.Second, "no row is left", func() bool { return leftovers(t, p) == 0 })
}

func rowPoolUsedUp(t *testing.T, s *servers.PostgresServer) {
	l := open(t, at(s.Addr(), postgres.Row, "pool_max_conns", "3"))
	a, b := lock(t, l.Mutex("a")), lock(t, l.Mutex("b"))
	for what, take := range map[string]func(context.Context) (*fencelock.Lease,
		error){"TryLock": l.Mutex("c").TryLock, "Lock": l.Mutex("c").Lock} {
		_, err := take(t.Context())
		want(t, what, err, fencelock.ErrUnavailable)
		if !strings.Contains(fmt.Sprint(err), "pool_max_conns=3") {
			t.Errorf("%s: got %v, want one that names pool_max_conns", what, err)
		}
	}
	// One connection is kept back.
	info, err := l.Inspect(t.Context(), "a")
	must(t, err)
	if !info.Held || info.Token != a.Token() || info.Owner != a.Owner() {
		t.Errorf("Inspect: got %+v, want owner %q and token %d", info, a.Owner(), a.Token())
	}
	must(t, l.Break(t.Context(), "b"))
	lost(t, b, 2*time.Second, fencelock.Revoked)
	unlock(t, lock(t, l.Mutex("c")))
	unlock(t, a)
}

func rowOwners(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Row))
	for _, o := range []struct{ owner, want string }{
		{"host:12345", "host:12345"},
		{`it's 100 % "ours" \`, `it's 100 % "ours" \`},
		{"Jürgen", "Jürgen"},
		{"", ""},
		{strings.Repeat("o", 512), strings.Repeat("o", 20)},
	} {
		le := lock(t, l.Mutex("x", fencelock.WithOwner(o.owner)))
		info, err := l.Inspect(t.Context(), "x")
		must(t, err)
		if o.owner == "" {
			o.want = le.Owner()
		}
		if !strings.HasPrefix(info.Owner, o.want) || info.Token != le.Token() {
			t.Errorf("owner %q: got %+v, want it to begin with %q, and token %d", o.owner, info, o.want, le.Token())
		}
		if info.ExpiresIn <= 0 || info.ExpiresIn > 30*time.Second {
			t.Errorf("expires in %v, want up to the TTL of 30 s", info.ExpiresIn)
		}
		unlock(t, le)
	}
	// Whoever locks the row by hand holds the lock too.
	le := lock(t, l.Mutex("y"))
	next := queue(t, l, "y", 1) // keeps the row there
	tx, err := p.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	unlock(t, le)
	unlock(t, next.Granted(t, 5*time.Second))
	_, err = p.Exec(t.Context(), "INSERT INTO fencelock_row (name) VALUES ($1)", []byte("fencelock:z"))
	must(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM fencelock_row WHERE name = $1 FOR UPDATE", []byte("fencelock:z"))
	must(t, err)
	_, err = l.Mutex("z").TryLock(t.Context())
	want(t, "TryLock of a row that is locked by hand", err, fencelock.ErrLocked)
	info, err := l.Inspect(t.Context(), "z")
	must(t, err)
	if !info.Held || info.Owner != "" || info.Token != 0 {
		t.Errorf("a row that is locked by hand: got %+v, want Held without Owner and Token", info)
	}
	must(t, tx.Rollback(t.Context()))
	unlock(t, lock(t, l.Mutex("z")))
}

// Who has waited for a moment only has the lock before that is confirmed, and the settings of its wait end with that or
// with its first statement. After a longer wait, or where nobody renews, the confirmation comes first.
func rowShortWait(t *testing.T, s *servers.PostgresServer) {
	const limits = "&statement_timeout=7s&lock_timeout=6s"
	direct := open(t, at(s.Addr(), postgres.Row))
	for i, tt := range []struct {
		what  string
		waits time.Duration
		early bool
		opts  []fencelock.Option
	}{
		{"short", 0, true, nil},
		{"long", 1100 * time.Millisecond, false, nil},
		{"renewed by hand", 0, false, []fencelock.Option{fencelock.WithManualRenew()}},
		{"short TTL", 800 * time.Millisecond, false, []fencelock.Option{fencelock.WithTTL(1500 * time.Millisecond)}},
	} {
		proxy := proxied(t, s)
		l := open(t, at(proxy.Addr(), postgres.Row)+limits, tt.opts...)
		name := fmt.Sprint("short", i)
		le := lock(t, direct.Mutex(name))
		began := time.Now()
		wait := queue(t, l, name, 1)
		<-time.After(tt.waits)
		proxy.Set(faultproxy.Mode{HoldRequests: true})
		unlock(t, le)
		slow := time.Since(began) > claimed/4 // on such a machine a short wait may be a long one
		most := 200 * time.Millisecond
		if tt.early {
			most = claimed * 3 / 4
		}
		select {
		case <-wait.Done:
		case <-time.After(most):
		}
		if early := wait.Over(); early != tt.early && !(tt.early && slow) {
			t.Errorf("%s: granted before a confirmation: %v, want %v", tt.what, early, tt.early)
		}
		proxy.Set(faultproxy.Mode{})
		next := wait.Granted(t, 5*time.Second)
		if tt.early {
			await(t, 5*time.Second, "the full lease", func() bool {
				return time.Until(next.Deadline()) > 20*time.Second
			})
			<-time.After(claimed + 200*time.Millisecond) // so long the server keeps what nobody confirms
		}
		must(t, next.Unlock(t.Context()))
	}
	for i := range 5 {
		l := open(t, at(s.Addr(), postgres.Row)+limits)
		le := lock(t, direct.Mutex("tx"))
		wait := queue(t, l, "tx", 1)
		unlock(t, le)
		next := wait.Granted(t, 5*time.Second)
		var statement, lock, idle string
		if i == 0 { // the first statement takes longer than the server keeps what is not confirmed
			_, err := txOf(t, next).Exec(t.Context(), "SELECT pg_sleep($1)", (claimed + time.Second).Seconds())
			must(t, err)
		}
		must(t, txOf(t, next).QueryRow(t.Context(), "SELECT current_setting('statement_timeout'), "+
			"current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')").
			Scan(&statement, &lock, &idle))
		if statement != "7s" || lock != "6s" || idle != "30s" {
			t.Errorf("got the timeouts %s, %s and %s, want 7s, 6s and 30s", statement, lock, idle)
		}
		must(t, next.Unlock(t.Context()))
	}
}

// claimed is how long a grant is kept that its waiter does not confirm.
const claimed = 2 * time.Second

func rowLostReplies(t *testing.T, s *servers.PostgresServer, mode postgres.Mode) {
	p := pool(t, s, "")
	proxy := proxied(t, s)
	l := open(t, at(proxy.Addr(), mode), fencelock.WithTTL(time.Minute))
	taking := func(request []byte) bool { return bytes.Contains(request, []byte("fencelock_take")) }
	unlock(t, lock(t, l.Mutex("warm")))
	if mode == postgres.Advisory { // that of the token, and of the session's new label
		for _, of := range []string{"fencelock_above", "SELECT set_config('application_name'"} {
			before := proxy.Counts().LostReplies
			proxy.LoseReplyTo(1, func(request []byte) bool { return bytes.Contains(request, []byte(of)) })
			unlock(t, lock(t, l.Mutex("token")))
			if n := proxy.Counts().LostReplies - before; n != 1 {
				t.Errorf("%s: %d replies were lost, want 1", of, n)
			}
		}
	}
	for i, take := range []func(fencelock.Mutex) (*fencelock.Lease, error){
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.TryLock(t.Context()) },
		func(m fencelock.Mutex) (*fencelock.Lease, error) { return m.Lock(within(t, 5*time.Second)) },
	} {
		proxy.LoseReplyTo(1, taking)
		before := proxy.Counts().LostReplies
		le, err := take(l.Mutex(fmt.Sprint("x", i)))
		must(t, err)
		if n := proxy.Counts().LostReplies - before; n != 1 {
			t.Errorf("%d replies were lost, want 1", n)
		}
		unlock(t, le)
	}
	// The grant of a waiter, and its confirmation: of one whom the engine does not renew it comes first.
	l = open(t, at(proxy.Addr(), mode), fencelock.WithTTL(time.Minute), fencelock.WithManualRenew())
	for _, of := range []string{"true) t;", "SET LOCAL idle_in_transaction_session_timeout"} {
		direct := open(t, at(s.Addr(), mode))
		le := lock(t, direct.Mutex("w"))
		wait := queue(t, l, "w", 1)
		before := proxy.Counts().LostReplies
		if of == "true) t;" {
			proxy.LoseReplies(1)
		} else {
			proxy.LoseReplyTo(1, func(request []byte) bool { return bytes.Contains(request, []byte(of)) })
		}
		unlock(t, le)
		next := wait.Granted(t, 10*time.Second)
		if n := proxy.Counts().LostReplies - before; n != 1 {
			t.Errorf("%s: %d replies were lost, want 1", of, n)
		}
		if next.Token() <= le.Token() {
			t.Errorf("token %d after %d", next.Token(), le.Token())
		}
		unlock(t, next)
		must(t, direct.Close())
	}
	// A renewal: the lease cannot be kept, for its connection is gone, and that is said at once.
	le := lock(t, l.Mutex("r"))
	proxy.LoseReplyTo(1, func(request []byte) bool {
		return bytes.Contains(request, []byte("pg_current_xact_id_if_assigned")) ||
			bytes.Contains(request, []byte("fencelock_here"))
	})
	want(t, "Renew", le.Renew(t.Context()), fencelock.ErrLost)
	lost(t, le, time.Second, fencelock.SessionLost)
	unlock(t, lock(t, l.Mutex("r")))
	// A release.
	le = lock(t, l.Mutex("u"))
	proxy.LoseReplyTo(1, func(request []byte) bool { return bytes.Contains(request, []byte("COMMIT")) })
	unlock(t, le)
	await(t, 3*time.Second, "no row is left", func() bool { return leftovers(t, p) == 0 })
}

// A server that is stopped says nothing: the waiter ends its wait by itself.
func TestRowServerIsSilent(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for the patience of a waiter")
	}
	s := servers.Postgres(t, servers.PostgresOptions{})
	a, b := open(t, at(s.Addr(), postgres.Row)), open(t, at(s.Addr(), postgres.Row))
	lock(t, a.Mutex("x"))
	wait := queue(t, b, "x", 1)
	proxy := proxied(t, s)
	c := open(t, at(proxy.Addr(), postgres.Row))
	far := queue(t, c, "x", 2)
	proxy.Set(faultproxy.BlackHole)
	began := time.Now()
	select {
	case <-far.Done:
	case <-time.After(15 * time.Second):
		t.Fatal("a waiter whose server is silent waits on")
	}
	want(t, "Lock", far.Err, fencelock.ErrUnavailable)
	t.Logf("ended after %v: %v", far.At.Sub(began).Round(time.Millisecond), far.Err)
	if took := far.At.Sub(began); took < 4*time.Second {
		t.Errorf("ended after %v, want the outage ridden out for 5 s", took)
	}
	proxy.Set(faultproxy.Mode{})
	waiters(t, a, "x", 1) // the other waits on
	wait.Cancel()
	<-wait.Done
}

// Dead waiters leave the server's queue though nobody tells it.
func TestRowDeadWaiter(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	a := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	le := lock(t, a.Mutex("x"))
	proxy := proxied(t, s)
	dead := queue(t, open(t, at(proxy.Addr(), postgres.Row)), "x", 1)
	proxy.Set(faultproxy.Mode{Refuse: true})
	proxy.Cut() // its process is gone, as far as the server can see
	waiters(t, a, "x", 0)
	dead.Cancel()
	<-dead.Done
	proxy.Set(faultproxy.Mode{})
	unlock(t, le)
}

// A try takes the door of its own row, and no other, whatever the server's plan for a table is that
// it knows to be small.
func rowDoors(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	l := open(t, at(s.Addr(), postgres.Row, "prefix", "doors:"))
	unlock(t, lock(t, l.Mutex("warm")))
	run(t, p, "INSERT INTO fencelock_row VALUES ('doors:a'), ('doors:b'), ('doors:c')")
	run(t, p, "VACUUM ANALYZE fencelock_row")
	tx := parked(t, p, takeByHand, []byte("doors:b"), false, 6)
	if n := one[int](t, p, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"); n != 1 {
		t.Errorf("a try holds %d doors, want 1", n)
	}
	for _, name := range []string{"a", "c"} {
		le, err := l.Mutex(name).TryLock(t.Context())
		must(t, err)
		unlock(t, le)
	}
	await(t, 3*time.Second, "the rows are tidied away", func() bool {
		return one[int](t, p, "SELECT count(*) FROM fencelock_row WHERE name IN ('doors:a', 'doors:c')") == 0
	})
	run(t, p, "INSERT INTO fencelock_row VALUES ('doors:a'), ('doors:c')")
	run(t, p, "VACUUM ANALYZE fencelock_row")
	tidying := parked(t, p, "SELECT fencelock_tidy('doors:a')")
	if n := one[int](t, p, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"); n != 2 {
		t.Errorf("%d doors are held while a row is tidied away, want 2", n)
	}
	must(t, tidying.Rollback(t.Context()))
	must(t, tx.Rollback(t.Context()))
	run(t, p, "SELECT fencelock_tidy('doors:a'), fencelock_tidy('doors:b'), fencelock_tidy('doors:c')")
}
