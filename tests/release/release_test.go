package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

const (
	root    = "../.."
	library = "github.com/fencelock/fencelock"
	version = "v0.99.0"
)

// outside is a folder that the go command works in, outside of the workspace.
type outside struct {
	dir string
	env []string
}

func url(folder string) string { return "file://" + filepath.ToSlash(folder) }

func (o outside) in(dir string) outside { return outside{dir, o.env} }

// golang runs the go command and returns what it prints.
func (o outside) golang(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = o.dir, o.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v: %s", strings.Join(args, " "), err, &stderr)
	}
	return strings.TrimSpace(string(out))
}

func (o outside) write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(o.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A version of the tree, as a proxy serves it. What it requires comes from this machine if it is there: without a
// network too.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("a module cache of its own, and what is in it compiled: half a minute")
	}
	proxy := t.TempDir()
	tags, err := prepare(root, version, proxy)
	if err != nil {
		t.Fatal(err)
	}
	want := "backend/all/V bench/V cmd/fencelock/V conformance/V etcd/V integrations/asynq/V " +
		"integrations/certmagic/V integrations/controller-runtime/V integrations/cron/V integrations/gocron/V " +
		"integrations/goose/V integrations/tusd/V metrics/otel/V metrics/prometheus/V " +
		"postgres/V redis/V redlock/V V zookeeper/V"
	if got := strings.ReplaceAll(strings.Join(tags, " "), version, "V"); got != want {
		t.Errorf("got the tags %s\nwant %s", got, want)
	}
	o := outside{dir: t.TempDir(), env: os.Environ()}
	local := filepath.Join(o.golang(t, "env", "GOMODCACHE"), "cache", "download")
	// With any GOPRIVATE or GONOPROXY, be it "none", the go command looks into its cache before it asks a proxy. Once
	// the root is there and the driver is not, it gives up: the root has no such package.
	o.env = append(o.env, "GOENV=off", "GOPRIVATE=", "GONOPROXY=", "GOSUMDB=off", "GOWORK=off",
		"GOFLAGS=-mod=mod -modcacherw",
		"GOPROXY="+url(proxy)+","+url(local)+","+o.golang(t, "env", "GOPROXY"),
		"GOMODCACHE="+t.TempDir(), "GOBIN="+t.TempDir())

	t.Run("a program with memory and file", func(t *testing.T) {
		program(t, o.in(t.TempDir()), "get "+library+"@"+version, "backend/memory", 4, 6)
	})
	// A program with go-redis alone has 11 modules and 20 lines. The root, the driver and the YAML that the root
	// requires for package config are the rest.
	t.Run("a program with redis", func(t *testing.T) {
		program(t, o.in(t.TempDir()), readme(t, `(?m)^go (get .*?) *#`), "redis", 14, 24)
	})
	// Its module stands alone: it has no replace, and requires all that it imports.
	t.Run("the command", func(t *testing.T) {
		install, _ := strings.CutPrefix(readme(t, `(?m)^go (install .*?) *#`), "install ")
		o.golang(t, "install", "-n", install)
	})
	// Its go.sum files have the hashes of what is served, which includes the root's license.
	t.Run("the tree to commit", func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(proxy, "tree", "redis", "LICENSE")); err != nil {
			t.Error(err)
		}
		for _, folder := range []string{"redis", "metrics/otel", "integrations/gocron"} {
			o.in(filepath.Join(proxy, "tree", folder)).golang(t, "list", "-mod=readonly", "-test", "-deps", "./...")
		}
		work, err := os.ReadFile(filepath.Join(proxy, "tree", "go.work"))
		if got := bytes.Count(work, []byte(" "+version+" => ")); got < 12 || bytes.Contains(work, []byte(" v0.0.0 ")) {
			t.Errorf("go.work: %v\n%s", err, work)
		}
	})
}

// readme returns what stands in the README, with the version under test.
func readme(t *testing.T, pattern string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(text)
	if m == nil {
		t.Fatalf("README.md has no %s", pattern)
	}
	return regexp.MustCompile(`@v\S+`).ReplaceAllString(string(m[1]), "@"+version)
}

// program runs the README's program in a module of its own, which gets what it needs by one command. It also imports a
// package. It has at most so many modules, itself among them, and lines of go.sum.
func program(t *testing.T, o outside, get, also string, modules, sums int) {
	code := readme(t, "(?s)```go\n(package main\n.*?)```")
	o.write(t, "go.mod", "module program\n\ngo 1.26.0\n")
	o.write(t, "main.go", strings.Replace(code, "file:///tmp/locks", url(o.dir)+"/locks", 1))
	o.write(t, "store/store.go", fmt.Sprintf("package store\n\nimport _ %q\n", library+"/"+also))
	o.golang(t, strings.Fields(get)...)
	o.golang(t, "mod", "tidy")
	sum, err := os.ReadFile(filepath.Join(o.dir, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(sum), "\n"); got > sums {
		t.Errorf("got %d lines of go.sum, want at most %d:\n%s", got, sums, sum)
	}
	all := o.golang(t, "list", "-m", "all")
	if got := strings.Count(all, "\n") + 1; got > modules {
		t.Errorf("got %d modules, want at most %d:\n%s", got, modules, all)
	}
	o.golang(t, "list", "-deps", "./...") // all that is imported and embedded is there
	if got := o.golang(t, "run", "."); !strings.HasPrefix(got, "the resource refuses tokens below") {
		t.Errorf("the program prints %q", got)
	}
}

// All modules of the workspace require one version of each other module.
func TestRequirementsAgree(t *testing.T) {
	work := parse(t, "go.work", modfile.ParseWork)
	first := map[string]string{}
	found := 0
	for _, use := range work.Use {
		for _, require := range parse(t, filepath.Join(use.Path, "go.mod"), modfile.Parse).Require {
			here := require.Mod.Version + " in " + use.Path
			if was, ok := first[require.Mod.Path]; ok && !strings.HasPrefix(was, require.Mod.Version+" ") {
				t.Errorf("%s: %s, and %s", require.Mod.Path, was, here)
			}
			first[require.Mod.Path] = here
			found++
		}
	}
	if found < 100 {
		t.Errorf("got %d requirements, want those of all modules", found)
	}
}

// docs/proof.md names what the released modules require by themselves, and nothing else.
func TestRequirementsAreNamed(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "proof.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, module := range regexp.MustCompile("`([a-z.]+/[^` ]+)`").FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(strings.Split(module[1], "/")[0], ".") {
			named[module[1]] = true
		}
	}
	required := map[string]bool{}
	for _, module := range []string{
		".", "redis", "redlock", "etcd", "zookeeper", "postgres", "conformance", "cmd/fencelock", "bench",
		"metrics/otel", "metrics/prometheus",
	} {
		for _, require := range parse(t, filepath.Join(module, "go.mod"), modfile.Parse).Require {
			path := require.Mod.Path
			if require.Indirect || strings.HasPrefix(path, library) {
				continue
			}
			if of := "go.opentelemetry.io/otel"; strings.HasPrefix(path, of+"/") {
				path = of // its modules have one version
			}
			required[path] = true
			if !named[path] {
				t.Errorf("docs/proof.md does not name %s, which %s requires", path, module)
			}
		}
	}
	for module := range named {
		if !required[module] {
			t.Errorf("docs/proof.md names %s, which nothing requires", module)
		}
	}
}

func parse[F any](t *testing.T, name string, parser func(string, []byte, modfile.VersionFixer) (F, error)) F {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser(name, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
