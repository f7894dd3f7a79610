package servers

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// recorder is a test that only remembers how it ended.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestMissingStoreIsSkippedUnlessRequired(t *testing.T) {
	missing := fmt.Errorf("program redis-server is %w", stores.ErrMissing)
	for _, c := range []struct {
		name, require string
		err           error
		skipped       string
		failed        string
	}{
		{"missing", "", missing, "run scripts/setup-tests.sh redis", ""},
		{"another one is required", "etcd,postgres", missing, "redis is missing", ""},
		{"required", "etcd, redis", missing, "", "required by FENCELOCK_REQUIRE"},
		{"all are required", "all", missing, "", "FENCELOCK_IMAGE_REDIS"},
		{"does not start", "", fmt.Errorf("port in use"), "", "port in use"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(envRequire, c.require)
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				refuse(r, "redis", c.err)
			}()
			<-done
			if !matches(r.skipped, c.skipped) || !matches(r.failed, c.failed) {
				t.Errorf("skipped %q, failed %q; want %q, %q", r.skipped, r.failed, c.skipped, c.failed)
			}
		})
	}
}

// matches reports whether text is empty exactly if want is, and contains it.
func matches(text, want string) bool {
	return (text == "") == (want == "") && strings.Contains(text, want)
}

func TestLaunchers(t *testing.T) {
	for _, c := range []struct{ choice, want string }{
		{"", "local container"},
		{"auto", "local container"},
		{"local", "local"},
		{"container", "container"},
	} {
		list, err := launchers(c.choice)
		if err != nil {
			t.Errorf("%q: %v", c.choice, err)
		}
		var kinds []string
		for _, l := range list {
			kinds = append(kinds, l.Kind())
		}
		if got := strings.Join(kinds, " "); got != c.want {
			t.Errorf("%q: got %s, want %s", c.choice, got, c.want)
		}
	}
	if _, err := launchers("podman"); err == nil || !strings.Contains(err.Error(), "allowed are") {
		t.Errorf("got %v, want an error that says what is allowed", err)
	}
}
