package postgres_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
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
	select {
	case <-le.Done():
		t.Error(le.Err())
	case <-time.After(2500 * time.Millisecond): // longer than a cancel may take, and a renewal
		unlock(t, le)
	}
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
	select {
	case <-le.Done():
		t.Errorf("the lease: %v", le.Err())
	case <-time.After(20 * time.Second):
		unlock(t, le)
	}
	first.Cut()
	giveBack()
}
