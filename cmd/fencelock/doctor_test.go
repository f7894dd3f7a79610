package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/servers"
)

// found is a line of doctor --json: a finding, or with sums a backend's last line.
type found struct {
	ID, Severity, Where, Setting, Value, Why, Mend string

	Backend, Name              string
	Servers                    []string
	Broken, Risk, Unseen, Note int
	Sound                      bool
}

func findings(t *testing.T, out string) (all []found, sums []found) {
	t.Helper()
	for line := range strings.Lines(out) {
		f := decode[found](t, line)
		if f.ID != "" {
			all = append(all, f)
		} else {
			sums = append(sums, f)
		}
	}
	return all, sums
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	sound := servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}}).URL()
	weak := servers.Redis(t, servers.RedisOptions{
		Password: "s3cret", Config: []string{"appendonly yes", "appendfsync always", "timeout 60"},
	})
	ill := servers.Redis(t, servers.RedisOptions{Config: []string{"maxmemory 100mb", "maxmemory-policy allkeys-lru"}})

	got := invoke(t, nil, "doctor", sound)
	if got.code != 0 || !strings.HasSuffix(got.out, "\nsound\n") || got.err != "" {
		t.Errorf("sound: got %+v", got)
	}
	got = invoke(t, on(weak.URL()), "doctor")
	if got.code != 0 || !strings.HasSuffix(got.out, "\nsound (1 note)\n") || strings.Contains(got.out, "s3cret") {
		t.Errorf("a note: got %+v", got)
	}
	got = invoke(t, nil, "doctor", "--fail-on", "note", weak.URL())
	if got.code != 1 || !strings.HasSuffix(got.out, "\nnot sound: 1 note\n") {
		t.Errorf("--fail-on note: got %+v, want code 1 and not sound", got)
	}
	got = invoke(t, nil, "doctor", "--fail-on", "note", "--json", weak.URL())
	if _, sums := findings(t, got.out); len(sums) != 1 || sums[0].Sound {
		t.Errorf("--fail-on note --json: got %+v, want not sound", sums)
	}
	got = invoke(t, nil, "--url", ill.URL(), "doctor")
	for _, want := range []string{
		"redis at " + ill.Addr() + "\n",
		"\nBROKEN  redis-eviction at " + ill.Addr() + "\n  found  maxmemory-policy: allkeys-lru",
		"\n  mend   redis-cli -h 127.0.0.1 -p ", "\nRISK    redis-persistence",
		"\nnot sound: 1 broken promise, 1 risk\n",
	} {
		if got.code != 1 || !strings.Contains(got.out, want) {
			t.Errorf("ill: got code %d, %q, want code 1 and %q", got.code, got.out, want)
		}
	}
	got = invoke(t, on(ill.URL()), "doctor", "--json")
	all, sums := findings(t, got.out)
	if got.code != 1 || len(all) != 2 || all[0].ID != "redis-eviction" ||
		all[0].Severity != "broken" || all[0].Backend != "redis" || all[0].Why == "" ||
		!strings.HasPrefix(all[0].Mend, "redis-cli") {
		t.Errorf("--json: got %+v", got)
	}
	if len(sums) != 1 || sums[0].Sound || sums[0].Broken != 1 || sums[0].Risk != 1 || len(sums[0].Servers) != 1 {
		t.Errorf("--json: sums %+v", sums)
	}
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"--fail-on", "nonsense", sound}, 64},
		{[]string{"redis://h?nope=1"}, 64},
		{[]string{"a", "b"}, 64},
		{[]string{strings.Replace(weak.URL(), "s3cret", "s3cr3t", 1)}, 64},
		{[]string{"redis://:s3cret@127.0.0.1:1"}, 69},
		{[]string{"--json", "etcd://u:s3cret@127.0.0.1:1"}, 69},
	} {
		got := invoke(t, nil, append([]string{"doctor"}, c.args...)...)
		if got.code != c.code || strings.Contains(got.out+got.err, "s3cr") {
			t.Errorf("doctor %q: got %+v, want code %d and no secret", c.args, got, c.code)
		}
	}
}

func TestDoctorOfAConfiguration(t *testing.T) {
	t.Parallel()
	sound := servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}}).URL()
	path := filepath.Join(t.TempDir(), "locks.yaml")
	write := func(second string) {
		text := "backends:\n  one: {url: \"" + sound + "\"}\n  two: {url: \"" + second +
			"\"}\n  moving: {migrate: {from: one, to: two, phase: from}}\n" +
			"locks:\n  - {match: \"*\", scenario: deduplication, backend: moving}\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fileStore(t))
	got := invoke(t, nil, "--config", path, "doctor", "--json")
	if _, sums := findings(t, got.out); got.code != 0 || len(sums) != 2 || sums[0].Name != "one" ||
		sums[1].Name != "two" || sums[1].Backend != "file" {
		t.Errorf("all: got %+v", got)
	}
	got = invoke(t, nil, "--config", path, "doctor", "two")
	if got.code != 0 || !strings.HasPrefix(got.out, "two: file at /") || strings.Contains(got.out, "redis") {
		t.Errorf("one: got %+v", got)
	}
	write("redis://:s3cret@127.0.0.1:1")
	got = invoke(t, nil, "--config", path, "doctor")
	if got.code != 69 || !strings.Contains(got.out, "one: redis at") ||
		!strings.Contains(got.err, "backend two: ") || strings.Contains(got.err, "s3cret") {
		t.Errorf("one is down: got %+v", got)
	}
	long := configFile(t, "backends:\n  votes: {url: \"redlock://127.0.0.1:1,127.0.0.2:1,127.0.0.3:1\", ttl: 2m}\n"+
		"locks:\n  - {match: \"*\", scenario: deduplication, backend: votes}\n")
	got = invoke(t, nil, "--config", long, "doctor")
	if got.code != 64 || !strings.Contains(got.err, "quarantine of 1m0s") {
		t.Errorf("the file's ttl: got %+v, want it judged", got)
	}
}

func TestDoctorList(t *testing.T) {
	t.Parallel()
	got := invoke(t, nil, "doctor", "--list")
	if got.code != 0 || strings.Count(got.out, "\n  mend ") < 60 ||
		!strings.Contains(got.out, "BROKEN  postgres-pooler: ") {
		t.Errorf("got %+v", got)
	}
	got = invoke(t, nil, "doctor", "--list", "--json")
	if all, _ := findings(t, got.out); len(all) < 60 || all[0].ID != "clock-differs" {
		t.Errorf("--json: %d kinds", len(all))
	}
}
