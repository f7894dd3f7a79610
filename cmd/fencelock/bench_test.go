package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/servers"
)

// benchRow is a line of bench --json.
type benchRow struct {
	Label, Backend, Op, Row string
	Goroutines              int
	Rate, P50, P99, Max     float64
	RawRate                 *float64 `json:"raw_rate"`
	Ratio                   *float64
	AllocsPerOp             *float64 `json:"allocs_per_op"`
	CommandsPerOp           *float64 `json:"commands_per_op"`
	Partial                 bool
	Promises                map[string]any
}

func benchRows(t *testing.T, out string) []benchRow {
	t.Helper()
	var rows []benchRow
	for line := range strings.Lines(out) {
		rows = append(rows, decode[benchRow](t, line))
	}
	return rows
}

func TestBench(t *testing.T) {
	t.Parallel()
	redis := servers.Redis(t, servers.RedisOptions{Password: "s3cret"}).URL()
	path := filepath.Join(t.TempDir(), "locks.yaml")
	text := "backends:\n  cache: {url: \"" + redis + "\"}\n  files: {url: \"" + fileStore(t) +
		"\"}\nlocks:\n  - {match: \"a*\", backend: cache, scenario: general}\n  - {match: " +
		"\"b*\", backend: files, scenario: general}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	short := []string{"bench", "--duration", "20ms", "--rounds", "2"}
	got := invoke(t, nil, append(short, "--config", path, "--only", "cycle/goroutines=1,handover", "--json")...)
	rows := benchRows(t, got.out)
	if got.code != 0 || len(rows) != 4 || rows[0].Label != "cache" || rows[0].Backend != "redis" ||
		rows[3].Label != "files" {
		t.Fatalf("got code %d, %q on stderr and %+v, want two rows of each backend", got.code, got.err, rows)
	}
	if strings.Contains(got.err+got.out, "s3cret") {
		t.Errorf("got the password in %+v", got)
	}
	for _, r := range rows {
		if r.Rate <= 0 || r.P50 > r.P99 || r.P99 > r.Max || r.Partial || r.Promises["fencing"] != "anchored" {
			t.Errorf("got %+v", r)
		}
		if r.RawRate == nil || math.Abs(*r.Ratio - r.Rate / *r.RawRate) > 1e-9**r.Ratio {
			t.Errorf("%s %s: got a rate of %v, raw %v and the ratio %v", r.Label, r.Row, r.Rate, r.RawRate, r.Ratio)
		}
	}
	if rows[0].CommandsPerOp == nil || *rows[0].CommandsPerOp < 2 || rows[0].AllocsPerOp == nil {
		t.Errorf("got %+v, want at least two commands, and allocations", rows[0])
	}
	if got := invoke(t, on(redis), "ls"); strings.Count(got.out, "\n") != 1 {
		t.Errorf("got %q, want no lock left in the store", got.out)
	}

	got = invoke(t, nil, append(short, "--config", path, "--only", "cycle/goroutines=1", "files")...)
	for _, want := range []string{"cycle/goroutines=1  cycles/s", "\nfiles promises: anchored tokens"} {
		if got.code != 0 || !strings.Contains(got.out, want) {
			t.Errorf("got %+v, want %q", got, want)
		}
	}
	if !strings.Contains(got.err, "files  cycle/goroutines=1  row 1 of 1, 2 rounds\n") {
		t.Errorf("got %q on stderr, want the progress", got.err)
	}
}

func TestBenchRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--only", "cycel", "memory://"}, 64, "contended/goroutines=16/section=200us"},
		{[]string{"--rounds", "0", "memory://"}, 64, "want more than 0"},
		{[]string{"--duration", "2h", "memory://"}, 64, "at most 1h"},
		{[]string{"--duration", "soon", "memory://"}, 64, "duration"},
		{[]string{"--local", "memory://"}, 64, "leave out the URL"},
		{[]string{"--url", "memory://", "memory://"}, 64, "given twice"},
		{[]string{"nothing://x"}, 64, "registered are etcd"},
		{[]string{"redis://127.0.0.1:1"}, 69, "127.0.0.1:1"},
	}
	for _, tt := range tests {
		got := invoke(t, nil, append([]string{"bench"}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.err, tt.want) || got.out != "" {
			t.Errorf("%q: got %+v, want code %d and %q", tt.args, got, tt.code, tt.want)
		}
	}
}

// The keys that the help promises are there.
func TestBenchKeys(t *testing.T) {
	t.Parallel()
	got := invoke(t, nil, "bench", "--duration", "1ms", "--rounds", "1", "--only",
		"cycle/goroutines=1", "--json", "memory://")
	var row map[string]json.RawMessage
	if err := json.Unmarshal([]byte(got.out), &row); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "bench", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"label", "backend", "op", "row", "goroutines", "leases", "section_us", "unit", "rate",
		"raw_rate", "ratio", "p50", "p99", "max", "raw_p50",
		"allocs_per_op", "cpu_us_per_op", "commands_per_op", "fairness", "rounds", "partial", "notes", "promises",
	} {
		if _, ok := row[key]; !ok {
			t.Errorf("no key %q in %s", key, got.out)
		}
		if !strings.Contains(string(doc), "`"+key+"`") && key != "op" && key != "backend" {
			t.Errorf("bench/README.md does not say what %q is", key)
		}
	}
}
