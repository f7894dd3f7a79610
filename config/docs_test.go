package config_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
)

var update = flag.Bool("update", false, "write the rendered parts of the documents")

// The documents with parts that are rendered from the catalog and the scenarios.
var documents = []string{"../README.md", "../docs/choosing.md"}

// part is what stands between <!-- BEGIN name: … --> and <!-- END name -->.
var part = regexp.MustCompile(`(?s)(<!-- BEGIN (\w+): [^\n]*-->\n)(.*?)(<!-- END (\w+) -->)`)

// Tables in the documents say what the code does.
func TestDocs(t *testing.T) {
	seen := map[string]bool{}
	for _, path := range documents {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got := part.ReplaceAllStringFunc(string(text), func(whole string) string {
			m := part.FindStringSubmatch(whole)
			render := parts()[m[2]]
			if render == nil || m[2] != m[5] {
				t.Fatalf("%s: there is no part %s that ends with %s", path, m[2], m[5])
			}
			seen[m[2]] = true
			return m[1] + render() + m[4]
		})
		if got == string(text) {
			continue
		}
		if !*update {
			t.Errorf("%s is not what the code says: go test ./config -run TestDocs -update", path)
			continue
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name := range parts() {
		if !seen[name] {
			t.Errorf("no document has the part %s", name)
		}
	}
}

func parts() map[string]func() string {
	ps := map[string]func() string{"backends": backends, "scenarios": scenarios, "always": always}
	for _, s := range config.Scenarios() {
		ps[s.Name] = func() string { return promised(s) }
	}
	return ps
}

// table renders a Markdown table.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(head)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

var yesNo = map[bool]string{true: "yes", false: "no"}

// backends is the matrix of the backends and their promises.
func backends() string {
	head := []string{"URL", "runs", "tokens"}
	for _, c := range config.Columns()[1:] { // the first is that of the tokens
		head = append(head, c.Head)
	}
	head = append(head, "for")
	var rows [][]string
	for _, e := range backend.Catalog() {
		url, runs, suits := config.Kind(e.Traits.Name)
		row := []string{"`" + url + "`", runs, e.Traits.Fencing.String()}
		for _, c := range config.Columns()[1:] {
			row = append(row, yesNo[c.Has(e.Traits)])
		}
		rows = append(rows, append(row, suits))
	}
	return table(head, rows)
}

// scenarios is the decision matrix.
func scenarios() string {
	var rows [][]string
	for _, s := range config.Scenarios() {
		needs := strings.Join(needed(s), "; ")
		var names []string
		for _, e := range s.Backends() {
			names = append(names, e.Traits.Name)
		}
		have := strings.Join(names, ", ")
		if len(names) == len(backend.Catalog()) {
			have = "every one"
		}
		rows = append(rows, []string{"`" + s.Name + "`", s.For, needs, have})
	}
	return table([]string{"scenario", "when", "needs of the backend", "backends that have it"}, rows)
}

// needed is what a scenario needs of a backend, in the words of the other table.
func needed(s config.Scenario) []string {
	var words []string
	if s.Need.Fencing > backend.NoFencing {
		words = append(words, s.Need.Fencing.String()+" tokens")
	}
	for _, c := range config.Columns()[1:] {
		if slices.Contains(s.Need.Missing(backend.Traits{}), c.Need) {
			words = append(words, c.Head)
		}
	}
	if words == nil {
		return []string{"nothing"}
	}
	return words
}

// always is what every scenario promises.
func always() string { return fmt.Sprintf("- Promised by each: %s\n", lower(config.AlwaysGets)) }

// promised is what a scenario promises besides, and does not.
func promised(s config.Scenario) string {
	var b strings.Builder
	for _, p := range s.Gets {
		fmt.Fprintf(&b, "- Promised: %s\n", lower(p))
	}
	for _, p := range s.Not {
		fmt.Fprintf(&b, "- **Not promised:** %s\n", lower(p))
	}
	fmt.Fprintf(&b, "- Yours to do: %s\n", lower(s.Yours))
	return b.String()
}

func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// Every YAML block of the documents loads as it stands there, and each scenario has one.
func TestSnippetsLoad(t *testing.T) {
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	shown := map[string]bool{}
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(pages, "../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			if !strings.HasPrefix(m[1], "backends:") { // some other program's, or a part
				continue
			}
			c, err := config.LoadEnv(strings.NewReader(m[1]), func(string) (string, bool) { return "x", true })
			if err != nil || len(c.Warnings()) > 0 {
				t.Errorf("%s: %v, warnings %v:\n%s", path, err, c.Warnings(), m[1])
				continue
			}
			for _, r := range c.Rules() {
				shown[r.Scenario.Name] = true
			}
		}
	}
	if len(shown) != len(config.Scenarios()) {
		t.Errorf("blocks show %v, want every scenario", shown)
	}
}

// What docs/choosing.md says of a mistake is what a mistake says.
func TestTheErrorOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/choosing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, file, _ := strings.Cut(string(text), "## The file\n\n```yaml\n")
	file, _, _ = strings.Cut(file, "```")
	_, err = config.LoadEnv(strings.NewReader(strings.Replace(file, "mode=row", "mode=lease", 1)),
		func(string) (string, bool) { return "x", true })
	bad, ok := errors.AsType[*config.Error](err)
	if !ok || len(bad.Problems) != 1 {
		t.Fatalf("got %v, want one problem", err)
	}
	p := bad.Problems[0]
	want := fmt.Sprintf("locks.yaml:%d:%d: %s",
		p.Line, p.Column, p.What[:len(`rule "ledger/*": scenario transactional`)])
	if !strings.Contains(string(text), want) {
		t.Errorf("the page does not show %s", want)
	}
}
