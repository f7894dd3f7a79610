package servers_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Where apt-get fails, the script that installs the servers says what is missing, and fails only if that is required.
func TestSetupWithoutPackages(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil || os.Getuid() != 0 {
		t.Skip("needs bash, and to be the user who may install")
	}
	bin := t.TempDir()
	for _, tool := range []string{"dirname", "chmod", "rm", "id"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	for tool, does := range map[string]string{"apt-get": "echo no network >&2; exit 100", "apt-cache": "exit 0"} {
		if err := os.WriteFile(filepath.Join(bin, tool), []byte("#!"+bash+"\n"+does+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for require, want := range map[string]int{"": 0, "etcd": 0, "redis": 1, "etcd, redis": 1, "all": 1} {
		cmd := exec.Command(bash, "../../scripts/setup-tests.sh", "redis", "pgbouncer")
		cmd.Env = []string{"PATH=" + bin, "FENCELOCK_REQUIRE=" + require}
		out, err := cmd.CombinedOutput()
		code := 0
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			code = e.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != want {
			t.Errorf("required %q: got exit code %d, want %d", require, code, want)
		}
		for _, says := range []string{"redis is missing", "redis-server and redis-tools", "cannot install redis"} {
			if !strings.Contains(string(out), says) {
				t.Errorf("required %q: got\n%s\nwant it to say %q", require, out, says)
			}
		}
	}
}
