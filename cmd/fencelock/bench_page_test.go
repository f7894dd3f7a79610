package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench"
	benchcmd "github.com/fencelock/fencelock/cmd/fencelock/internal/bench"
)

// pageRows are made up, with labels that want to be more than text.
func pageRows() []bench.Result {
	var rows []bench.Result
	v := func(f float64) *float64 { return &f }
	for i, label := range []string{
		"redis", `<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "a\nb\x1b]0;x\x07",
		"&lt;b&gt;", strings.Repeat("long-", 30), "\u202egnp.exe", "tab\x00\u0085",
	} {
		rate, ratio := 12_000.0/float64(i+1), 1.2/float64(i+1)
		p := bench.Promises{Fencing: "anchored", FIFO: i%2 == 0, Grace: true}
		for _, r := range []bench.Result{
			{
				Op: bench.Cycle, Row: "cycle/goroutines=1", Unit: "cycles/s",
				RawRate: v(rate / ratio), Ratio: v(ratio), RatioLow: v(ratio / 2),
				RatioHigh: v(ratio * 2),
			},
			{Op: bench.Held, Row: "held/leases=1000", Unit: "renewals/s", Partial: true},
		} {
			r.Label, r.Backend, r.Rate, r.P50, r.P99, r.Max, r.Promises = label, "redis", rate,
				80*float64(i+1), 900*float64(i+1), 5000, p
			rows = append(rows, r)
		}
	}
	rows[0].P50 = 0 // nothing was timed
	return rows
}

// What is measured and what a backend is called are never anything but text, and the page needs nothing from elsewhere.
func TestBenchPageIsText(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	must(t, benchcmd.WritePage(&out, pageRows(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
	page := out.String()
	for _, bad := range []string{"<script", "<img", "\x1b", "\x00", "\u202e", "href=", "@import", "url("} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{
		"&lt;script&gt;alert(1)", "2 January 2026, 03:04 UTC", "cycle/goroutines=1",
		"held/leases=1000", "anchored tokens", "(partial)", "raw store", "1.20",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if got, want := strings.Count(page, "<svg"), 4; got != want {
		t.Errorf("got %d charts, want %d", got, want)
	}
}

func TestBenchPageFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "bench.html")
	args := []string{"bench", "--duration", "5ms", "--rounds", "1", "--only", "cycle/goroutines=1", "--html"}
	if got := invoke(t, nil, append(args, path, "memory://")...); got.code != 0 ||
		!strings.Contains(got.out, "cycle/goroutines=1") {
		t.Fatalf("got %+v, want the table too", got)
	}
	page, err := os.ReadFile(path)
	must(t, err)
	if !strings.Contains(string(page), "cycle/goroutines=1") || !strings.HasSuffix(string(page), "</html>\n") {
		t.Errorf("got %d bytes, want a page", len(page))
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{append(args, dir, "memory://"), 64, "it is a directory"},
		{append(args, filepath.Join(dir, "no", "bench.html"), "memory://"), 64, "no such file"},
		{append(args, filepath.Join(dir, "other.html"), "redis://127.0.0.1:1"), 69, "127.0.0.1:1"},
	} {
		if got := invoke(t, nil, tt.args...); got.code != tt.code || !strings.Contains(got.err, tt.want) {
			t.Errorf("%q: got %+v, want code %d and %q", tt.args, got, tt.code, tt.want)
		}
	}
	left, err := os.ReadDir(dir)
	must(t, err)
	if len(left) != 1 {
		t.Errorf("got %v in the folder, want the one page", left)
	}
}
