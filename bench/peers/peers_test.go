package peers

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports every fault that is made on purpose
	Child()
	mixedChild()
	os.Exit(m.Run())
}

// Every goal is measured once, briefly: whether it is reached says nothing then.
func TestSmoke(t *testing.T) {
	o := Options{Rounds: 1, Duration: 50 * time.Millisecond, Held: 100}
	if testing.Short() {
		o.Only = []string{"R1", "R6", "R8", "R9", "C1"}
	}
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range rep.Scores {
		if s.Rounds != 1 || !slices.Contains([]string{"ok", "90 %", "miss"}, s.State) {
			t.Errorf("%s %s: got %+v, want one round", s.ID, s.What, s)
		}
	}
	var out strings.Builder
	if err := rep.WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| R1 | 1 goroutine | fencelock redis | raw redis | rate | ≥ 0.85 |",
		"| redis hand-over | rueidislock |", "LinearBackoff(100ms)",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got no %q in\n%s", want, out.String())
		}
	}
}

// Every goal names what is measured.
func TestGoals(t *testing.T) {
	all := Experiments(1)
	for _, g := range Goals() {
		i := slices.IndexFunc(all, func(e Experiment) bool { return e.Name == g.Experiment })
		if i < 0 {
			t.Errorf("%s: no experiment %q", g.ID, g.Experiment)
			continue
		}
		if g.Base != "" && !slices.ContainsFunc(all, func(e Experiment) bool { return e.Name == g.Base }) {
			t.Errorf("%s: no experiment %q", g.ID, g.Base)
		}
		for _, name := range []string{g.Ours, g.Theirs} {
			if name != "" && !slices.Contains(all[i].Libraries, name) {
				t.Errorf("%s: %q is not in the experiment %q", g.ID, name, g.Experiment)
			}
		}
	}
	for _, e := range all {
		for _, name := range e.Libraries {
			if _, err := find(name); err != nil {
				t.Errorf("%s: %v", e.Name, err)
			}
		}
	}
}

func TestState(t *testing.T) {
	for _, tt := range []struct {
		g      Goal
		figure float64
		want   string
	}{
		{Goal{Least: 2}, 2, "ok"},
		{Goal{Least: 2}, 1.85, "90 %"},
		{Goal{Least: 2}, 1.7, "miss"},
		{Goal{Most: 0.4}, 0.4, "ok"},
		{Goal{Most: 0.4}, 0.44, "90 %"},
		{Goal{Most: 0.4}, 0.5, "miss"},
		{Goal{Metric: Margin}, 1, "ok"},
		{Goal{Metric: Margin}, -1, "miss"},
	} {
		if got := tt.g.State(tt.figure); got != tt.want {
			t.Errorf("%+v: %v is %q, want %q", tt.g, tt.figure, got, tt.want)
		}
	}
}

// shown is what the document has between its marks.
func shown(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("runs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _, err := between(string(doc))
	if err != nil {
		t.Fatal(err)
	}
	return block
}

// The document has the goals of the code, each with what was measured or why it was not, as the program writes them.
func TestDocument(t *testing.T) {
	lines := slices.Collect(strings.Lines(shown(t)))
	for _, g := range Goals() {
		var b strings.Builder
		row(&b, Score{Goal: g}.cells()[:6]...)
		want := strings.TrimSuffix(b.String(), "|\n")
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("no line begins with %q", want)
		}
	}
	for _, l := range Libraries() {
		var b strings.Builder
		row(&b, l.Name, l.Settings, l.Source)
		if !slices.Contains(lines, b.String()) {
			t.Errorf("no line %q", b.String())
		}
	}
}

// A document shows one run, and what others have found of the same goals; they are held to the goals of
// today, whatever those of their day were.
func TestRead(t *testing.T) {
	g := Goals()[0]
	var paths []string
	for _, ours := range []float64{30, 20, 10} {
		rep := Report{Rounds: 1, Duration: time.Second, Measured: []Measured{
			{g.Experiment, g.Ours, map[Metric][]float64{g.Metric: {ours}}},
			{g.Experiment, g.Theirs, map[Metric][]float64{g.Metric: {10}}},
		}}
		old := g
		old.Least = 1000
		rep.Scores = []Score{rep.score(old, nil)}
		b, err := json.Marshal(rep)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, fmt.Sprintf("%s/%v.json", t.TempDir(), ours))
		if err := os.WriteFile(paths[len(paths)-1], b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	doc := tables(t, paths...)
	var b strings.Builder
	row(&b, append(Score{Goal: g}.cells()[:6], "3", "3 to 3", "ok", "2, 1")...)
	if want := b.String(); !strings.Contains(doc, want) || !strings.Contains(doc, "| state | other runs |") {
		t.Errorf("got\n%s\nwant in it %s", doc, want)
	}
	if err := os.WriteFile(paths[1], []byte("goal  what"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(paths...); err == nil || !strings.Contains(err.Error(), paths[1]) {
		t.Errorf("a file that is no report: got %v, want an error that names it", err)
	}
}

// tables are those of the runs in some files.
func tables(t *testing.T, paths ...string) string {
	t.Helper()
	rep, err := Read(paths...)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := rep.WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The runs that were kept are what the document shows.
func TestRuns(t *testing.T) {
	paths, err := filepath.Glob("runs/*.json")
	slices.Reverse(paths) // the newest first
	if err != nil || len(paths) == 0 {
		t.Fatalf("no runs: %v", err)
	}
	scores, _, _ := strings.Cut(tables(t, paths...), "\nVersions:") // which a test's binary does not know
	if !strings.HasPrefix(shown(t), scores) {
		t.Error("the document does not show the runs: go run ./cmd/targets -update runs/README.md $(ls -r runs/*.json)")
	}
}

// Update replaces what stands between the marks, and nothing else.
func TestUpdate(t *testing.T) {
	path := t.TempDir() + "/doc.md"
	if err := os.WriteFile(path, []byte("a\n"+beginMark+"stale\n"+endMark+"\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rep := Report{Rounds: 3, Duration: time.Second}
	rep.Measured = []Measured{
		{"e", "ours", map[Metric][]float64{Rate: {30, 10, 20}}},
		{"e", "theirs", map[Metric][]float64{Rate: {10, 10, 10}}},
	}
	rep.Scores = []Score{
		rep.score(Goal{"X1", "what", "e", Rate, "ours", "theirs", 2.2, 0, ""}, nil),
		rep.score(Goal{"X2", "what", "none", Rate, "ours", "theirs", 2, 0, ""}, nil),
	}
	if err := rep.Update(path); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a\n" + beginMark + "3 rounds of 1s", endMark + "\nb\n",
		"| X1 | what | ours | theirs | rate | ≥ 2.2 | 2 | 1 to 3 | 90 % |\n",
		"| X2 | what | ours | theirs | rate | ≥ 2 | - | - | not measured |\n",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("got no %q in\n%s", want, got)
		}
	}
	if strings.Contains(string(got), "stale") {
		t.Errorf("got\n%s\nwith the old tables", got)
	}
	if err := rep.Update("go.mod"); err == nil {
		t.Error("a file without marks was written")
	}
}
