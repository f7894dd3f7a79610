package fencelock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

const module = "github.com/fencelock/fencelock"

// drivers are the packages that speak to a store, there already or to come.
var drivers = []string{"backend/memory", "backend/file", "redis", "redlock", "etcd", "zookeeper", "postgres"}

// A rule forbids imports. A package is named by its folder, the root by "."; a
// pattern "x/..." is x and what is below it, "drivers" every package that speaks to
// a store, "outside" whatever is neither the standard library's nor this module's, "module"
// whatever is this module's, "inside" what is internal but not for tests. A driver's own subpackages are the driver.
type rule struct {
	from      string
	forbidden string
	except    []string
	why       string
}

var rules = []rule{
	{
		".", "outside", nil,
		"a program that locks must not get anybody's client library with it: the root imports " +
			"the standard library and ./backend only",
	},
	{
		".", "module",
		[]string{"backend", "internal/core", "internal/meant"},
		"the engine works with any driver: the root imports the standard " +
			"library, ./backend, what calls drivers for it and what an operator's program tells it",
	},
	{"backend", "outside", nil, "the contract is what everybody imports, so it imports the standard library only"},
	{"backend", "module", nil, "the contract is the centre: imports point at it, never away from it"},
	{
		"drivers", ".", nil,
		"a driver does not know the engine: it would make a cycle, and a driver that looks at " +
			"leases does the engine's work a second time",
	},
	{
		"drivers", "drivers", nil,
		"a driver never imports another driver: each stands alone, " +
			"so that a program pays for what it uses",
	},
	{
		"drivers", "module",
		[]string{"backend", "fence", "fence/...", "internal/..."},
		"a driver is made from the contract alone; what is built around drivers is outward of them",
	},
	{"backend/memory", "outside", nil, "the memory backend costs nothing"},
	{
		"backend/memory", "module",
		[]string{"backend"},
		"the memory backend is made from the contract alone: " +
			"it is the first driver that a newcomer reads",
	},
	{"backend/record", "outside", nil, "the recipe costs nothing"},
	{"backend/record", "module", []string{"backend"}, "the recipe is made from the contract alone"},
	{
		"backend/file", "outside",
		[]string{"golang.org/x/sys/..."},
		"the file backend needs flock from golang.org/x/sys and nothing else",
	},
	{
		"backend/file", "module",
		[]string{"backend"},
		"the file backend is made from the contract alone",
	},
	{"backend/migrate/...", "outside", nil, "a migration speaks to its stores through drivers"},
	{"backend/migrate/...", "drivers", nil, "a migration works between any two drivers"},
	{
		"fence/...", "outside", nil,
		"the guards of memory and net/http import no store: a resource need not " +
			"know who grants its locks",
	},
	{"fence/...", "drivers", nil, "the guards of a store live with its driver"},
	{"config/...", "drivers", nil, "a program chooses its drivers by what it imports, not by what config imports"},
	{
		"config/...", "outside",
		[]string{"go.yaml.in/yaml/..."},
		"reading a configuration needs a YAML parser and nothing else from outside",
	},
	{
		"conformance", "drivers",
		[]string{"backend/memory"},
		"the suite holds any driver to the same rules, strangers' too; it knows memory alone, " +
			"whose URL cannot be opened twice on one store",
	},
	{"leader", "outside", nil, "an election is a loop around a Mutex: it costs nobody a library"},
	{
		"leader", "module",
		[]string{".", "backend"},
		"an election works with any backend, and through the public surface alone",
	},
	{"locktest", "outside", nil, "a unit test costs nobody a library"},
	{
		"locktest", "module",
		[]string{".", "backend", "backend/memory", "internal/core"},
		"the store of unit tests is the memory backend, and what tests use is the public surface",
	},
	{
		"integrations/...", "module",
		[]string{".", "backend", "leader", "integrations/internal/..."},
		"an integration works with any backend, and through the public surface alone",
	},
	{"inside", ".", nil, "what drivers may import must not know the engine"},
	{"module", "internal/testkit", nil, "it is for tests, and knows the engine"},
	{
		"metrics/...", "module",
		[]string{".", "backend", "metrics/internal/..."},
		"an exporter knows the engine's events and nothing else of this module, least of all " +
			"another exporter: nobody links what he does not use",
	},
	{
		"metrics/prometheus", "outside",
		[]string{"github.com/prometheus/client_golang/..."},
		"the Prometheus exporter brings the client library and nothing else",
	},
	{
		"metrics/otel", "outside",
		[]string{
			"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/attribute",
			"go.opentelemetry.io/otel/codes", "go.opentelemetry.io/otel/metric/...",
			"go.opentelemetry.io/otel/trace/...",
		},
		"the OpenTelemetry exporter imports the API only: the program brings the SDK",
	},
	{"metrics/logs", "outside", nil, "log/slog is in the standard library"},
	{"metrics/internal/...", "outside", nil, "what exporters share brings nobody's library"},
}

// An edge is one import.
type edge struct{ from, to, file string }

// broken returns the rules that e breaks.
func broken(e edge) []rule {
	var out []rule
	for _, r := range rules {
		if !matches(e.from, r.from) || !matches(e.to, r.forbidden) || sameDriver(e.from, e.to) {
			continue
		}
		if !slices.ContainsFunc(r.except, func(x string) bool { return matches(e.to, x) }) {
			out = append(out, r)
		}
	}
	return out
}

// matches reports whether a package is one that the pattern names.
func matches(pkg, pattern string) bool {
	outside := strings.Contains(strings.Split(pkg, "/")[0], ".") && pkg != "."
	switch pattern {
	case "outside":
		return outside
	case "module":
		return !outside && !strings.HasPrefix(pkg, "std:")
	case "inside":
		return strings.HasPrefix(pkg, "internal/") && pkg != "internal/testkit"
	case "drivers":
		return driverOf(pkg) != ""
	}
	tree, ok := strings.CutSuffix(pattern, "/...")
	return pkg == pattern || ok && (pkg == tree || strings.HasPrefix(pkg, tree+"/"))
}

func driverOf(pkg string) string {
	for _, d := range drivers {
		if matches(pkg, d+"/...") {
			return d
		}
	}
	return ""
}

func sameDriver(a, b string) bool { return driverOf(a) != "" && driverOf(a) == driverOf(b) }

// folderOf names an import as the rules do: the folder for this module's, "std:"
// before the standard library's, the path for others'.
func folderOf(imp string) string {
	if imp == module {
		return "."
	}
	if rest, ok := strings.CutPrefix(imp, module+"/"); ok {
		return rest
	}
	if !strings.Contains(strings.Split(imp, "/")[0], ".") {
		return "std:" + imp
	}
	return imp
}

func TestImports(t *testing.T) {
	edges := 0
	for _, dir := range folders(t) {
		for file, f := range sources(t, dir) {
			for _, imp := range f.Imports {
				to, err := strconv.Unquote(imp.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				edges++
				for _, r := range broken(edge{dir, folderOf(to), file}) {
					t.Errorf("%s imports %s\n\twhich is forbidden: %s", file, to, r.why)
				}
			}
		}
	}
	if edges < 50 {
		t.Errorf("looked at %d imports, want those of the whole tree", edges)
	}
}

// Each rule can fail, and only where it should.
func TestImportRulesCanFail(t *testing.T) {
	tests := []struct {
		from, to string
		want     int // rules that it breaks
	}{
		{".", "github.com/redis/go-redis/v9", 1},
		{".", module + "/redis", 1},
		{".", module + "/backend/memory", 1},
		{".", module + "/backend", 0},
		{".", "context", 0},
		{".", "golang.org/x/sync/errgroup", 1},
		{"backend", "golang.org/x/sys/unix", 1},
		{"backend", module, 1},
		{"backend", module + "/backend/memory", 1},
		{"backend", "net/url", 0},
		{"redis", module, 2},
		{"redis", module + "/redlock", 2},
		{"redis", module + "/backend/memory", 2},
		{"redis", module + "/config", 1},
		{"redis", module + "/backend", 0},
		{"redis", module + "/fence", 0},
		{"redis", module + "/redis/internal/script", 0},
		{"redis/internal/script", module + "/etcd", 2},
		{"redis", "github.com/redis/go-redis/v9", 0},
		{"redlock", module + "/redis", 2},
		{"etcd", module, 2},
		{"zookeeper", module + "/etcd", 2},
		{"postgres", module + "/redis", 2},
		{"backend/memory", "golang.org/x/sys/unix", 1},
		{"backend/memory", module + "/fence", 1},
		{"backend/record", "golang.org/x/sys/unix", 1},
		{"backend/record", module + "/fence", 1},
		{"backend/file", "golang.org/x/sys/unix", 0},
		{"backend/file", "golang.org/x/sync/errgroup", 1},
		{"backend/file", module + "/fence", 1},
		{"backend/file", module + "/backend/memory", 3},
		{"backend/migrate", module + "/redis", 1},
		{"backend/migrate", "github.com/redis/go-redis/v9", 1},
		{"fence", "github.com/redis/go-redis/v9", 1},
		{"fence/http", module + "/redis", 1},
		{"fence", "net/http", 0},
		{"config", module + "/redis", 1},
		{"config", "go.yaml.in/yaml/v4", 0},
		{"config", "github.com/spf13/cobra", 1},
		{"conformance", module + "/redis", 1},
		{"conformance", module + "/backend/memory", 0},
		{"leader", module, 0},
		{"leader", module + "/redis", 1},
		{"leader", "golang.org/x/sync/errgroup", 1},
		{"locktest", "github.com/stretchr/testify/assert", 1},
		{"locktest", module + "/backend/memory", 0},
		{"locktest", module + "/redis", 1},
		{"integrations/gocron", module + "/redis", 1},
		{"integrations/gocron", module + "/leader", 0},
		{"integrations/gocron", "github.com/go-co-op/gocron/v2", 0},
		{"internal/x", module, 1},
		{"internal/testkit", module, 0},
		{"redis", module + "/internal/testkit", 1},
		{".", module + "/metrics/prometheus", 1},
		{"redis", module + "/metrics/internal/measure", 1},
		{"metrics/prometheus", module, 0},
		{"metrics/prometheus", module + "/backend", 0},
		{"metrics/prometheus", module + "/backend/memory", 1},
		{"metrics/prometheus", module + "/redis", 1},
		{"metrics/prometheus", module + "/metrics/internal/measure", 0},
		{"metrics/prometheus", module + "/metrics/otel", 1},
		{"metrics/prometheus", "github.com/prometheus/client_golang/prometheus", 0},
		{"metrics/prometheus", "go.opentelemetry.io/otel", 1},
		{"metrics/otel", "go.opentelemetry.io/otel", 0},
		{"metrics/otel", "go.opentelemetry.io/otel/trace", 0},
		{"metrics/otel", "go.opentelemetry.io/otel/sdk/trace", 1},
		{"metrics/otel", module + "/metrics/prometheus", 1},
		{"metrics/logs", "log/slog", 0},
		{"metrics/logs", "github.com/sirupsen/logrus", 1},
		{"metrics/logs", module + "/metrics/otel", 1},
		{"metrics/internal/measure", "github.com/prometheus/client_golang/prometheus", 1},
		{"metrics/internal/measure", module + "/config", 1},
		{"backend/all", module + "/redis", 0},
		{"cmd/fencelock", module + "/backend/all", 0},
	}
	failed := map[string]bool{}
	for _, tt := range tests {
		got := broken(edge{from: tt.from, to: folderOf(tt.to)})
		for _, r := range got {
			failed[r.why] = true
		}
		if len(got) != tt.want {
			t.Errorf("%s imports %s: breaks %d rules, want %d: %+v", tt.from, tt.to, len(got), tt.want, got)
		}
	}
	for _, r := range rules {
		if !failed[r.why] || r.why == "" {
			t.Errorf("no synthetic import breaks the rule %q → %q (%s)", r.from, r.forbidden, r.why)
		}
	}
}

// backend/all imports every driver of the catalog, as package and promise say.
func TestAllImportsEveryDriver(t *testing.T) {
	var got []string
	for _, f := range sources(t, "backend/all") {
		for _, imp := range f.Imports {
			to, _ := strconv.Unquote(imp.Path.Value)
			got = append(got, to)
		}
	}
	for _, e := range backend.Catalog() {
		if !slices.Contains(got, e.Import) {
			t.Errorf("backend/all does not import %s", e.Import)
		}
	}
}

// folders returns the folders of this module, the root's first.
func folders(t *testing.T) []string {
	t.Helper()
	var dirs []string
	err := filepath.WalkDir(".", func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		if n := e.Name(); p != "." && (strings.HasPrefix(n, ".") || strings.HasPrefix(n, "_") || n == "testdata") {
			return fs.SkipDir
		}
		dirs = append(dirs, filepath.ToSlash(p))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// sources returns the Go files of a folder by name, without the tests.
func sources(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	names, err := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), n, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[path.Join(dir, filepath.Base(n))] = f
	}
	return files
}
