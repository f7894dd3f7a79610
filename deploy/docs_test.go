package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every snippet of the document is part of an example that the tests run, and each package has one there.
func TestSnippetsAreExamples(t *testing.T) {
	doc, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../metrics/*/example_test.go")
	if err != nil || len(files) != 3 {
		t.Fatalf("got %q, %v, want the examples of three packages", files, err)
	}
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	found := map[string]bool{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		shown := false
		for _, s := range snippets {
			if strings.Contains(string(raw), s[1]) {
				shown, found[s[1]] = true, true
			}
		}
		if !shown {
			t.Errorf("the document has no snippet of %s", f)
		}
	}
	for _, s := range snippets {
		if !found[s[1]] {
			t.Errorf("in no example:\n%s", s[1])
		}
	}
}
