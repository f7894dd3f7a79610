package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// private are the folders of modules that no program requires. They get no tag.
var private = []string{"bench/peers", "deploy", "examples", "internal", "tests"}

// A release is one version of all modules, while it is made.
type release struct {
	version, dir string             // dir is the proxy's
	modules      map[string]*source // by path
	tags         []string
}

// A source is the folder of a module in the copy of the tree.
type source struct {
	tag    string // its folder from the root and a slash; empty for the root's
	path   string
	mod    *modfile.File
	served bool
	sums   []string // for the go.sum of others: two lines for each sibling that it requires, and for itself
}

// prepare makes the release of the tree at root, without what git ignores, and returns its tags.
func prepare(root, version, dir string) ([]string, error) {
	r := &release{version: version, dir: dir, modules: map[string]*source{}}
	names, err := r.copy(root)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if path.Base(name) == "go.mod" {
			if err := r.read(name); err != nil {
				return nil, err
			}
		}
	}
	if err := r.workspace(); err != nil {
		return nil, err
	}
	for _, s := range r.modules {
		if err := r.serve(s); err != nil {
			return nil, err
		}
	}
	slices.Sort(r.tags)
	return r.tags, nil
}

func (r *release) tree(elem ...string) string {
	return filepath.Join(append([]string{r.dir, "tree"}, elem...)...)
}

// copy copies the files that git knows, or would add.
func (r *release) copy(root string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files in %s: %w", root, err)
	}
	names := strings.Split(strings.TrimRight(string(list), "\x00"), "\x00")
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(r.tree(name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(r.tree(name), data, 0o644)
		}
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// read reads a go.mod.
func (r *release) read(name string) error {
	text, err := os.ReadFile(r.tree(name))
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(name, text, nil)
	if err != nil {
		return err
	}
	s := &source{tag: strings.TrimSuffix(name, "go.mod"), path: mod.Module.Mod.Path, mod: mod}
	if err := module.Check(s.path, r.version); err != nil {
		return err
	}
	if len(mod.Replace)+len(mod.Exclude) > 0 {
		return fmt.Errorf("%s: go install PACKAGE@VERSION refuses a replace and an exclude", name)
	}
	r.modules[s.path] = s
	return nil
}

// workspace lets the tree's modules stand in for the new version.
func (r *release) workspace() error {
	text, err := os.ReadFile(r.tree("go.work"))
	if err != nil {
		return err
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return err
	}
	for _, replace := range work.Replace {
		if old := replace.Old; r.modules[old.Path] != nil {
			line := fmt.Sprintf("%s %s =>", old.Path, old.Version)
			text = bytes.Replace(text, []byte(line), fmt.Appendf(nil, "%s %s =>", old.Path, r.version), 1)
		}
	}
	return os.WriteFile(r.tree("go.work"), text, 0o644)
}

// serve writes a module, and before it those that it requires: their hashes are in its go.sum.
func (r *release) serve(s *source) error {
	if s.served {
		return nil
	}
	s.served = true
	old, err := os.ReadFile(r.tree(s.tag, "go.sum"))
	if err != nil {
		return err
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(old), "\n"), func(line string) bool {
		return line == "" || r.modules[modulePath(line)] != nil
	})
	for _, require := range s.mod.Require {
		sibling := r.modules[require.Mod.Path]
		if sibling == nil {
			continue
		}
		if sibling.private() && !s.private() {
			return fmt.Errorf("%s requires %s, which is not released", s.path, sibling.path)
		}
		if err := r.serve(sibling); err != nil {
			return err
		}
		if err := s.mod.AddRequire(sibling.path, r.version); err != nil {
			return err
		}
		s.sums = append(s.sums, sibling.sums...)
	}
	lines = append(lines, s.sums...)
	// Stable: the versions of a foreign module keep their order.
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(modulePath(a), modulePath(b)) })
	sum := strings.Join(slices.Compact(lines), "")
	if err := os.WriteFile(r.tree(s.tag, "go.sum"), []byte(sum), 0o644); err != nil {
		return err
	}
	text, err := s.mod.Format()
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.tree(s.tag, "go.mod"), text, 0o644); err != nil {
		return err
	}
	if s.private() {
		return nil
	}
	return r.publish(s, text)
}

// publish writes what a proxy has of a module, and takes its hashes.
func (r *release) publish(s *source, gomod []byte) error {
	license, err := os.ReadFile(r.tree("LICENSE"))
	if err != nil {
		return err
	}
	// The go command does so with a module that has none of its own.
	if err := os.WriteFile(r.tree(s.tag, "LICENSE"), license, 0o644); err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := zip.CreateFromDir(&archive, module.Version{Path: s.path, Version: r.version}, r.tree(s.tag)); err != nil {
		return err
	}
	served := filepath.Join(r.dir, filepath.FromSlash(s.path), "@v")
	if err := os.MkdirAll(served, 0o755); err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"list":              []byte(r.version + "\n"),
		r.version + ".info": fmt.Appendf(nil, "{\"Version\": %q}\n", r.version),
		r.version + ".mod":  gomod,
		r.version + ".zip":  archive.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(served, name), data, 0o644); err != nil {
			return err
		}
	}
	files, err := dirhash.HashZip(filepath.Join(served, r.version+".zip"), dirhash.Hash1)
	if err != nil {
		return err
	}
	mod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(gomod)), nil
	})
	if err != nil {
		return err
	}
	line := s.path + " " + r.version
	s.sums = append(s.sums, line+" "+files+"\n"+line+"/go.mod "+mod+"\n")
	r.tags = append(r.tags, s.tag+r.version)
	return nil
}

// modulePath returns the module of a line of go.sum.
func modulePath(line string) string {
	path, _, _ := strings.Cut(line, " ")
	return path
}

func (s *source) private() bool {
	return slices.ContainsFunc(private, func(folder string) bool { return strings.HasPrefix(s.tag, folder+"/") })
}
