package peers

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What docs/coming-from.md uses, by the name before the dot.
var imports = map[string]string{
	"clientv3":    "go.etcd.io/etcd/client/v3",
	"concurrency": "go.etcd.io/etcd/client/v3/concurrency",
	"context":     "context",
	"errors":      "errors",
	"fencelock":   "github.com/fencelock/fencelock",
	"pglock":      "cirello.io/pglock",
	"redislock":   "github.com/bsm/redislock",
	"redsync":     "github.com/go-redsync/redsync/v4",
	"rueidislock": "github.com/redis/rueidis/rueidislock",
	"time":        "time",
}

// Every function of docs/coming-from.md compiles with the real libraries.
func TestComingFromCompiles(t *testing.T) {
	doc, err := os.ReadFile("../../docs/coming-from.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(doc, -1)
	if len(blocks) < 6 {
		t.Errorf("got %d functions, want ours and one for each library in Go", len(blocks))
	}
	var all bytes.Buffer
	for _, b := range blocks {
		all.Write(b[1])
		all.WriteString("\n")
	}
	var file strings.Builder
	file.WriteString("package coming\n\nimport (\n")
	for name, path := range imports {
		if strings.Contains(all.String(), name+".") {
			fmt.Fprintf(&file, "\t%s %q\n", name, path)
		}
	}
	path := filepath.Join(t.TempDir(), "coming.go")
	if err := os.WriteFile(path, []byte(file.String()+")\n\n"+all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "vet", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
