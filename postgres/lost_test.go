package postgres_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
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
	got := first.granted(t, 10*time.Second)
	select {
	case <-second.done:
		t.Error("the second came before the first")
	default:
	}
	proxy.Set(faultproxy.Mode{})
	unlock(t, got)
	unlock(t, second.granted(t, 10*time.Second))
}

// A server that crashed with nothing of a transaction in its log gives that number to another one,
// whose COMMIT is no answer to ours.
func TestCommitAfterACrash(t *testing.T) {
	t.Parallel()
	for _, written := range []bool{true, false} {
		s := servers.Postgres(t, servers.PostgresOptions{Config: []string{"wal_writer_delay=10s"}})
		p := pool(t, s, "")
		run(t, p, "CREATE TABLE notes (what text)")
		proxy := proxied(t, s)
		l := open(t, at(proxy.Addr(), postgres.Row), fencelock.WithTTL(time.Minute))
		unlock(t, lock(t, l.Mutex("x"))) // the schema is there
		le := lock(t, l.Mutex("x"))
		var number, given string
		if written {
			_, err := txOf(t, le).Exec(t.Context(), note, "a")
			must(t, err)
		}
		must(t, p.QueryRow(t.Context(), "SELECT backend_xid::text FROM pg_stat_activity WHERE backend_xid IS NOT NULL").
			Scan(&number))
		proxy.Set(faultproxy.Mode{HoldRequests: true})
		done := make(chan error, 1)
		go func() { done <- le.Unlock(t.Context()) }()
		must(t, proxy.Await(within(t, 5*time.Second), func(c faultproxy.Counts) bool { return c.HeldRequests > 0 }))
		must(t, s.Kill())
		proxy.Set(faultproxy.Mode{Refuse: true})
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
		proxy.Set(faultproxy.Mode{})
		err := <-done
		t.Logf("written: %v: Unlock: %v", written, err)
		if written {
			want(t, "Unlock of what was written", err, fencelock.ErrUnavailable)
		} else {
			if errors.Is(err, fencelock.ErrUnavailable) { // the server's start took longer than it waits
				err = le.Unlock(t.Context())
			}
			want(t, "Unlock of a lock that the crash ended", err, fencelock.ErrLost)
		}
	}
}
