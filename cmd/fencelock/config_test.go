package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/servers"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

// configFile writes a configuration and returns its path.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "locks.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const password = "hunter2"

// twoStores is a configuration over a file store and another one.
func twoStores(files, other string) string {
	return "backends:\n  files: {url: \"" + files + "\"}\n  other: {url: \"" + other + "\"}\nlocks:\n" +
		"  - {match: \"cron/*\", scenario: general, backend: files}\n  - {match: \"jobs/*\", " +
		"scenario: inventory, backend: other}\n"
}

// Every command, with a file that sends two names to two stores.
func TestConfigRoutes(t *testing.T) {
	t.Parallel()
	files, server := fileStore(t), servers.Redis(t, servers.RedisOptions{}).URL()
	urls := map[string]string{"cron/a": files, "jobs/a": server}
	path := configFile(t, twoStores("${FILES}", "${SERVER}"))
	env := map[string]string{"FILES": files, "SERVER": server, "FENCELOCK_URL": "nosuch://x"}
	for name, url := range urls {
		if got := invoke(t, env, "--config", path, "run", "--wait", "0", name, "--", "true"); got.code != 0 {
			t.Errorf("run of %s: got %+v", name, got)
		}
		lease := hold(t, url, name)
		if got := invoke(t, env, "run", "--config", path, "--wait", "0", name, "--",
			"true"); got.code != cli.ExitNotObtained {
			t.Errorf("run of %s while it is held in its store: got %+v, want code 75", name, got)
		}
		info := decode[cli.Info](t, invoke(t, env, "--config", path, "inspect", "--json", name).out)
		if !info.Held || info.Token != lease.Token() {
			t.Errorf("inspect of %s: got %+v, want token %d", name, info, lease.Token())
		}
	}
	got := invoke(t, env, "--config", path, "ls")
	if got.code != 0 || !strings.Contains(got.out, "cron/a") || !strings.Contains(got.out, "jobs/a") {
		t.Errorf("ls: got %+v, want both names", got)
	}
	if got := invoke(t, env, "--config", path, "watch", "--count", "1"); got.code != 0 ||
		strings.Count(got.out, "held") != 2 {
		t.Errorf("watch: got %+v, want both names", got)
	}
	if got := invoke(t, env, "--config", path, "leaks"); got.code != 0 || got.out != "no leaks\n" {
		t.Errorf("leaks: got %+v", got)
	}
	if got := invoke(t, env, "--config", path, "break", "--yes", "jobs/a"); got.code != 0 ||
		!strings.HasPrefix(got.out, "broke jobs/a") {
		t.Errorf("break: got %+v", got)
	}
	got = invoke(t, env, "--config", path, "run", "--json", "jobs/a", "--", "true")
	if got.code != 0 || !strings.Contains(got.err, `"backend":"redis"`) {
		t.Errorf("run: got %+v, want the name's backend in its events", got)
	}
	if got := invoke(t, env, "--config", path, "inspect", "else"); got.code != cli.ExitUsage ||
		!strings.Contains(got.err, `"cron/*"`) {
		t.Errorf("a name without a rule: got %+v, want code 64 and the rules", got)
	}
	for _, query := range []string{"", "?ttl=5s", "?ttl=5s&prefix=x"} {
		timed := configFile(t, twoStores(files+query, server))
		got = invoke(t, env, "--config", timed, "conform", "--short", "--only", "A2", "files")
		if got.code != 0 || !strings.Contains(got.out, "1 rules kept") {
			t.Errorf("conform of a backend of the file with %q: got %+v", query, got)
		}
	}
	for _, args := range [][]string{{"conform"}, {"conform", "nobody"}} {
		got := invoke(t, env, append([]string{"--config", path}, args...)...)
		if got.code != cli.ExitUsage || !strings.Contains(got.err, "files, other") {
			t.Errorf("%v: got %+v, want code 64 and the backends", args, got)
		}
	}
}

// A command about one name needs that name's store only.
func TestOneStoreIsEnoughForOneName(t *testing.T) {
	t.Parallel()
	path := configFile(t, twoStores(fileStore(t), "redis://127.0.0.1:1"))
	if got := invoke(t, nil, "--config", path, "run", "cron/a", "--", "true"); got.code != 0 {
		t.Errorf("run: got %+v", got)
	}
	if got := invoke(t, nil, "--config", path, "inspect", "cron/a"); got.code != 0 {
		t.Errorf("inspect: got %+v", got)
	}
	if got := invoke(t, nil, "--config", path, "ls"); got.code != cli.ExitUnavailable ||
		!strings.Contains(got.err, `"other"`) {
		t.Errorf("ls: got %+v, want code 69 and the backend that is down", got)
	}
}

func TestWhichBackendWins(t *testing.T) {
	t.Parallel()
	url, elsewhere := fileStore(t), fileStore(t)
	hold(t, url, "cron/a")
	path := configFile(t, twoStores(elsewhere, elsewhere))
	for _, c := range []struct {
		what string
		env  map[string]string
		args []string
		held bool
	}{
		{"--url over --config", nil, []string{"--config", path, "--url", url}, true},
		{"--config over FENCELOCK_URL", on(url), []string{"--config", path}, false},
		{"FENCELOCK_URL alone", on(url), nil, true},
	} {
		got := invoke(t, c.env, append(c.args, "inspect", "cron/a")...)
		if got.code != 0 || strings.Contains(got.out, "state:      held") != c.held {
			t.Errorf("%s: got %+v, want held %v", c.what, got, c.held)
		}
	}
}

// A bad configuration is code 64 with its place, for every command, and no secret shows.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PW": password}
	tests := map[string]struct{ text, says string }{
		"weak": {
			"backends:\n  b: {url: \"redis://:${PW}@h\"}\nlocks:\n  - {match: x, scenario: " +
				"consensus, backend: b}\n",
			":4:46: ",
		},
		"a scheme": {
			"backends:\n  b: {url: \"${PW}://:${PW}@h\"}\nlocks:\n  - {match: x, " +
				"scenario: general, backend: b}\n",
			":2:12: ",
		},
		"no host": {
			"backends:\n  b: {url: \"redis://:${PW}@h:1:2\"}\nlocks:\n  - {match: x, " +
				"scenario: general, backend: b}\n",
			":2:12: ",
		},
		"two ports": {
			"backends:\n  b: {url: \"${PW}://h:1:2\"}\nlocks:\n  - {match: x, " +
				"scenario: general, backend: b}\n",
			":2:12: ",
		},
		"misplaced": {
			"backends:\n  b: {url: \"memory://\"}\nlocks:\n  - {match: x, scenario: \"redis://:" +
				password + "@h\", backend: b}\n",
			":4:26: ",
		},
		"a key":      {"\"redis://:" + password + "@h\": 1\n", ":1:1: "},
		"no YAML":    {"backends: redis://:" + password + "@h: x\n", ":1:29: "},
		"a password": {"backends:\n  b: {url: \"memory://\", ttl: \"${PW}\"}\nlocks: []\n", ":2:30: "},
		"anchored":   {"backends: *" + password + "\n", ":1:11: "},
		"empty":      {"", ":1:1: "},
	}
	for name, tt := range tests {
		path := configFile(t, tt.text)
		for _, args := range [][]string{
			{"config", "check", path},
			{"config", "check", "--json", path},
			{"--config", path, "ls"},
			{"--config", path, "run", "x", "--", "true"},
			{"--config", path, "break", "--yes", "x"},
			{"conform", "--config", path},
		} {
			got := invoke(t, env, args...)
			if got.code != cli.ExitUsage || !strings.Contains(got.err, path+tt.says) ||
				strings.Contains(got.out+got.err, password) {
				t.Errorf("%s: %v: got %+v, want code 64, the place %s, and no password", name, args, got, tt.says)
			}
		}
	}
	got := invoke(t, env, "--config", filepath.Join(t.TempDir(), "none.yaml"), "ls")
	if got.code != cli.ExitUsage || !strings.Contains(got.err, "none.yaml") {
		t.Errorf("no file: got %+v, want code 64", got)
	}
	for _, args := range [][]string{
		{"--config", "", "ls"},
		{"config"},
		{"config", "check"},
		{"config", "check", "a", "b"},
		{"config", "check", "--config", "a", "b"},
		{"config", "show"},
	} {
		if got := invoke(t, on("memory://"), args...); got.code != cli.ExitUsage ||
			!strings.Contains(got.err, "usage: ") {
			t.Errorf("%q: got %+v, want code 64 and the usage", args, got)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	path := configFile(t,
		twoStores("file:///nowhere", "redis://:${PW}@127.0.0.1:1")+"  - {match: \"*\", scenario: "+
			"transactional, backend: bank}\n")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	good := strings.Replace(string(text), "locks:",
		"  bank: {url: \"postgres://h/db\", ttl: 5s}\n  spare: {url: \"memory://\"}\nlocks:", 1)
	path = configFile(t, good)
	env := map[string]string{"PW": password}
	got := invoke(t, env, "config", "check", path)
	for _, says := range []string{
		"cron/*  is locked in files (file), leases of 30s\n", "general: ", "not promised",
		"Anything on another machine.",
		"*  is locked in bank (postgres-row), leases of 5s\n", "postgres.Tx(lease)", "yours to do",
	} {
		if got.code != 0 || !strings.Contains(got.out, says) {
			t.Errorf("got code %d and\n%s\nwant it to say %q", got.code, got.out, says)
		}
	}
	if want := "fencelock: warning: " + path + ":5:3: "; !strings.HasPrefix(got.err, want) ||
		strings.Contains(got.out+got.err, password) {
		t.Errorf("got %q on stderr, want %q… and no password", got.err, want)
	}
	lines := strings.Split(strings.TrimSpace(invoke(t, env, "--config", path, "config", "check", "--json").out), "\n")
	if len(lines) != 4 || !strings.Contains(lines[3], path+":5:3: ") {
		t.Fatalf("got %d lines of JSON, want three rules and a warning:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	r := decode[config.RuleJSON](t, lines[2])
	if r.Match != "*" || r.Scenario != "transactional" || r.Backend != "bank" ||
		r.Kind != "postgres-row" || r.TTL != 5000 || r.Reentrant || r.Line != 9 ||
		len(r.Gets) == 0 || len(r.Not) == 0 || r.Yours == "" {
		t.Errorf("got %+v", r)
	}
	keys := slices.Sorted(maps.Keys(decode[map[string]any](t, lines[0])))
	if strings.Join(keys, " ") != "backend gets kind line match not reentrant scenario ttl_ms yours" {
		t.Errorf("got keys %v", keys)
	}
}

func TestConfigCheckConnects(t *testing.T) {
	t.Parallel()
	files, server := fileStore(t), servers.Redis(t, servers.RedisOptions{}).URL()
	good := configFile(t, twoStores(files, server))
	if got := invoke(t, nil, "config", "check", "--connect", good); got.code != 0 ||
		!strings.HasSuffix(got.out, "files: file answers\nother: redis answers\n") {
		t.Errorf("got %+v, want both to answer", got)
	}
	down := configFile(t, twoStores(files, "redis://:"+password+"@127.0.0.1:1"))
	got := invoke(t, nil, "config", "check", "--connect", "--json", down)
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if got.code != cli.ExitUnavailable || len(lines) != 4 || strings.Contains(got.out+got.err, password) {
		t.Fatalf("got %+v, want code 69, four lines and no password", got)
	}
	type answers struct {
		Backend, Kind, Error string
		Answers              bool
	}
	up, bad := decode[answers](t, lines[2]), decode[answers](t, lines[3])
	if up != (answers{"files", "file", "", true}) ||
		bad.Backend != "other" || bad.Answers || bad.Error == "" {
		t.Errorf("got %+v and %+v, want files to answer and other not", up, bad)
	}
	odd := configFile(t, twoStores(files, "memory://?colour=red"))
	if got := invoke(t, nil, "config", "check", "--connect", odd); got.code != cli.ExitUsage ||
		!strings.Contains(got.out, `"colour"`) {
		t.Errorf("a key of a URL that is not known: got %+v, want code 64", got)
	}
	long := configFile(t, `backends:
  votes:
    url: redlock://127.0.0.1:1,127.0.0.2:1,127.0.0.3:1
    ttl: 2m
locks:
  - {match: "*", scenario: general, backend: votes}
`)
	if got := invoke(t, nil, "config", "check", "--connect", long); got.code != cli.ExitUsage ||
		!strings.Contains(got.out+got.err, "quarantine of 1m0s") {
		t.Errorf("a TTL that no lock could have: got %+v, want code 64", got)
	}
}
