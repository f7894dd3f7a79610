package fencelock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The README's program compiles as it is pasted, and runs.
func TestReadmeProgramRuns(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindSubmatch(text)
	if m == nil {
		t.Fatal("README.md has no whole program")
	}
	dir := t.TempDir()
	program := strings.Replace(string(m[1]), "file:///tmp/locks", "file://"+filepath.ToSlash(dir)+"/locks", 1)
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", file).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "the resource refuses tokens below") {
		t.Errorf("got %v\n%s", err, out)
	}
}
