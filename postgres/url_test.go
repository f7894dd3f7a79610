package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/postgres"
)

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ url, says string }{
		{"postgres://h/db?mode=raw", `mode "raw"`},
		{"postgres://h/db?nonsense=1", "known are"},
		{"postgres://h/db?nonsense=1", "sslmode"},
		{"postgres://h/db?sslmod=require", `"sslmod"`},
		{"postgres://h/db?pool_max_conns=none", "pool_max_conns"},
		{"postgres://h/db?pool_max_conns=1", "at least 2"},
		{"postgres://h/db?sslmode=perhaps", "sslmode"},
		{"postgres://h/db?listen_url=postgres://h/db", "mode=lease"},
		{"postgres://h/db?mode=lease&listen_url=redis://h", "listen_url"},
		{"postgres://h/db?mode=lease&listen_url=postgres://h/db%3Fpool_max_conns=3", "listen_url"},
		{"postgres://h/db?default_query_exec_mode=fast", "default_query_exec_mode"},
		{"postgres://h/db?connect_timeout=soon", "connect_timeout"},
		{"postgres://h/db?ttl=0", "ttl"},
		{"postgres://h/db?role=owner", "role="},
		{"postgres://h/db?mode=advisory&role=owner", "role="},
		{"postgresql://h/db?mode=", `mode ""`},
	} {
		_, err := fencelock.Open(t.Context(), tt.url)
		want(t, tt.url, err, fencelock.ErrInvalid)
		if !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: got %v, want one that says %q", tt.url, err, tt.says)
		}
	}
}

func passwordsDoNotShow(t *testing.T, s *servers.PostgresServer) {
	const secret = "s3cr3tpw"
	for _, url := range []string{
		"postgres://u:" + secret + "@127.0.0.1:1/db",
		"postgres://u:" + secret + "@127.0.0.1:1/db?sslmode=perhaps",
		"postgres://u:" + secret + "@127.0.0.1:1/db?pool_max_conns=x",
		"postgres://u:" + secret + "@127.0.0.1:1/db?nonsense=" + secret,
		"postgres://u:" + secret + "@127.0.0.1:1/db?" + secret + "@h",
		"postgres://u@127.0.0.1:1/db?password=" + secret,
		"postgres://u@127.0.0.1:1/db?password=" + secret + "&sslmode=perhaps",
		"postgres://u@127.0.0.1:1/db?sslpassword=" + secret + "&sslcert=/none&sslkey=/none",
		"postgres://u:" + secret + "@127.0.0.1:port/db",
		"postgres://u:" + secret + "/x@127.0.0.1/db",
		"postgres://u:" + secret + "?x@127.0.0.1/db",
		"postgres://nobody:" + secret + "@" + s.Addr() + "/nowhere?sslmode=disable",
		"postgres://u@127.0.0.1:1/db?mode=lease&listen_url=postgres://u:" + secret + "@h:port/db",
		"postgres://u@127.0.0.1:1/db?mode=lease&listen_url=postgres://u:" + secret + "@h/db%3Fsslmode%3Dperhaps",
	} {
		_, err := fencelock.Open(t.Context(), url)
		if err == nil {
			t.Errorf("%s: got nil, want an error", url)
		}
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), secret) {
			t.Errorf("the password shows in %v", err)
		}
	}
}

func uRLReachesTheServer(t *testing.T, s *servers.PostgresServer) {
	p := pool(t, s, "")
	for _, scheme := range []string{"postgres", "postgresql"} {
		url := scheme + strings.TrimPrefix(s.URL(),
			"postgres") + "&application_name=of_the_url&pool_min_conns=2&timezone=UTC" +
			"&options=-c%20work_mem%3D8MB&prefix=mine/"
		l := open(t, url)
		le := lock(t, l.Mutex("x"))
		if got := one[string](t, p, "SELECT encode(name, 'escape') FROM fencelock_row WHERE "+
			"substr(name, 1, 5) = 'mine/'"); got != "mine/x" {
			t.Errorf("the row's name: got %q", got)
		}
		unlock(t, le)
		if n := one[int](t, p, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'of_the_url'"); n < 1 {
			t.Errorf("%d connections have the URL's application_name", n)
		}
		must(t, l.Close())
	}
	_, err := fencelock.Open(t.Context(), "postgres://postgres@127.0.0.1:1/postgres")
	want(t, "no server", err, fencelock.ErrUnavailable)
	_, err = fencelock.Open(t.Context(), strings.Replace(s.URL(), "/postgres?", "/nowhere?", 1))
	want(t, "no such database", err, fencelock.ErrInvalid)
}

func TestNew(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig("postgres://u@127.0.0.1:1/db?pool_max_conns=2")
	must(t, err)
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	defer p.Close()
	for what, o := range map[string]*postgres.Options{
		"mode":             {Mode: "raw"},
		"prefix":           {Prefix: "a\x00"},
		"prefix and none":  {Prefix: "a", NoPrefix: true},
		"schema":           {Schema: "a\x00"},
		"listener of rows": {Listen: config.ConnConfig},
	} {
		_, err := postgres.New(p, o)
		want(t, what, err, fencelock.ErrInvalid)
	}
	_, err = postgres.New(nil, nil)
	want(t, "nil", err, fencelock.ErrInvalid)
	d, err := postgres.New(p, nil)
	must(t, err)
	if got := d.Traits(); got != backend.TraitsOf("postgres-row") {
		t.Errorf("got %+v", got)
	}
	must(t, d.Close())
}
