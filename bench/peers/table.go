package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// columns are those of [Score.cells].
var columns = []string{
	"goal", "what", "ours", "against", "of", "at", "measured", "spread", "state",
}

// WriteScores writes the goals for a terminal.
func (r Report) WriteScores(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(columns, "\t"))
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
	of := string(s.Metric)
	return []string{s.ID, s.What, s.Ours, theirs, of, s.Bound(), measured, spread, s.State}
}

// WriteMarkdown writes the goals, what was measured, and the settings of the libraries as the
// tables of a document.
func (r Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	if len(r.Measured) > 0 {
		fmt.Fprintf(&b, "%d rounds of %v each; a ratio is the median of the rounds', "+
			"the spread the least and the greatest. %d leases were held.\n\n",
			r.Rounds, r.Duration, r.Held)
	} else {
		b.WriteString("Nothing has been measured for this table yet: these are the goals.\n\n")
	}
	head := slices.Clone(columns)
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
	metrics := []Metric{
		Rate, P50, P99, Longest, Fair, Requests, Allocs, CPU, Bytes, Goroutines, Stuck, Slower,
		Margin,
	}
	b.WriteString("\nMedians of the rounds " +
		"(`rate` a second, `p50`, `p99`, `max` and `margin` in µs, " +
		"`requests` a cycle, a grant or a second of holding):\n\n")
	head = []string{"experiment", "library"}
	for _, m := range metrics {
		head = append(head, string(m))
	}
	row(&b, head...)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
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

// Read returns the report in the first of some files, which were written as JSON, with the others
// as its other runs. What was measured is held against the goals of today.
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
		r.Scores = nil // what was measured stays, the goals have changed since
		for _, g := range Goals() {
			r.Scores = append(r.Scores, r.score(g, nil))
		}
		for _, l := range Libraries() { // those that were not there yet
			same := func(old Library) bool { return old.Name == l.Name }
			if !slices.ContainsFunc(r.Libraries, same) {
				r.Libraries = append(r.Libraries, l)
			}
		}
		all = append(all, r)
	}
	all[0].Others = all[1:]
	return all[0], nil
}

// The marks of a document between which the tables stand.
const (
	beginMark = "<!-- BEGIN peers: cd bench/peers && " +
		"go run ./cmd/targets -update runs/README.md -->\n"
	endMark = "<!-- END peers -->"
)

// between returns what stands before, between and after the marks.
func between(doc string) (before, block, after string, err error) {
	before, rest, ok := strings.Cut(doc, beginMark)
	block, after, ended := strings.Cut(rest, endMark)
	if !ok || !ended {
		begin := strings.TrimSpace(beginMark)
		return "", "", "", fmt.Errorf("the document has no %q with %q after it", begin, endMark)
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
	text := []byte(before + tables.String() + after)
	return os.WriteFile(path, text, 0o644) //nolint:gosec // a document
}

func row(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		b.WriteString("| " + strings.NewReplacer("|", `\|`, "\n", " ").Replace(c) + " ")
	}
	b.WriteString("|\n")
}

// big shows large numbers without digits that mean nothing.
func big(v float64) string {
	if v < 100 {
		return short(v)
	}
	return measure.Figure(v)
}

// compared are the modules whose versions are shown.
var compared = []string{
	"github.com/go-redsync/redsync/v4", "github.com/bsm/redislock", "github.com/redis/rueidis",
	"github.com/redis/go-redis/v9", "go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk",
	"cirello.io/pglock", "github.com/jackc/pgx/v5",
}

// versions are those that this program was built with.
func versions() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var all []string
	for _, path := range compared {
		for _, d := range info.Deps {
			if d.Path == path {
				all = append(all, path+" "+d.Version)
			}
		}
	}
	return strings.Join(all, ", ")
}
