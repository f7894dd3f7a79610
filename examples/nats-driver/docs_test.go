package natskv_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each block of Go in docs/drivers.md is in a file of this module.
func TestDocsQuoteTheCode(t *testing.T) {
	doc, err := os.ReadFile("../../docs/drivers.md")
	must(t, err)
	files, err := filepath.Glob("*.go")
	must(t, err)
	var code strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		must(t, err)
		code.Write(data)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(blocks) < 6 {
		t.Errorf("got %d blocks of Go, want one for each step", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(code.String(), b[1]) {
			t.Errorf("this is in no file:\n%s", b[1])
		}
	}
}
