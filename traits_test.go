package fencelock_test

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

// The table of the promises. They are fixed from below, so that no suite is
// passed by promising less. A cell "may" leaves it to the backend.
const promises = `
	backend        | fencing  | FIFO | clock-free | survives a node | transactional | grace
	memory         | anchored | yes  | no         | no              | no            | yes
	file           | anchored | may  | no         | no              | no            | yes
	redis          | anchored | yes  | no         | no              | no            | yes
	redlock        | anchored | may  | no         | yes             | no            | yes
	etcd           | durable  | yes  | yes        | yes             | no            | yes
	zookeeper      | durable  | yes  | yes        | yes             | no            | yes
	postgres-row   | durable  | yes  | yes        | no              | yes           | yes
	postgres-advisory | durable  | yes  | yes     | no              | yes           | yes
	postgres-lease | durable  | yes  | no         | no              | no            | yes`

func TestCatalogKeepsThePromises(t *testing.T) {
	want := map[string][]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(promises), "\n") {
		var cells []string
		for cell := range strings.SplitSeq(line, "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		want[cells[0]] = cells[1:]
	}
	yes := map[bool][]string{true: {"yes", "may"}, false: {"no", "may"}}
	seen := map[string]bool{}
	for _, e := range backend.Catalog() {
		tr := e.Traits
		seen[tr.Name] = true
		row := want[tr.Name]
		if row == nil {
			t.Errorf("%s: the table has no row", tr.Name)
			continue
		}
		if got := tr.Fencing.String(); got != row[0] {
			t.Errorf("%s: fencing: got %s, want %s", tr.Name, got, row[0])
		}
		for i, got := range []bool{tr.FIFO, tr.ClockFree, tr.SurvivesNode, tr.Transactional, tr.Grace} {
			if !slices.Contains(yes[got], row[i+1]) {
				t.Errorf("%s: %s: got %v, want %s", tr.Name, want["backend"][i+1], got, row[i+1])
			}
		}
		if tr.DeadWaiter < 0 || tr.DeadWaiter.Seconds() > 5 || tr.MinTTL <= 0 || tr.Resolution <= 0 || tr.Revoked <= 0 {
			t.Errorf("%s: got %+v, want a dead waiter of at most 5 s, "+
				"and a shortest TTL, resolution and Revoked", tr.Name, tr)
		}
	}
	for _, name := range []string{"memory", "file", "redis"} {
		if !seen[name] {
			t.Errorf("%s is not in the catalog", name)
		}
	}
}

func TestRevokedOfTheTable(t *testing.T) {
	want := map[string]float64{"memory": 0.1, "redis": 1, "etcd": 1, "zookeeper": 1, "postgres-row": 1}
	for _, e := range backend.Catalog() {
		if most, ok := want[e.Traits.Name]; ok && e.Traits.Revoked.Seconds() > most {
			t.Errorf("%s: a holder learns of Break within %v, want %v s", e.Traits.Name, e.Traits.Revoked, most)
		}
	}
}

// The Traits of a driver are the catalog's: it calls backend.TraitsOf, names
// its entry, and builds no Traits of its own.
func TestDriversTakeTheirTraitsFromTheCatalog(t *testing.T) {
	for _, e := range backend.Catalog() {
		in := look(t, e)
		if in.calls["backend.TraitsOf"] == 0 || !in.strings[e.Traits.Name] || in.built["backend.Traits"] > 0 {
			t.Errorf("%s: got %d calls of TraitsOf and %d Traits built, want the catalog's %q",
				e.Import, in.calls["backend.TraitsOf"], in.built["backend.Traits"], e.Traits.Name)
		}
	}
	d := newFake(t).store
	if got, want := d.Traits(), backend.TraitsOf("memory"); got != want {
		t.Errorf("memory: got %+v, want the catalog's %+v", got, want)
	}
}

// Each scheme of the catalog is registered by the package that the catalog names.
func TestSchemesAreWhereTheCatalogSays(t *testing.T) {
	for _, e := range backend.Catalog() {
		in := look(t, e)
		for _, s := range e.Schemes {
			if in.calls["backend.Register"] == 0 || !in.strings[s] {
				t.Errorf("%s does not register the scheme %q", e.Import, s)
			}
		}
	}
}

// seen is what a package's source has, by qualified name and by value.
type seen struct {
	calls, built map[string]int
	strings      map[string]bool
}

func look(t *testing.T, e backend.Entry) seen {
	t.Helper()
	in := seen{map[string]int{}, map[string]int{}, map[string]bool{}}
	for _, f := range sources(t, strings.TrimPrefix(e.Import, module+"/")) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				in.calls[qualified(n.Fun)]++
			case *ast.CompositeLit:
				in.built[qualified(n.Type)]++
			case *ast.BasicLit:
				in.strings[text(n)] = true
			}
			return true
		})
	}
	return in
}

// qualified returns the qualified name of an expression such as backend.Traits.
func qualified(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, _ := s.X.(*ast.Ident)
	if x == nil {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

// text returns the value of a string literal.
func text(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(l.Value)
	return s
}
