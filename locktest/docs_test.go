package locktest_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every Go block of docs/testing.md stands in job_test.go, which runs.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("job_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 3 {
		t.Errorf("got %d blocks, want at least 3", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(string(source), b[1]) {
			t.Errorf("not in job_test.go:\n%s", b[1])
		}
	}
}
