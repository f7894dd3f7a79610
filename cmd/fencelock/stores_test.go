package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/servers"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// Every command for operators, and run, on every store that needs a server of its own.
func TestEveryStore(t *testing.T) {
	t.Parallel()
	type stopper interface{ Stop() error }
	for name, start := range map[string]func(t *testing.T) (string, stopper){
		"etcd": func(t *testing.T) (string, stopper) {
			s := servers.Etcd(t, servers.EtcdOptions{})
			return s.URL(), s.Servers()[0]
		},
		"zookeeper": func(t *testing.T) (string, stopper) {
			s := servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
			return s.URL(), s.Servers()[0]
		},
		"postgres-row": func(t *testing.T) (string, stopper) {
			s := servers.Postgres(t, servers.PostgresOptions{})
			return withMode(t, s.URL(), "row"), s
		},
		"postgres-lease": func(t *testing.T) (string, stopper) {
			s := servers.Postgres(t, servers.PostgresOptions{})
			return withMode(t, s.URL(), "lease"), s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, server := start(t)
			env := on(url)
			lease := hold(t, url, "jobs/a")
			info := decode[cli.Info](t, invoke(t, env, "inspect", "--json", "jobs/a").out)
			if !info.Held || info.Token != lease.Token() || info.Owner != lease.Owner() || info.Leaked {
				t.Errorf("inspect: got %+v, want held by %s with token %d", info, lease.Owner(), lease.Token())
			}
			if got := invoke(t, env, "ls", "jobs/"); got.code != 0 || !strings.Contains(got.out, "jobs/a") {
				t.Errorf("ls: got %+v", got)
			}
			if got := invoke(t, env, "leaks"); got.code != 0 || got.out != "no leaks\n" {
				t.Errorf("leaks: got %+v", got)
			}
			if got := invoke(t, env, "run", "--wait", "0", "jobs/a", "--", "true"); got.code != 75 {
				t.Errorf("run of a held lock: got %+v, want code 75", got)
			}
			if got := invoke(t, env, "break", "--yes", "jobs/a"); got.code != 0 ||
				!strings.HasPrefix(got.out, "broke jobs/a") {
				t.Errorf("break: got %+v", got)
			}
			await(t, "the holder is told", func() bool { return lease.Err() != nil })
			got := invoke(t, env, "run", "--json", "jobs/a", "--", "true")
			if got.code != 0 {
				t.Errorf("run after break: got %+v", got)
			}
			if got := invoke(t, env, "inspect", "jobs/a"); !strings.Contains(got.out, "state:      free") {
				t.Errorf("inspect after run: got %+v, want it free", got)
			}
			// A2 needs nothing, B5 the fault proxy.
			got = invoke(t, nil, "conform", "--short", "--only", "A2,B5", url)
			if got.code != 0 || !strings.Contains(got.out, "2 rules kept, 0 broken, 0 excluded") {
				t.Errorf("conform: got %+v", got)
			}
			if err := server.Stop(); err != nil {
				t.Fatal(err)
			}
			got = invoke(t, env, "run", "--wait", "2s", "jobs/a", "--", "true")
			if got.code != 69 || strings.Contains(got.err, "panic") {
				t.Errorf("run with the server stopped: got %+v, want code 69", got)
			}
			if strings.Count(got.err, "\n") > 1 { // a client library that logs by itself
				t.Errorf("run with the server stopped: got %q on stderr, want one line", got.err)
			}
		})
	}
}

// withMode adds mode= to a URL.
func withMode(t *testing.T, raw, mode string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("mode", mode)
	u.RawQuery = q.Encode()
	return u.String()
}
