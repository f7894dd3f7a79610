// Package examples has programs to copy; its test runs them on real servers.
package examples

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"
)

func TestExamples(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: many programs are linked for this")
	}
	redis := func(t *testing.T) string { return servers.Redis(t, servers.RedisOptions{}).URL() }
	etcd := func(t *testing.T) string { return servers.Etcd(t, servers.EtcdOptions{}).URL() }
	postgres := func(t *testing.T) string { return servers.Postgres(t, servers.PostgresOptions{}).URL() }
	for _, tt := range []struct {
		name   string
		url    func(*testing.T) string // or several, with a space between
		args   []string                // before the URL
		prints []string                // in this order
	}{
		{"redis-fencing", redis, nil, []string{"balance is 100", "refused: stale fencing token"}},
		{"etcd-held", etcd, []string{"-url"}, []string{"a leads with token"}},
		{"postgres-fencing", postgres, nil, []string{"stale fencing token"}},
		{"singleton-jobs", redis, nil, []string{"job 0 of customer 0", "12 jobs done"}},
		{
			"migrating-fleet", func(t *testing.T) string { return redis(t) + " " + etcd(t) }, nil,
			[]string{
				"nothing lost; the guard refused 0", "LOST; the guard refused 0",
				"nothing lost; the guard refused",
			},
		},
		{"postgres-tx", postgres, nil, []string{"committed: the total is", "rolled back:"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			program := filepath.Join(t.TempDir(), tt.name)
			build := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
			build.Dir = tt.name
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			cmd := exec.CommandContext(ctx, program, append(tt.args, strings.Fields(tt.url(t))...)...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var said strings.Builder
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			left := tt.prints
			var printed []string
			for lines := bufio.NewScanner(out); lines.Scan(); {
				printed = append(printed, lines.Text())
				if len(left) > 0 && strings.Contains(lines.Text(), left[0]) {
					left = left[1:]
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("got %v, want exit code 0; stderr: %s", err, said.String())
			}
			if len(left) > 0 {
				t.Errorf("it did not print %q, but %q", left, printed)
			}
		})
	}
}

// Every folder here is in the test.
func TestEveryExampleIsRun(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("examples_test.go")
	if err != nil {
		t.Fatal(err)
	}
	mains, err := filepath.Glob("*/main.go")
	if err != nil || len(mains) == 0 {
		t.Fatalf("got %q, %v", mains, err)
	}
	for _, main := range mains {
		if name := filepath.Dir(main); !strings.Contains(string(source), `"`+name+`",`) {
			t.Errorf("%s is not run", name)
		}
	}
}
