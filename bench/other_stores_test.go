package bench_test

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/bench"
	"github.com/fencelock/fencelock/internal/servers"
)

// The stores that the tests of whole runs leave out: one row of each kind, so that every raw side is used.
func TestOtherStores(t *testing.T) {
	tests := []struct {
		name string
		open func(t testing.TB) store
	}{
		{"zookeeper", func(t testing.TB) store { return zooKeeperStore(t, false) }},
		{"zookeeper", func(t testing.TB) store { return zooKeeperStore(t, true) }},
		{"postgres-row", func(t testing.TB) store { return postgresStore(t, "row") }},
		{"postgres-lease", func(t testing.TB) store { return postgresStore(t, "lease") }},
		{"redlock", redlockStore},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := tt.open(t)
			o := tiny
			o.Only = []string{"cycle/goroutines=1", "contended/goroutines=16/section=200us", "handover", "held"}
			got, err := bench.Run(t.Context(), []bench.Target{{URL: s.url}}, o)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 4 {
				t.Errorf("got %d rows, want 4", len(got))
			}
			for _, r := range got {
				if r.Backend != tt.name {
					t.Errorf("got backend %q, want %q", r.Backend, tt.name)
				}
				check(t, r)
			}
			if left := s.left(); len(left) > 0 {
				t.Errorf("got %q left in the store, want nothing", left)
			}
		})
	}
}

func zooKeeperStore(tb testing.TB, secure bool) store {
	s := servers.ZooKeeper(tb, servers.ZooKeeperOptions{TLS: secure, Config: []string{"maxSessionTimeout=120000"}})
	at := s.URL()
	if secure {
		at = s.SecureURL() + "?tls_ca=" + url.QueryEscape(s.CAFile())
	}
	return store{at, func() []string {
		conn, events, err := zk.Connect(s.Addrs(), 5*time.Second, zk.WithLogInfo(false))
		if err != nil {
			tb.Fatal(err)
		}
		go func() {
			for range events {
			}
		}()
		defer conn.Close()
		all, _, err := conn.Children("/")
		if err != nil {
			tb.Fatal(err)
		}
		return slices.DeleteFunc(all, func(n string) bool { return !strings.Contains(n, "bench") })
	}}
}

func postgresStore(tb testing.TB, mode string) store {
	s := servers.Postgres(tb, servers.PostgresOptions{})
	u, err := url.Parse(s.URL())
	if err != nil {
		tb.Fatal(err)
	}
	q := u.Query()
	q.Set("mode", mode)
	u.RawQuery = q.Encode()
	return store{u.String(), func() []string {
		conn, err := pgx.Connect(tb.Context(), s.URL())
		if err != nil {
			tb.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		rows, err := conn.Query(tb.Context(),
			`SELECT tablename::text FROM pg_tables WHERE tablename LIKE 'fencelock_bench%'
			UNION ALL SELECT 'row ' || encode(name, 'escape') FROM fencelock_row
			UNION ALL SELECT 'lease ' || encode(name, 'escape') FROM fencelock_lease`)
		if err != nil {
			tb.Fatal(err)
		}
		left, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			tb.Fatal(err)
		}
		return left
	}}
}

func redlockStore(tb testing.TB) store {
	g := servers.Redises(tb, 3, servers.RedisOptions{})
	return store{"redlock://" + strings.Join(g.Addrs(), ",") + "?fresh=1", func() []string { return nil }}
}
