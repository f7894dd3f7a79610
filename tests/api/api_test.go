// Package api compares what the public packages export with api.txt, so that a change of it is seen where it is made.
// UPDATE=1 go test ./tests/api writes the file.
package api

import (
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const golden = "api.txt"

// private are commands, and the packages that no program is meant to import.
var private = regexp.MustCompile(`/(internal|bench|deploy|examples|tests)(/|$| )| main$`)

func TestAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles every package, also those for libraries that take minutes")
	}
	var got []string
	for _, pkg := range packages(t) {
		got = append(got, exported(pkg)...)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(text)), "\n")
	report := func(what string, lines, others []string) {
		for _, line := range lines {
			if !slices.Contains(others, line) {
				t.Errorf("%s; if it is meant, UPDATE=1 go test ./tests/api: %s", what, line)
			}
		}
	}
	report("gone", want, got)
	report("new", got, want)
}

// packages returns the public packages of the workspace, as the compiler exports them.
func packages(t *testing.T) (list []*types.Package) {
	t.Helper()
	golist := func(args ...string) (lines []string) {
		out, err := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	paths := slices.DeleteFunc(golist("-f", "{{.ImportPath}} {{.Name}}", "work"), private.MatchString)
	for i := range paths {
		paths[i], _, _ = strings.Cut(paths[i], " ")
	}
	slices.Sort(paths)
	files := map[string]string{}
	deps := append([]string{"-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, paths...)
	for _, line := range golist(deps...) {
		path, file, _ := strings.Cut(line, " ")
		files[path] = file
	}
	compiled := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(files[path])
	})
	for _, path := range paths {
		pkg, err := compiled.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, pkg)
	}
	return list
}

// exported lists what a package exports, a line each.
func exported(pkg *types.Package) (lines []string) {
	names := types.RelativeTo(pkg)
	add := func(format string, args ...any) {
		line := pkg.Path() + ": " + fmt.Sprintf(format, args...)
		lines = append(lines, strings.ReplaceAll(line, "github.com/fencelock/", ""))
	}
	for _, name := range pkg.Scope().Names() {
		obj := pkg.Scope().Lookup(name)
		if !obj.Exported() {
			continue
		}
		typed, ok := obj.(*types.TypeName)
		if !ok || typed.IsAlias() {
			add("%s", types.ObjectString(obj, names))
			continue
		}
		under := obj.Type().Underlying()
		fields, ok := under.(*types.Struct)
		if !ok {
			add("type %s %s", name, types.TypeString(under, names))
		} else {
			add("type %s struct", name)
			for field := range fields.Fields() {
				if field.Exported() {
					add("type %s struct: %s %s", name, field.Name(), types.TypeString(field.Type(), names))
				}
			}
		}
		for method := range types.NewMethodSet(types.NewPointer(obj.Type())).Methods() {
			if method.Obj().Exported() {
				add("%s", types.SelectionString(method, names))
			}
		}
	}
	return lines
}
