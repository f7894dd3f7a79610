package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"text/tabwriter"
)

// WriteScores writes the goals for a terminal.
func (r Report) WriteScores(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "goal\twhat\tours\tagainst\tof\tat\tmeasured\tspread\tstate")
	for _, s := range r.Scores {
		fmt.Fprintln(t, strings.Join(s.cells(), "\t"))
	}
	return t.Flush()
}

func (s Score) cells() []string {
	measured, spread := "-", "-"
	if s.Rounds > 0 {
		measured, spread = short(s.Figure), short(s.Low)+" to "+short(s.High)
	}
	theirs := s.Theirs
	if theirs == "" {
		theirs = "itself"
	}
	return []string{s.ID, s.What, s.Ours, theirs, string(s.Metric), s.Bound(), measured, spread, s.State}
}

// WriteMarkdown writes the goals, what was measured, and the settings of the libraries as the tables of a document.
func (r Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	if len(r.Measured) > 0 {
		fmt.Fprintf(&b, "%d rounds of %v each; a ratio is the median of the rounds', the spread the least and the greatest. %d leases were held.\n\n", r.Rounds, r.Duration, r.Held)
	} else {
		b.WriteString("Nothing has been measured for this table yet: these are the goals.\n\n")
	}
	head := []string{"goal", "what", "ours", "against", "of", "at", "measured", "spread", "state"}
	if len(r.Others) > 0 {
		head = append(head, "other runs")
	}
	row(&b, head...)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, s := range r.Scores {
		cells := s.cells()
		if len(r.Others) > 0 {
			cells = append(cells, strings.Join(r.others(s.Goal), ", "))
		}
		row(&b, cells...)
	}
	metrics := []Metric{Rate, P50, P99, Fair, Requests, Allocs, CPU, Bytes, Goroutines, Stuck, Slower, Margin}
	b.WriteString("\nMedians of the rounds (`rate` a second, `p50`, `p99` and `margin` in µs, `requests` a cycle, a grant or a second of holding):\n\n| experiment | library |")
	for _, m := range metrics {
		b.WriteString(" " + string(m) + " |")
	}
	b.WriteString("\n" + strings.Repeat("|---", len(metrics)+2) + "|\n")
	for _, m := range r.Measured {
		cells := []string{m.Experiment, m.Library}
		for _, of := range metrics {
			cell := ""
			if v, ok := m.Median(of); ok && (v != 0 || of != Requests && of != Stuck) {
				cell = big(v)
			}
			cells = append(cells, cell)
		}
		row(&b, cells...)
	}
	b.WriteString("\n| library | settings | where they are recommended |\n|---|---|---|\n")
	for _, l := range r.Libraries {
		row(&b, l.Name, l.Settings, l.Source)
	}
	if v := versions(); v != "" {
		b.WriteString("\nVersions: " + v + ".\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// others are the figures of a goal in the other runs.
func (r Report) others(g Goal) []string {
	var figures []string
	for _, other := range r.Others {
		for _, s := range other.Scores {
			if s.Goal == g && s.Rounds > 0 {
				figures = append(figures, short(s.Figure))
			}
		}
	}
	return figures
}

// Read returns the report in the first of some files, which were written as JSON, with the others as its other runs.
func Read(paths ...string) (Report, error) {
	if len(paths) == 0 {
		return Report{}, errors.New("no files of reports")
	}
	var all []Report
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return Report{}, err
		}
		var r Report
		if err := json.Unmarshal(b, &r); err != nil {
			return Report{}, fmt.Errorf("%s: want what -json has written: %w", path, err)
		}
		all = append(all, r)
	}
	all[0].Others = all[1:]
	return all[0], nil
}

// The marks of a document between which the tables stand.
const (
	beginMark = "<!-- BEGIN peers: cd bench/peers && go run ./cmd/targets -update ../../docs/performance.md -->\n"
	endMark   = "<!-- END peers -->"
)

// between returns what stands before, between and after the marks.
func between(doc string) (before, block, after string, err error) {
	before, rest, ok := strings.Cut(doc, beginMark)
	block, after, ended := strings.Cut(rest, endMark)
	if !ok || !ended {
		return "", "", "", fmt.Errorf("the document has no %q with %q after it", strings.TrimSpace(beginMark), endMark)
	}
	return before + beginMark, block, endMark + after, nil
}

// Update writes the tables into a document.
func (r Report) Update(path string) error {
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, _, after, err := between(string(doc))
	if err != nil {
		return err
	}
	var tables strings.Builder
	if err := r.WriteMarkdown(&tables); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(before+tables.String()+after), 0o644) //nolint:gosec // a document
}

func row(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		b.WriteString("| " + strings.NewReplacer("|", `\|`, "\n", " ").Replace(c) + " ")
	}
	b.WriteString("|\n")
}

// big shows large numbers without digits that mean nothing.
func big(v float64) string {
	switch {
	case v >= 1e7:
		return fmt.Sprintf("%.0fM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.1fk", v/1e3)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	}
	return short(v)
}

// versions are those of the libraries that this program was built with.
func versions() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var all []string
	for _, path := range []string{
		"github.com/go-redsync/redsync/v4", "github.com/bsm/redislock", "github.com/redis/rueidis", "github.com/redis/go-redis/v9",
		"go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk", "cirello.io/pglock", "github.com/jackc/pgx/v5",
	} {
		for _, d := range info.Deps {
			if d.Path == path {
				all = append(all, path+" "+d.Version)
			}
		}
	}
	return strings.Join(all, ", ")
}
