package postgres_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

// A COMMIT whose answer was lost is no rollback to Close, which finds out what became of it.
func TestCloseAfterALostCommit(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	run(t, p, "CREATE TABLE notes (what text)")
	proxy := proxied(t, s)
	d := driver(t, at(proxy.Addr(), postgres.Row))
	l, err := fencelock.New(d, fencelock.WithTTL(time.Minute))
	must(t, err)
	le := lock(t, l.Mutex("x"))
	_, err = txOf(t, le).Exec(t.Context(), note, "a")
	must(t, err)
	proxy.LoseReplyTo(1, func(request []byte) bool { return bytes.Contains(request, []byte("COMMIT")) })
	proxy.Set(faultproxy.Mode{Refuse: true})
	want(t, "Unlock", le.Unlock(within(t, time.Second)), fencelock.ErrUnavailable)
	proxy.Set(faultproxy.Mode{})
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n := notes(t, p, "a"); n != 1 {
		t.Errorf("%d notes are there, want the one that was committed", n)
	}
}

// A server that answers slowly costs a waiter time, and not its place.
func TestSlowServerKeepsThePlace(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	proxy := proxied(t, s)
	a := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	b := open(t, at(proxy.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	c := open(t, at(s.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	le := lock(t, a.Mutex("x"))
	first := queue(t, b, "x", 1)
	second := queue(t, c, "x", 2)
	proxy.Set(faultproxy.Mode{Delay: 450 * time.Millisecond})
	unlock(t, le)
	got := first.Granted(t, 10*time.Second)
	select {
	case <-second.Done:
		t.Error("the second came before the first")
	default:
	}
	proxy.Set(faultproxy.Mode{})
	unlock(t, got)
	unlock(t, second.Granted(t, 10*time.Second))
}

// A server that was started again in order knows what became of a COMMIT.
func TestCommitBeforeARestart(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	makeNotes(t, pool(t, s, ""))
	proxy := proxied(t, s)
	l := open(t, at(proxy.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	le, _ := noted(t, l, "x")
	proxy.LoseReplyTo(1, isCommit)
	proxy.Set(faultproxy.Mode{Refuse: true})
	want(t, "Unlock", le.Unlock(within(t, time.Second)), fencelock.ErrUnavailable)
	must(t, s.Stop())
	must(t, s.Start())
	proxy.Set(faultproxy.Mode{})
	must(t, le.Unlock(within(t, 20*time.Second)))
	wantNotes(t, pool(t, s, ""), "x", 1)
}

// Statistics that an operator has begun anew are no crash of the server.
func TestCommitBeforeNewStatistics(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	p := pool(t, s, "")
	makeNotes(t, p)
	proxy := proxied(t, s)
	for _, of := range []string{"bgwriter", "archiver"} {
		l := open(t, at(proxy.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
		le, _ := noted(t, l, of)
		proxy.LoseReplyTo(1, isCommit)
		proxy.Set(faultproxy.Mode{Refuse: true})
		want(t, "Unlock", le.Unlock(within(t, time.Second)), fencelock.ErrUnavailable)
		run(t, p, "SELECT pg_stat_reset_shared($1)", of)
		proxy.Set(faultproxy.Mode{})
		must(t, le.Unlock(within(t, 20*time.Second)))
		wantNotes(t, p, of, 1)
	}
}

// A server that crashed with nothing of a transaction in its log, and has not given that number to another one yet, has
// lost it.
func TestUnlockAfterACrash(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"wal_writer_delay=10s", "bgwriter_delay=10s"}})
	makeNotes(t, pool(t, s, ""))
	proxy := proxied(t, s)
	l := open(t, at(proxy.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
	le, _ := noted(t, l, "x")
	proxy.Set(faultproxy.Mode{HoldRequests: true})
	want(t, "Unlock", le.Unlock(within(t, 300*time.Millisecond)), fencelock.ErrUnavailable)
	must(t, s.Kill())
	proxy.Cut()
	proxy.Set(faultproxy.Mode{})
	must(t, s.Start())
	want(t, "Unlock again", le.Unlock(within(t, 20*time.Second)), fencelock.ErrLost)
	wantNotes(t, pool(t, s, ""), "x", 0)
}

// A server that crashed with nothing of a transaction in its log gives that number to another one,
// whose COMMIT is no answer to ours; also where the question is under way for as long as the lease was held before.
func TestCommitAfterACrash(t *testing.T) {
	t.Parallel()
	for what, written := range map[string]bool{"written": true, "not written": false} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := servers.Postgres(t, servers.PostgresOptions{Config: []string{
				"wal_writer_delay=10s", "allow_system_table_mods=on",
			}})
			p := pool(t, s, "")
			run(t, p, "CREATE TABLE notes (what text)")
			proxy := proxied(t, s)
			d, err := backend.Open(t.Context(), at(proxy.Addr(), postgres.Row), nil)
			must(t, err)
			defer func() { must(t, d.Close()) }()
			claim := func(digit string) *backend.Claim {
				return &backend.Claim{Request: &backend.Request{
					Name: "x", Nonce: strings.Repeat(digit, 32), Owner: "o", TTL: time.Minute, Auto: true,
					Lost: func(error) {},
				}}
			}
			leave := func(c *backend.Claim, most time.Duration) error {
				c.Leaving, c.Held = true, true
				d.Leave(within(t, most), []*backend.Claim{c})
				return c.Err
			}
			ask := func(c *backend.Claim) {
				t.Helper()
				d.Ask(t.Context(), []*backend.Claim{c})
				must(t, c.Err)
			}
			warm, c := claim("1"), claim("2")
			ask(warm)
			must(t, leave(warm, 10*time.Second)) // the schema is there
			ask(c)
			asked := backend.Now()
			var number, given string
			if written {
				tx, ok := postgres.Tx(handle{&core.Hold{Grant: c.Grant}})
				if !ok {
					t.Fatal("a claim of mode row has no transaction")
				}
				_, err := tx.Exec(t.Context(), note, "a")
				must(t, err)
			}
			must(t, p.QueryRow(t.Context(),
				"SELECT backend_xid::text FROM pg_stat_activity WHERE backend_xid IS NOT NULL").Scan(&number))
			proxy.Set(faultproxy.Mode{HoldRequests: true})
			if err := leave(c, 500*time.Millisecond); err == nil || backend.Final(err) {
				t.Fatalf("Leave whose COMMIT does not arrive: got %v", err)
			}
			must(t, s.Kill())
			proxy.Cut()
			must(t, s.Start())
			again := pool(t, s, "")
			for range 1000 {
				must(t, again.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text").Scan(&given))
				if given == number {
					break
				}
			}
			if given != number {
				t.Errorf("the number %s was not given to another transaction, the last is %s", number, given)
			}
			slow, err := again.Begin(t.Context())
			must(t, err)
			_, err = slow.Exec(t.Context(), "LOCK pg_stat_bgwriter") // the question waits for that
			must(t, err)
			proxy.Set(faultproxy.Mode{})
			done := make(chan error, 1)
			longer := asked.Elapsed() + 1500*time.Millisecond
			go func() { done <- leave(c, 20*time.Second+longer) }()
			await(t, 10*time.Second, "the question has been asked", func() bool {
				var n int
				must(t, again.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&n))
				return n > 0
			})
			time.Sleep(longer) // than the lease was held
			must(t, slow.Rollback(t.Context()))
			err = <-done
			t.Logf("Leave: %v", err)
			if written {
				if err == nil || backend.Final(err) {
					t.Errorf("Leave of what was written: got %v, want that it cannot be told", err)
				}
				c.Held = false // nothing is left of it all the same
				d.Leave(within(t, 20*time.Second), []*backend.Claim{c})
				must(t, c.Err)
			} else {
				want(t, "Leave of a lock that the crash ended", err, fencelock.ErrLost)
			}
		})
	}
}
