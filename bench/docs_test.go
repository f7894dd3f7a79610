package bench_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of the limits into docs/performance.md")

const (
	beginCounts = "<!-- BEGIN counts: go test ./bench -run TestDocs -update -->\n"
	endCounts   = "<!-- END counts -->"
)

// The document's table of what operations cost is that of the limits.
func TestDocs(t *testing.T) {
	t.Parallel()
	const path = "../docs/performance.md"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(data), beginCounts)
	got, after, ended := strings.Cut(rest, endCounts)
	if !begun || !ended {
		t.Fatalf("%s has no %q and %q", path, beginCounts, endCounts)
	}
	want := countsTable()
	if *update {
		if err := os.WriteFile(path, []byte(before+beginCounts+want+endCounts+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s has\n%s\nwant\n%s\n(go test ./bench -run TestDocs -update)", path, got, want)
	}
}

func countsTable() string {
	var b strings.Builder
	b.WriteString("| backend | free lock and unlock: round trips | commands | allocations | " +
		"hand-over: round trips | commands | renewal of 100: round trips | commands " +
		"|\n|---|---|---|---|---|---|---|---|\n")
	show := func(v float64) string {
		if v == no {
			return "–"
		}
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	for _, s := range allStores {
		l := limits[s.name]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n",
			s.name, show(l["cycle"].writes), show(l["cycle"].commands), show(l["cycle"].allocs),
			show(l["handover"].writes), show(l["handover"].commands), show(l["renew"].writes),
			show(l["renew"].commands))
	}
	return b.String()
}
