package guarantees_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/fencelock/fencelock/tests/guarantees"
)

// results is what make faults has recorded.
const results = "results.json"

// documents have parts that are rendered from the table and the results.
var documents = []string{"../../docs/guarantees.md", "README.md"}

// part is what stands between <!-- TABLE name: … --> and <!-- /TABLE name -->.
var part = regexp.MustCompile(`(?s)(<!-- TABLE (\w+): [^\n]*-->\n)(.*?)(<!-- /TABLE (\w+) -->)`)

// The documents say what the table promises and what was found. UPDATE=1 writes them.
func TestDocs(t *testing.T) {
	found, err := Load(results)
	if err != nil {
		t.Fatal(err)
	}
	soak, err := LoadSoak("../../docs/soak.json")
	if err != nil {
		t.Fatal(err)
	}
	parts := Parts(found, soak)
	seen := map[string]bool{}
	for _, path := range documents {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got := part.ReplaceAllStringFunc(string(text), func(whole string) string {
			m := part.FindStringSubmatch(whole)
			if parts[m[2]] == "" || m[2] != m[5] {
				t.Fatalf("%s: there is no part %s that ends with %s", path, m[2], m[5])
			}
			seen[m[2]] = true
			return m[1] + parts[m[2]] + m[4]
		})
		if got == string(text) {
			continue
		}
		if os.Getenv("UPDATE") == "" {
			t.Errorf("%s is not what the table and %s say: UPDATE=1 go test "+
				"./tests/guarantees -run TestDocs", path, results)
		} else if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name := range parts {
		if !seen[name] {
			t.Errorf("no document has the part %s", name)
		}
	}
}

// A cell that nobody ran is no promise; one that broke is none either.
func TestRender(t *testing.T) {
	cell := func(table string) string {
		for line := range strings.Lines(table) {
			if strings.HasPrefix(line, "| server-killed |") {
				return strings.TrimSpace(strings.Split(line, "|")[4])
			}
		}
		return ""
	}
	for _, c := range []struct {
		promise, trials string
		f               Found
	}{
		{"not run", "not run", Found{}},
		{"T", "3, second holder in 2", Found{Trials: 3, Second: 2}},
		{"T", "3, second holder in 0", Found{Trials: 3}},
		{"**broken**", "**1 of 3 broken**", Found{Trials: 3, Second: 2, Broken: 1}},
	} {
		c.f.Fault, c.f.Backend = ServerKilled, "redis-none"
		found := []Found{c.f}
		if got := cell(RenderMatrix(found)); got != c.promise {
			t.Errorf("%+v: got %q, want %q", c.f, got, c.promise)
		}
		if got := cell(RenderTrials(found)); got != c.trials {
			t.Errorf("%+v: got %q, want %q", c.f, got, c.trials)
		}
	}
	if got := RenderMatrix([]Found{
		{Fault: ClientCut, Backend: "etcd", Trials: 20},
	}); !strings.Contains(got, "| L, R |") {
		t.Errorf("got\n%s\nwant a cell L, R", got)
	}
}

func TestAtMost(t *testing.T) {
	for _, c := range []struct {
		n, failed int
		want      string
	}{{0, 0, "–"}, {3, 0, "–"}, {20, 0, "1 of 6"}, {300, 0, "1 of 100"}, {300, 1, "–"}} {
		if got := AtMost(c.n, c.failed); got != c.want {
			t.Errorf("%d of %d: got %q, want %q", c.failed, c.n, got, c.want)
		}
	}
}

func TestTally(t *testing.T) {
	path := t.TempDir() + "/s.json"
	for _, backend := range []string{"etcd", "redlock", "etcd"} {
		if err := Tally(path, "1.0", backend, Figures{Locks: 2, Kills: 1, Unknown: 3}); err != nil {
			t.Fatal(err)
		}
	}
	soak, err := LoadSoak(path)
	if want := (Figures{Locks: 4, Kills: 2, Unknown: 6}); err != nil ||
		soak["1.0"]["etcd"] != want || len(soak["1.0"]) != 2 {
		t.Errorf("got %+v, %v, want %+v of etcd and redlock's", soak, err, want)
	}
	if got := RenderSoak(soak); !strings.Contains(got, "| 1.0 | etcd | 0.0 | 4 | 0 | 2 |") {
		t.Errorf("got\n%s", got)
	}
}

func TestRecord(t *testing.T) {
	path := t.TempDir() + "/r.json"
	first := Found{Fault: Latency, Backend: "etcd", Trials: 1}
	second := Found{Fault: ClientKilled, Backend: "etcd", Trials: 2}
	again := Found{Fault: Latency, Backend: "etcd", Trials: 3}
	for _, f := range []Found{first, second, again} {
		if err := Record(path, []Found{f}); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Load(path)
	if err != nil || len(found) != 2 || found[0] != second || found[1] != again {
		t.Errorf("got %+v, %v, want the last of each cell, as the table has them", found, err)
	}
}
