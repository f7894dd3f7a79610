package locktest_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every Go block of these pages stands in a test, which runs.
func TestDocs(t *testing.T) {
	for page, source := range map[string]string{"testing.md": "job_test.go", "tutorial.md": "tutorial_test.go"} {
		text, err := os.ReadFile("../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		code, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		flat := strings.ReplaceAll(string(code), "\n\t", "\n") // of a function's body
		blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1)
		if len(blocks) < 3 {
			t.Errorf("%s: got %d blocks, want at least 3", page, len(blocks))
		}
		for _, b := range blocks {
			if !strings.Contains(string(code), b[1]) && !strings.Contains(flat, b[1]) {
				t.Errorf("%s: not in %s:\n%s", page, source, b[1])
			}
		}
	}
}
