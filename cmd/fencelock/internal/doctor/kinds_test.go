package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every kind is found somewhere and tested, and nothing is found that is no kind.
func TestKinds(t *testing.T) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	var code, tests string
	for _, f := range files {
		text, err := os.ReadFile(f)
		must(t, err)
		switch {
		case strings.HasSuffix(f, "_test.go") && f != "kinds_test.go":
			tests += string(text)
		case !strings.HasSuffix(f, "_test.go"):
			code += string(text)
		}
	}
	seen := map[string]bool{}
	stores := []string{"redis", "redlock", "etcd", "zookeeper", "postgres", "file", "memory"}
	for i, k := range Kinds() {
		store, _, _ := strings.Cut(k.ID, "-")
		switch {
		case seen[k.ID]:
			t.Errorf("%s stands twice", k.ID)
		case i > 1 && !slices.Contains(stores, store): // the first two are every store's
			t.Errorf("%s does not say of which store it is", k.ID)
		case !slices.Contains(Severities(), k.Severity) || k.Setting == "" || k.Why == "" || k.Mend == "":
			t.Errorf("%s is not whole: %+v", k.ID, k)
		case strings.Contains(k.Mend, "`"):
			t.Errorf("%s: a backquote in the remedy", k.ID)
		case !strings.Contains(code, `"`+k.ID+`"`):
			t.Errorf("%s is never found", k.ID)
		case !strings.Contains(tests, `"`+k.ID+`"`):
			t.Errorf("%s is not tested", k.ID)
		}
		seen[k.ID] = true
	}
	if len(seen) < 60 {
		t.Errorf("%d kinds", len(seen))
	}
}
