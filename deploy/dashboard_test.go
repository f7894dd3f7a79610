package deploy_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.UID != "fencelock" || d.Title == "" || d.SchemaVersion < 30 {
		t.Errorf("got uid %q, title %q, schema %d", d.UID, d.Title, d.SchemaVersion)
	}
	variables := map[string]bool{"__rate_interval": true, "__range": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	reference := regexp.MustCompile(`\$\{?(\w+)`)
	ids := map[int]bool{}
	var cells [200][24]string
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%q: the id %d is another panel's too", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%q has no query", p.Title)
		}
		if g := p.GridPos; g.X < 0 || g.W < 1 || g.X+g.W > 24 || g.H < 1 {
			t.Fatalf("%q: its place %+v is not on the grid", p.Title, g)
		}
		for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				if other := cells[y][x]; other != "" {
					t.Fatalf("%q lies on %q", p.Title, other)
				}
				cells[y][x] = p.Title
			}
		}
		for _, target := range p.Targets {
			for _, m := range reference.FindAllStringSubmatch(target.Expr, -1) {
				if !variables[m[1]] {
					t.Errorf("%q: there is no variable %q", p.Title, m[1])
				}
			}
		}
	}
}

// Every metric has a row in the document, and the document names none that is not there.
func TestEveryMetricIsExplained(t *testing.T) {
	raw, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	doc, all := string(raw), exported(t)
	for name := range all {
		if !strings.Contains(doc, "\n| `"+name+"`") {
			t.Errorf("docs/operating.md has no row for %s", name)
		}
	}
	for _, m := range selector.FindAllStringSubmatch(doc, -1) {
		if _, ok := base(m[1], all); !ok && all[m[1]] == nil {
			t.Errorf("docs/operating.md speaks of %s, which is not exported", m[1])
		}
	}
}
