package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every snippet of the document is part of an example that the tests run.
func TestSnippetsAreExamples(t *testing.T) {
	doc, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../metrics/*/example_test.go")
	if err != nil || len(files) != 3 {
		t.Fatalf("got %q, %v, want the examples of three packages", files, err)
	}
	var examples strings.Builder
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		examples.Write(raw)
	}
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(snippets) < 5 {
		t.Errorf("got %d snippets, want those of the document", len(snippets))
	}
	for _, s := range snippets {
		if !strings.Contains(examples.String(), s[1]) {
			t.Errorf("in no example:\n%s", s[1])
		}
	}
}
