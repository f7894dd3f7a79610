package examples

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What docs/integrations.md shows as Go is in a program that the test above runs, or in a package's examples; what
// it cannot run it shows otherwise, and says so.
func TestIntegrationsAreRun(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "docs", "integrations.md"))
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, pattern := range []string{"*/*.go", "../leader/*_test.go", "../integrations/*/example_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, squeeze(string(data)))
		}
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(blocks) < 3 {
		t.Errorf("got %d blocks of Go, want all", len(blocks))
	}
	for _, block := range blocks {
		found := false
		for _, s := range sources {
			found = found || strings.Contains(s, squeeze(block[1]))
		}
		if !found {
			t.Errorf("this is in no program that is run:\n%s", block[1])
		}
	}
}

// squeeze takes the indentation.
func squeeze(s string) string {
	var out []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}
