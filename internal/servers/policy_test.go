package servers

import (
	"fmt"
	"path/filepath"
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

// recorded makes a check in a test of its own, and returns how that has ended.
func recorded(t *testing.T, require string, check func(testing.TB)) *recorder {
	t.Setenv(envRequire, require)
	r, done := &recorder{TB: t}, make(chan struct{})
	go func() {
		defer close(done)
		check(r)
	}()
	<-done
	return r
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
			r := recorded(t, c.require, func(tb testing.TB) { refuse(tb, "redis", c.err) })
			if !matches(r.skipped, c.skipped) || !matches(r.failed, c.failed) {
				t.Errorf("skipped %q, failed %q; want %q, %q", r.skipped, r.failed, c.skipped, c.failed)
			}
		})
	}
}

func TestMissingProgramIsSkippedUnlessRequired(t *testing.T) {
	for _, c := range []struct{ require, skipped, failed string }{
		{"", "no-such-program is missing; run scripts/setup-tests.sh prometheus", ""},
		{"redis,etcd", "no-such-program is missing", ""},
		{"redis, prometheus", "", "no-such-program is required by FENCELOCK_REQUIRE"},
		{"all", "", "run scripts/setup-tests.sh prometheus"},
	} {
		r := recorded(t, c.require, func(tb testing.TB) { Program(tb, "prometheus", "no-such-program", "nor-this") })
		if !matches(r.skipped, c.skipped) || !matches(r.failed, c.failed) {
			t.Errorf("%q: skipped %q, failed %q; want %q, %q", c.require, r.skipped, r.failed, c.skipped, c.failed)
		}
	}
	if got := Program(t, "go", "no-such-program", "go"); filepath.Base(got) != "go" {
		t.Errorf("got %q, want the program that is there", got)
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
