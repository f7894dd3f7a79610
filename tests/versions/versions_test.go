package main

import (
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The README shows what was recorded, of every version that the script knows. UPDATE=1 writes it.
func TestReadme(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash, which knows the versions")
	}
	list, err := exec.Command(bash, "../../scripts/versions.sh", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	cells := strings.Fields(string(list))
	all, err := load("results.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	part := regexp.MustCompile(`(?s)(<!-- TABLE versions: [^\n]*-->\n).*(<!-- /TABLE -->)`)
	if !part.Match(text) {
		t.Fatal("README.md has no place for the table")
	}
	want := part.ReplaceAllString(string(text), "${1}"+table(cells, all)+"${2}")
	if want != string(text) {
		if os.Getenv("UPDATE") == "" {
			t.Error("README.md is not what results.json and scripts/versions.sh say: UPDATE=1 go test ./tests/versions")
		} else if err := os.WriteFile("README.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// No rule was left out of what was recorded.
func TestEveryRule(t *testing.T) {
	all, err := load("results.json")
	if err != nil || len(all) == 0 {
		t.Fatalf("got %d results, %v", len(all), err)
	}
	for _, r := range all {
		if r.Test == tooOld {
			if r.Refused == "" || r.Version == "" {
				t.Errorf("%s: got %+v, want what was refused, and why", r.Cell, r)
			}
			continue
		}
		if got := r.Kept + r.Excluded + len(r.Broken); got != r.Rules || got == 0 {
			t.Errorf("%s, %s: got %d rules, want all %d of then: run make versions ONLY=%s",
				r.Cell, r.Test, got, r.Rules, r.Cell)
		}
		if names[r.Test] == "" || r.Version == "" {
			t.Errorf("%s: got a result without a name or a version: %+v", r.Cell, r)
		}
	}
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name, events string
		want         []Result
		log          string
	}{
		{"two drivers", `{"Action":"start"}
{"Action":"output","Test":"TestRedis","Output":"    redis_test.go:27: servers: redis 8.0.2 local 127.0.0.1:1\n"}
{"Action":"pass","Test":"TestRedis/rules/A1"}
{"Action":"skip","Test":"TestRedis/alone/K1"}
{"Action":"pass","Test":"TestRedis/rules"}
{"Action":"pass","Test":"TestRedis"}
{"Action":"output","Test":"TestRedisCluster","Output":"servers: redis 8.0.2 local ×3 [127.0.0.1:2]\n"}
{"Action":"output","Test":"TestRedisCluster/solo/J1","Output":"two holders\n"}
{"Action":"fail","Test":"TestRedisCluster/solo/J1"}
{"Action":"fail","Test":"TestRedisCluster"}
{"Action":"fail"}`, []Result{
			{Test: "TestRedis", Version: "8.0.2", Kept: 1, Excluded: 1},
			{Test: "TestRedisCluster", Version: "8.0.2", Broken: []string{"J1"}},
		}, "two holders"},
		{
			"no server", `{"Action":"output","Test":"TestEtcd","Output":"no such file\n"}
{"Action":"fail","Test":"TestEtcd"}`,
			[]Result{{Test: "TestEtcd", Broken: []string{"it did not run to its end"}}},
			"no such file",
		},
		{
			"too old", `{"Action":"output","Test":"TestTooOld","Output":"x.go:1: servers: postgres 13.16 local 1\n"}
{"Action":"output","Test":"TestTooOld","Output":"x.go:2: refused: open: invalid: the server is PostgreSQL 13\n"}
{"Action":"pass","Test":"TestTooOld"}`,
			[]Result{{Test: "TestTooOld", Version: "13.16", Refused: "the server is PostgreSQL 13"}},
			"",
		},
	} {
		got, log, err := read(strings.NewReader(c.events))
		if err != nil || !reflect.DeepEqual(got, c.want) || strings.Contains(log, c.log) != (c.log != "" || log == "") {
			t.Errorf("%s: got %+v, log %q, %v, want %+v, log %q", c.name, got, log, err, c.want, c.log)
		}
	}
}

func TestPut(t *testing.T) {
	path := t.TempDir() + "/r.json"
	first, again := Result{Cell: "a", Test: "TestRedis", Kept: 1}, Result{Cell: "a", Test: "TestRedis", Kept: 2}
	other := Result{Cell: "b", Test: tooOld, Version: "1", Refused: "too old"}
	for _, r := range []Result{first, other, again} {
		if err := put(path, r.Cell, []Result{r}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := load(path)
	if want := []Result{other, again}; err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("got %+v, %v, want %+v", all, err, want)
	}
	got := table([]string{"a", "b", "c"}, all)
	for _, line := range []string{
		"| a |  | redis | 0 | 2 | 0 | 0 |  |", "| b | 1 | refused: too old | | | | |  |", "| c | | not run |",
	} {
		if !strings.Contains(got, line) {
			t.Errorf("got\n%s\nwant the line %q", got, line)
		}
	}
}
