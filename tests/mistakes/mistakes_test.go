package mistakes

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The environment of make mistakes.
const (
	envPlant = "PLANT" // plants them
	envOnly  = "ONLY"  // words such as redis or redis/no-owner: those that are planted
)

// backends are the folders of the patches, each with the test that runs the suite.
var backends = []struct{ name, test string }{
	{"memory", "TestMemory"},
	{"file", "TestFile"},
	{"redis", "TestRedis"},
	{"redlock", "TestRedlock"},
	{"etcd", "TestEtcd"},
	{"zookeeper", "TestZooKeeper"},
	{"postgres-lease", "TestPostgresLease"},
	{"postgres-row", "TestPostgresRow"},
	{"migrate", ""}, // package migrate and the guards: tests of the packages find these
	{"engine", ""},  // the root package: its tests, and the simulation
}

const root = "../.."

// mistake is a patch.
type mistake struct {
	backend, name string
	what          string   // what goes wrong
	rules         []string // of the suite, that find it; or else
	test, pkg     string   // a test; or
	cell          string   // of the fault table, which TestFaults runs
	files         []string // that it changes
}

func (m mistake) path() string { return filepath.Join(m.backend, m.name+".patch") }

// finds names the rules or the test that find it, for readers.
func (m mistake) finds() string {
	if m.cell != "" {
		return fmt.Sprintf("`make faults ONLY=%s`", m.cell)
	}
	if m.test != "" {
		return fmt.Sprintf("`%s` in `%s`", m.test, m.pkg)
	}
	return strings.Join(m.rules, ", ")
}

// load reads the patches of a backend.
func load(t *testing.T, backend string) []mistake {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(backend, "*.patch"))
	if err != nil {
		t.Fatal(err)
	}
	var all []mistake
	for _, path := range paths {
		m := mistake{backend: backend, name: strings.TrimSuffix(filepath.Base(path), ".patch")}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(strings.NewReader(string(raw))); lines.Scan(); {
			key, value, _ := strings.Cut(lines.Text(), " ")
			switch key {
			case "Mistake:":
				m.what = value
			case "Found-by:":
				m.rules = strings.Split(value, ", ")
			case "Test:":
				m.test, m.pkg, _ = strings.Cut(value, " ")
			case "Cell:":
				m.cell, m.test, m.pkg = value, "TestFaults", "./tests/guarantees"
			case "+++":
				m.files = append(m.files, strings.TrimPrefix(value, "b/"))
			}
		}
		if m.what == "" || len(m.files) == 0 || (len(m.rules) == 0) == (m.test == "") || m.test != "" && m.pkg == "" {
			t.Fatalf("%s: want a line Mistake:, one of Found-by:, Test: and Cell:, and a diff; got %+v", path, m)
		}
		all = append(all, m)
	}
	return all
}

// TestTen holds the number of mistakes, and that they fit the sources.
func TestTen(t *testing.T) {
	git(t)
	for _, b := range backends {
		all := load(t, b.name)
		if len(all) < 10 {
			t.Errorf("%s has %d mistakes, want 10", b.name, len(all))
		}
		for _, m := range all {
			if _, err := m.plant(t.TempDir()); err != nil {
				t.Errorf("%s: %v", m.path(), err)
			}
		}
	}
}

const intro = `# Planted mistakes

Each patch is a bug that the author of a driver, or of the engine, could make. ` +
	"`make mistakes`" + ` plants one after the other and requires that ` +
	`each rule named here finds
it; without any of them the same rules pass. ` + "`ONLY='redis etcd/no-owner'`" + ` chooses. ` +
	`Where no rule of the suite can see it, a test of the package does, or the simulation.

This page is written by ` + "`UPDATE=1 go test ./tests/mistakes -run TestReadme`" + `.

`

// TestReadme compares the page with the patches. UPDATE=1 writes it.
func TestReadme(t *testing.T) {
	var b strings.Builder
	b.WriteString(intro + "| backend | patch | mistake | found by |\n|---|---|---|---|\n")
	for _, k := range backends {
		for _, m := range load(t, k.name) {
			fmt.Fprintf(&b, "| %s | [%s](%s) | %s | %s |\n",
				m.backend, m.name, filepath.ToSlash(m.path()), m.what, m.finds())
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("README.md", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile("README.md"); err != nil || string(got) != b.String() {
		t.Errorf("README.md is not what the patches say (%v): UPDATE=1 go test ./tests/mistakes -run TestReadme", err)
	}
}

// TestPlanted plants the mistakes, one after the other, and runs the rules or the test that must find them. A backend's
// rules must pass without any.
func TestPlanted(t *testing.T) {
	if os.Getenv(envPlant) == "" {
		t.Skip("make mistakes")
	}
	git(t)
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			var chosen []mistake
			var rules []string
			for _, m := range load(t, b.name) {
				if only := strings.Fields(os.Getenv(envOnly)); len(only) == 0 ||
					slices.Contains(only, m.backend) ||
					slices.Contains(only, m.backend+"/"+m.name) {
					chosen = append(chosen, m)
					rules = append(rules, m.rules...)
				}
			}
			if len(chosen) == 0 {
				t.Skip("none is chosen")
			}
			slices.Sort(rules)
			rules = slices.Compact(rules)
			if b.test != "" {
				if out, err := run("", "./tests/backends", suite(b.test, rules), ""); err != nil {
					t.Fatalf("without a mistake: %v\n%s", err, out)
				}
			}
			for _, m := range chosen {
				t.Run(m.name, func(t *testing.T) { m.found(t, b.test) })
			}
		})
	}
}

// suite is the pattern of rules of the suite as a test runs them.
func suite(test string, rules []string) string {
	return fmt.Sprintf("^%s$/^(rules|alone|measured|solo)$/^(%s)$", test, strings.Join(rules, "|"))
}

// found plants a mistake and requires that its rules or its test find it.
func (m mistake) found(t *testing.T, test string) {
	overlay, err := m.plant(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pkg, pattern := "./tests/backends", suite(test, m.rules)
	if m.test != "" {
		pkg, pattern = m.pkg, "^"+m.test+"$"
	}
	began := time.Now()
	out, err := run(overlay, pkg, pattern, m.cell)
	if err == nil {
		t.Fatalf("nothing found it: %s", m.what)
	}
	for _, rule := range m.rules {
		if !regexp.MustCompile(`(?m)^ *--- FAIL: ` + test + `/[a-z]+/` + rule + ` `).MatchString(out) {
			t.Errorf("%s has not found it: %s\n%s", rule, m.what, out)
		}
	}
	// A driver of the engine's tests that is called after the failed test has ended panics instead.
	if m.test != "" && !strings.Contains(out, "--- FAIL: "+m.test+" ") &&
		!strings.Contains(out, "panic: Fail in goroutine after "+m.test+" has completed") {
		t.Errorf("%s has not found it: %s\n%s", m.test, m.what, out)
	}
	t.Logf("found by %s in %v", m.finds(), time.Since(began).Round(time.Second))
}

// run runs tests with the files of an overlay in place of those of the tree; of TestFaults one cell.
func run(overlay, pkg, pattern, cell string) (string, error) {
	args := []string{"test", "-count=1", "-vet=off", "-timeout=5m", "-run", pattern}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), envOnly+"="+cell, "ROUNDS=", "RECORD=", "SAVE=") // a bug's outcome is no record
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// plant applies the patch to copies of the files that it changes, in dir, and returns the overlay
// (see go help build) that puts them in the place of the tree's.
func (m mistake) plant(dir string) (string, error) {
	tree, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, f := range m.files {
		raw, err := os.ReadFile(filepath.Join(tree, f))
		if err != nil {
			return "", err
		}
		replace[filepath.Join(tree, f)] = filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, f), raw, 0o644); err != nil {
			return "", err
		}
	}
	cmd := exec.Command("git", "apply", filepath.Join(tree, "tests", "mistakes", m.path()))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir)) // dir is in no repository
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not apply any more: %w\n%s", err, out)
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, raw, 0o644)
}

func git(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git applies the patches: it is not installed")
	}
}
