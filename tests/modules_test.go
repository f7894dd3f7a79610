package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	root   = ".."
	module = "github.com/fencelock/fencelock"
)

// golang runs the go command in dir, outside of the workspace if off.
func golang(t *testing.T, dir string, off bool, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	if off {
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s in %s: %v: %s", strings.Join(args, " "), dir, err, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// folders are those of the workspace's modules, relative to this one.
func folders(t *testing.T) []string {
	t.Helper()
	var work struct{ Use []struct{ DiskPath string } }
	if err := json.Unmarshal([]byte(golang(t, root, false, "work", "edit", "-json")), &work); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, u := range work.Use {
		all = append(all, filepath.Join(root, u.DiskPath))
	}
	return all
}

// All modules of the workspace require one version of each other module.
func TestRequirementsAgree(t *testing.T) {
	first := map[string]string{}
	found := 0
	for _, folder := range folders(t) {
		var mod struct {
			Require []struct{ Path, Version string }
		}
		if err := json.Unmarshal([]byte(golang(t, folder, false, "mod", "edit", "-json")), &mod); err != nil {
			t.Fatal(err)
		}
		for _, r := range mod.Require {
			here := r.Version + " in " + folder
			if was, ok := first[r.Path]; ok && !strings.HasPrefix(was, r.Version+" ") {
				t.Errorf("%s: %s, and %s", r.Path, was, here)
			}
			first[r.Path] = here
			found++
		}
	}
	if found < 100 {
		t.Errorf("got %d requirements, want those of all modules", found)
	}
}

// What a program gets that uses one driver, or none.
func TestModulesOfAProgram(t *testing.T) {
	for _, c := range []struct {
		name          string
		imports       []string
		modules, sums int // at the most; the program's own module counts
	}{
		{"memory and file", []string{"backend/memory", "backend/file"}, 4, 6},
		{"redis", []string{"redis"}, 14, 22}, // 11 are a program's with go-redis alone
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			mod := "module program\n\ngo 1.26.0\n"
			code := fmt.Sprintf("package main\n\nimport (\n\t_ %q\n", module)
			for _, path := range append([]string{""}, c.imports...) {
				if path != "" {
					code += fmt.Sprintf("\t_ %q\n", module+"/"+path)
					path = "/" + path
				}
				folder, err := filepath.Abs(root + path)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
					mod += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %s\n", module+path, module+path, folder)
				}
			}
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("go.mod", mod)
			write("main.go", code+")\n\nfunc main() {}\n")
			golang(t, dir, true, "mod", "tidy")
			all := golang(t, dir, true, "list", "-m", "all")
			if got := strings.Count(all, "\n") + 1; got > c.modules {
				t.Errorf("got %d modules, want at most %d:\n%s", got, c.modules, all)
			}
			sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(string(sum), "\n"); got > c.sums {
				t.Errorf("got %d lines of go.sum, want at most %d", got, c.sums)
			}
		})
	}
}
