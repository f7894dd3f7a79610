package deploy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/fencelock/fencelock/backend"
)

// compose is what the tests look at of compose.yaml.
type compose struct {
	Services map[string]struct {
		Image   string
		Command []string
		Volumes []string
		Ports   []string
		Depends []string `yaml:"depends_on"`
	}
}

func readCompose(t *testing.T) compose {
	t.Helper()
	raw, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	if err := yaml.Load(raw, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestComposeHasEveryBackend(t *testing.T) {
	c := readCompose(t)
	for _, s := range []string{"prometheus", "grafana", "demo"} {
		if c.Services[s].Image == "" {
			t.Errorf("there is no service %s", s)
		}
	}
	used := map[string]bool{}
	for _, arg := range c.Services["demo"].Command {
		scheme, rest, ok := strings.Cut(arg, "://")
		if !ok {
			continue
		}
		used[scheme] = true
		if scheme == "file" || scheme == "memory" {
			continue
		}
		hosts, _, _ := strings.Cut(rest, "/")
		hosts, _, _ = strings.Cut(hosts, "?")
		hosts = hosts[strings.LastIndex(hosts, "@")+1:]
		for host := range strings.SplitSeq(hosts, ",") {
			name, port, _ := strings.Cut(host, ":")
			if c.Services[name].Image == "" || port == "" || !slices.Contains(c.Services["demo"].Depends, name) {
				t.Errorf("%s: there is no service %q, or the demo does not depend on it", arg, name)
			}
		}
	}
	for _, e := range backend.Catalog() {
		if len(e.Schemes) > 0 && !slices.ContainsFunc(e.Schemes, func(s string) bool { return used[s] }) {
			t.Errorf("the demo locks on no %s", e.Traits.Name)
		}
	}
	row, lease := strings.Join(c.Services["demo"].Command, " "), "mode=lease"
	if !strings.Contains(row, "mode=row") || !strings.Contains(row, lease) {
		t.Error("the demo does not lock in both modes of postgres")
	}
}

func TestComposeIsSafeToTry(t *testing.T) {
	for name, s := range readCompose(t).Services {
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s: the port %s is open to the network", name, p)
			}
		}
		if _, tag, ok := strings.Cut(s.Image, ":"); !ok || tag == "latest" {
			t.Errorf("%s: the image %s has no version", name, s.Image)
		}
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			if !strings.HasPrefix(from, ".") {
				continue // a named volume
			}
			if _, err := os.Stat(filepath.Clean(from)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// The engine need not run for this.
func TestComposeIsValid(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	args := []string{"docker", "compose"}
	if exec.CommandContext(ctx, "docker", "compose", "version").Run() != nil {
		args = []string{"docker-compose"}
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skip("neither docker compose nor docker-compose is here")
	}
	args = append(args, "-f", "compose.yaml", "config", "--quiet")
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
