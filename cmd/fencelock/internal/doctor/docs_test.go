package doctor

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the list of findings into docs/doctor.md")

const (
	page  = "../../../../docs/doctor.md"
	begin = "<!-- The list below is written by go test ./cmd/fencelock/internal/doctor -run Docs -update -->\n"
)

// render writes every kind as the documentation has it.
func render() string {
	var b strings.Builder
	for _, c := range Chapters() {
		title := c.Store
		if title == "" {
			title = "Every store with a server"
		}
		fmt.Fprintf(&b, "\n## %s\n", title)
		for _, k := range c.Kinds {
			fmt.Fprintf(&b, "\n### %s\n\n**%s**, %s. %s\n\nMend: `%s`\n", k.ID, k.Severity, k.Setting, k.Why, k.Mend)
		}
	}
	return b.String()
}

func TestDocsListEveryFinding(t *testing.T) {
	raw, err := os.ReadFile(page)
	must(t, err)
	prose, _, found := strings.Cut(string(raw), begin)
	if !found {
		t.Fatalf("%s has no line %q", page, begin)
	}
	want := prose + begin + render()
	if *update {
		must(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	if string(raw) != want {
		t.Error("docs/doctor.md does not list the findings as they are: go test ./cmd/fencelock/internal/doctor -run Docs -update")
	}
}

// Every kind is found somewhere and tested, and nothing is found that is no kind.
func TestKinds(t *testing.T) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	var code, tests string
	for _, f := range files {
		text, err := os.ReadFile(f)
		must(t, err)
		switch {
		case strings.HasSuffix(f, "_test.go") && f != "docs_test.go":
			tests += string(text)
		case !strings.HasSuffix(f, "_test.go"):
			code += regexp.MustCompile(`(?m)^\t\t+"[a-z0-9-]+", (Broken|Risk|Unseen|Note),`).ReplaceAllString(string(text), "")
		}
	}
	seen := map[string]bool{}
	for _, c := range Chapters() {
		for _, k := range c.Kinds {
			switch {
			case seen[k.ID]:
				t.Errorf("%s stands twice", k.ID)
			case c.Store != "" && !strings.HasPrefix(k.ID, c.Store+"-"):
				t.Errorf("%s is of %s, and does not say so", k.ID, c.Store)
			case !slices.Contains(Severities(), k.Severity) || k.Setting == "" || k.Why == "" || k.Mend == "":
				t.Errorf("%s is not whole: %+v", k.ID, k)
			case strings.Contains(k.Mend, "`"):
				t.Errorf("%s: a backquote in the remedy", k.ID)
			case !strings.Contains(code, `"`+k.ID+`"`):
				t.Errorf("%s is never found", k.ID)
			case !strings.Contains(tests, `"`+k.ID+`"`):
				t.Errorf("%s is not tested", k.ID)
			}
			seen[k.ID] = true
		}
	}
	if len(seen) < 60 {
		t.Errorf("%d kinds", len(seen))
	}
}
